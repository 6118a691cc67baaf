// The flags that say who may call.
#pragma once

#include <string>

#include "CLI/CLI.hpp"
#include "server/config/config.h"

namespace sparsed::server {

/// As they were written; CompleteAccess turns them into what `config` has.
struct AccessFlags {
  std::string socket_mode, socket_group;
};

/// `config` and `flags` outlive `app`.
void DefineAccessFlags(CLI::App& app, Config& config, AccessFlags& flags);
/// Throws CLI::ValidationError.
void CompleteAccess(Config& config, const AccessFlags& flags);

}  // namespace sparsed::server
