// The command line of `sparsed`.
#pragma once

#include <ostream>
#include <variant>

#include "server/config/config.h"

namespace sparsed::server {

inline constexpr int kExitWrongUse = 2;

/// The configuration, or the exit code of a program that has nothing more to do: help, the version
/// or the configuration were asked for (0, printed to `out`), or the flags or the file are wrong
/// (kExitWrongUse, said on `err`).
std::variant<Config, int> ParseCommandLine(int argc, const char* const* argv, std::ostream& out,
                                           std::ostream& err);

}  // namespace sparsed::server
