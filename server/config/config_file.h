// The configuration file: YAML with the flags' names, underscores for dashes.
#pragma once

#include <string>
#include <string_view>

#include "CLI/CLI.hpp"
#include "server/config/problems.h"

namespace sparsed::server {

/// What the flag and the key for worker slots were called once, and still may be.
inline constexpr std::string_view kFormerWorkerSlots = "lanes";

/// Gives the options of `app`, which has parsed its command line, the values of the file `path`,
/// but those that are on the command line, or exclude what is. `problems` gets all that is wrong
/// with the file: that it cannot be read, is no YAML, or has more than 1 MiB; keys that are no
/// flags or are there twice; values that their flags refuse. What is right is used nevertheless.
void ReadConfigFile(CLI::App& app, const std::string& path, Problems& problems);

}  // namespace sparsed::server
