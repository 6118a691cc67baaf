// etcd (https://etcd.io) as the cluster's directory, by its v3 API over gRPC.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "server/cluster/directory.h"

namespace sparsed::server {

/// `endpoints`: "host:port" of members of one etcd cluster, at least one; the next is asked when
/// one does not answer. Without users of etcd's.
std::unique_ptr<Directory> OpenEtcd(const std::vector<std::string>& endpoints,
                                    const std::shared_ptr<grpc::ChannelCredentials>& credentials =
                                        grpc::InsecureChannelCredentials());

}  // namespace sparsed::server
