// Who is calling.
#pragma once

#include <string>

struct ucred;

namespace grpc {
class ServerContextBase;
}

namespace sparsed::server {

/// The tenant that a call belongs to: the one of a server without identities.
std::string TenantOf(const grpc::ServerContextBase& context);
/// Likewise, of a process at the other end of a Unix socket.
std::string TenantOf(const ucred& peer);

}  // namespace sparsed::server
