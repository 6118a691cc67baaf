// The tree of commands, as completion and manual pages read it from CLI11.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace sparsed::cli {

/// Commands of `app` that help shows.
std::vector<const CLI::App*> CommandsIn(const CLI::App& app);

/// Its options and flags, those of its groups included; hidden ones are left out.
std::vector<const CLI::Option*> FlagsIn(const CLI::App& app);
/// Its words, in their order.
std::vector<const CLI::Option*> WordsIn(const CLI::App& app);

/// "-o", "--output": as they are typed, short ones first.
std::vector<std::string> NamesOf(const CLI::Option& option);
/// Whether it takes a value.
bool TakesValue(const CLI::Option& option);
/// What it is of: "FILE", "MATRIX", "BUFFER", "TEXT", "INT", ...
std::string TypeOf(const CLI::Option& option);

/// What its value has to be one of, or to begin with ("spmm:" of "spmm:K"); none: it is anything.
std::vector<std::string> ChoicesOf(const CLI::Option& option);

/// "sparsectl buffers put": of the commands around it and itself.
std::string PathOf(const CLI::App& app, const std::string& separator = " ");

}  // namespace sparsed::cli
