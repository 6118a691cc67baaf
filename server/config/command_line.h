// The command line of `sparsed`.
#pragma once

#include <map>
#include <ostream>
#include <string>
#include <variant>
#include <vector>

#include "server/config/config.h"
#include "server/config/problems.h"

namespace sparsed::server {

inline constexpr int kExitWrongUse = 2;

/// What the command line and the configuration file say.
struct Settings {
  Config config;
  /// What is wrong with them: nothing, unless `check` is all that was asked for. It knows which
  /// setting is in which line of the file.
  Problems problems;
  bool check = false;       ///< --check-config: they are not to be served
  std::string annotated{};  ///< as ToYaml, with where each value comes from behind it
};

/// The settings, or the exit code of a program that has nothing more to do: help, the version or
/// the configuration were asked for (0, printed to `out`), or the flags or the file are wrong
/// (kExitWrongUse, said on `err`).
std::variant<Settings, int> ParseCommandLine(int argc, const char* const* argv, std::ostream& out,
                                             std::ostream& err);

/// Of each setting that is a size or a time, by its key in a file: "bytes", "seconds" or
/// "microseconds".
const std::map<std::string, std::string>& UnitsOfSettings();

/// Says each of `problems` on `err`. Returns kExitWrongUse.
int Refuse(std::ostream& err, const std::vector<std::string>& problems);

}  // namespace sparsed::server
