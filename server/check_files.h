// The files that settings name, as far as they can be looked at without starting.
#pragma once

#include "server/config/config.h"
#include "server/config/problems.h"

namespace sparsed::server {

/// Adds to `problems` what a start with these settings would find wrong with them: the access file,
/// certificates and their key, the data directory, and the folders of the audit log and of Unix
/// sockets. Makes and changes nothing.
void CheckFiles(const Config& config, Problems& problems);

}  // namespace sparsed::server
