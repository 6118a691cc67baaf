// What was wrong with a command line, in our words.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace sparsed::cli {

/// Of what CLI11 made of it: a sentence without its full stop, which names what was probably meant.
std::string UsageSentence(const CLI::App& app, const CLI::ParseError& error);

}  // namespace sparsed::cli
