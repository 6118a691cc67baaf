// The command line of `sparsed`.
#pragma once

#include <ostream>
#include <string>
#include <variant>

#include "server/config/config.h"

namespace sparsed::server {

inline constexpr int kExitWrongUse = 2;

/// What --check-config asked for: a configuration that is not to be served.
struct Checked {
  Config config;
  std::string settings;  ///< as ToYaml, with where each value comes from behind it
};

/// The configuration, or the exit code of a program that has nothing more to do: help, the version
/// or the configuration were asked for (0, printed to `out`), or the flags or the file are wrong
/// (kExitWrongUse, said on `err`).
std::variant<Config, Checked, int> ParseCommandLine(int argc, const char* const* argv,
                                                    std::ostream& out, std::ostream& err);

}  // namespace sparsed::server
