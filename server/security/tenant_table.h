// The `tenants` of the access file: what each may use. YAML:
//
//   tenants:
//     training: {weight: 2, quotas: {host_bytes: 8GiB, matrices: {soft: 80, hard: 100}}}
//     "*": {quotas: {requests_per_second: 100}}
//
// "*" is for all tenants that are not named, and says what those that are may use of what they say
// nothing of. A number alone is the hard limit; `none` is no limit.
#pragma once

#include <yaml-cpp/yaml.h>

#include <map>
#include <string>

#include "engine/memory/tenants.h"

namespace sparsed::server {

struct TenantTable {
  std::map<std::string, engine::TenantLimits, std::less<>> named;
  engine::TenantLimits others;
};

/// `node`: the map. Throws Refusal (yaml_reader.h).
TenantTable ReadTenants(const YAML::Node& node);

}  // namespace sparsed::server
