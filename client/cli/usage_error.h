// What was wrong with a command line, in our words.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace sparsed::cli {

/// Of what CLI11 made of it: a sentence without its full stop, which names what was probably meant.
std::string UsageSentence(const CLI::App& app, const CLI::ParseError& error);

/// "sparsectl help upload" as "sparsectl upload --help"; INVALID_ARGUMENT if there is no such
/// command. Other words stay as they are.
absl::Status TakeHelp(const CLI::App& app, std::vector<std::string>& words);

}  // namespace sparsed::cli
