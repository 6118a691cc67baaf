// The files that settings name, as far as they can be looked at without starting.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/config/config.h"
#include "server/config/problems.h"

namespace sparsed::server {

/// The folder of the models that are installed with the server, or that the settings name; empty:
/// there is none. FAILED_PRECONDITION: what they name is none. Looks beside the program's folder.
absl::StatusOr<std::string> InstalledModels(const Config& config);

/// Adds to `problems` what a start with these settings would find wrong with them: the access file,
/// certificates and their key, the data directory, the models, and the folders of the audit log and
/// of Unix sockets. Makes and changes nothing.
void CheckFiles(const Config& config, Problems& problems);

}  // namespace sparsed::server
