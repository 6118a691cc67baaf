#include "server/security/tenant.h"

namespace sparsed::server {

std::string TenantOf(const grpc::ServerContextBase& /*context*/) {
  return std::string(kDefaultTenant);
}
std::string TenantOf(const ucred& /*peer*/) { return std::string(kDefaultTenant); }

}  // namespace sparsed::server
