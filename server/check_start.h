// What a start would refuse, as far as it can be told without starting: addresses that are not
// safe, files and GPUs that settings name.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/config/config.h"
#include "server/config/problems.h"

namespace sparsed::server {

/// The folder of the models that are installed with the server, or that the settings name; empty:
/// there is none. FAILED_PRECONDITION: what they name is none. Looks beside the program's folder.
absl::StatusOr<std::string> InstalledModels(const Config& config);

/// Why nothing can be kept in the data directory: it is no folder or not writable, or the folder
/// above it, in which a start makes it, is not there, as when its name is misspelt. Empty: it can,
/// as far as that can be told, or nothing is kept.
std::string DataDirectoryProblem(const Config& config);

/// An address at which the server does not listen.
struct UnsafeAddress {
  const char* flag;  ///< that names it
  std::string why;
};

/// The first address at which other machines would reach a server that asks nobody who he is, or
/// secrets would travel in plain text.
std::optional<UnsafeAddress> FindUnsafeAddress(const Config& config);

/// Adds to `problems` what a start with these settings would find wrong with them: an address that
/// is none, or is not safe, GPUs by their numbers, the access file, certificates and their key, the
/// data directory, the models, and the folders of the audit log and of Unix sockets. Makes and
/// changes nothing.
void CheckStart(const Config& config, Problems& problems);

}  // namespace sparsed::server
