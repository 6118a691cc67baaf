#include "server/security/tenant.h"

namespace sparsed::server {

std::string TenantOf(const grpc::ServerContextBase& /*context*/) { return "default"; }
std::string TenantOf(const ucred& /*peer*/) { return "default"; }

}  // namespace sparsed::server
