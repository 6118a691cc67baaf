// Which node of a cluster serves a request. A server by itself serves them all.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "server/cluster/cluster.h"
#include "server/rpc/compute_message.h"
#include "server/rpc/service.h"
#include "server/security/caller.h"
#include "sparsed/v1/catalog.pb.h"

namespace sparsed::server {

/// OK, or Cluster::Route's errors.
absl::Status Routed(const ServiceContext& service, std::string_view tenant,
                    std::string_view reference, Cluster::Need need);
/// The catalog's Find, of what this node serves.
absl::StatusOr<engine::MatrixLease> FindMatrix(const ServiceContext& service,
                                               std::string_view tenant, std::string_view reference,
                                               engine::Right right = engine::Right::kRead);
/// Likewise, for who only looks at it: operators find other tenants', too. That is no use of it.
absl::StatusOr<engine::MatrixLease> FindToLookAt(const ServiceContext& service,
                                                 const std::string& tenant, Role role,
                                                 std::string_view reference);
/// OK, or Cluster::RouteBuffer's errors.
absl::Status RoutedBuffer(const ServiceContext& service, const std::string& tenant,
                          std::string_view buffer);
/// Whether RoutedProduct waits for other nodes: never on a reactor's thread.
bool WaitsForNodes(const ServiceContext& service, const ComputeSpec& spec);
/// Of all matrices and buffers that a product computes with, and of the name that it makes. A
/// second operand of which this node has a shard's rows becomes Cluster::GatherOperand's.
absl::Status RoutedProduct(const ServiceContext& service, const std::string& tenant,
                           ComputeSpec& spec, const std::function<bool()>& stopped);
/// Makes a change here and has the cluster know of it: Cluster::Change; on `changes`.
absl::StatusOr<engine::MatrixLease> Changed(const ServiceContext& service,
                                            const engine::NameKey& key,
                                            const Cluster::LocalChange& change,
                                            const Cluster::Wishes& wishes = {});

/// Which nodes have it, and how many do not.
void AddNodes(const ServiceContext& service, v1::MatrixInfo& info);

/// Where what `op` does that blocks runs; `throttled`: it is to take its time.
WorkerPool& WorkersFor(Op op, const ServiceContext& service, bool throttled = false);

}  // namespace sparsed::server
