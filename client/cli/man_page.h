// Manual pages, from the tree of commands.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>

namespace sparsed::cli {

/// By file name: "sparsectl.1", and one for each command ("sparsectl-spmm.1"), which has its own
/// commands on it. In man(7)'s macros.
std::map<std::string, std::string> ManPages(const CLI::App& app, const std::string& version);

}  // namespace sparsed::cli
