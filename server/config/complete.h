// What the machine decides of the settings, and which of them go together.
#pragma once

#include "server/config/access_flags.h"
#include "server/config/config.h"
#include "server/config/problems.h"

namespace sparsed::server {

/// Flags as they were written; zeros are filled in by Complete.
struct Flags {
  Config config;
  bool in_memory = false;
  AccessFlags access;
};

/// `flags` with all that they leave open. `problems` gets what cannot be: what contradicts another
/// setting, and limits that this machine does not have. The result is of use if there are none.
Config Complete(Flags flags, Problems& problems);

}  // namespace sparsed::server
