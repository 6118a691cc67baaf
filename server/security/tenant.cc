#include "server/security/tenant.h"

namespace sparsed::server {

std::string TenantOf(const grpc::ServerContextBase& /*context*/) { return "default"; }

}  // namespace sparsed::server
