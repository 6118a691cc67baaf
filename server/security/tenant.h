// Who is calling.
#pragma once

#include <string>
#include <string_view>

struct ucred;

namespace grpc {
class ServerContextBase;
}

namespace sparsed::server {

/// The one of a server without identities.
inline constexpr std::string_view kDefaultTenant = "default";

/// The tenant that a call belongs to.
std::string TenantOf(const grpc::ServerContextBase& context);
/// Likewise, of a process at the other end of a Unix socket.
std::string TenantOf(const ucred& peer);

}  // namespace sparsed::server
