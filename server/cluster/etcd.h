// etcd (https://etcd.io) as the cluster's directory, by its v3 API over gRPC.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/cluster/directory.h"

namespace sparsed::server {

/// `endpoints`: "host:port" of members of one etcd cluster, at least one; the next is asked when
/// one does not answer. In plain text and without users.
std::unique_ptr<Directory> OpenEtcd(const std::vector<std::string>& endpoints);

}  // namespace sparsed::server
