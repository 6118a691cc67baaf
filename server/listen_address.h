// Whether an address can be served.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace sparsed::server {

/// FAILED_PRECONDITION with the reason if nobody could listen at "host:port" or "unix:/path" now:
/// somebody else does, the host is not ours, the path is no socket. (gRPC alone would take a Unix
/// socket away from the server that owns it.)
absl::Status CheckListenAddress(const std::string& address);

}  // namespace sparsed::server
