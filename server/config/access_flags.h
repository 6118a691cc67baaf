// The flags that say who may call.
#pragma once

#include <string>

#include "CLI/CLI.hpp"
#include "server/config/config.h"
#include "server/config/problems.h"

namespace sparsed::server {

/// As they were written; CompleteAccess turns them into what `config` has.
struct AccessFlags {
  std::string socket_mode, socket_group;
};

/// `config` and `flags` outlive `app`.
void DefineAccessFlags(CLI::App& app, Config& config, AccessFlags& flags);
/// `problems` gets what does not go together, and modes and groups that there are not.
void CompleteAccess(Config& config, const AccessFlags& flags, Problems& problems);

}  // namespace sparsed::server
