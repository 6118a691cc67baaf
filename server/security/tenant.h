// Who is calling.
#pragma once

#include <string>

namespace grpc {
class ServerContextBase;
}

namespace sparsed::server {

/// The tenant that a call belongs to: the one of a server without identities.
std::string TenantOf(const grpc::ServerContextBase& context);

}  // namespace sparsed::server
