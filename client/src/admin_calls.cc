#include "client/src/admin_calls.h"

#include <utility>

#include "client/src/convert.h"
#include "client/src/exchange.h"
#include "sparsed/v1/admin.pb.h"
#include "sparsed/v1/cluster.pb.h"

namespace sparsed {
inline namespace client {

Call<ServerInfo> GetServerInfo(const std::shared_ptr<Connection>& connection,
                               const CallOptions& options) {
  return LaunchUnary<v1::ServerInfo, ServerInfo>(
      connection, "/sparsed.v1.Admin/GetServerInfo", options, true, v1::GetServerInfoRequest(),
      [](const v1::ServerInfo& reply) { return FromProto(reply); });
}

Call<ClusterInfo> ListNodes(const std::shared_ptr<Connection>& connection,
                            const CallOptions& options) {
  return LaunchUnary<v1::ListNodesReply, ClusterInfo>(
      connection, "/sparsed.v1.Cluster/ListNodes", options, true, v1::ListNodesRequest(),
      [](const v1::ListNodesReply& reply) {
        ClusterInfo info;
        info.problem = reply.problem();
        for (const v1::ClusterNode& node : reply.nodes()) {
          info.nodes.push_back({.name = node.name(),
                                .address = node.address(),
                                .devices = {node.devices().begin(), node.devices().end()},
                                .memory_bytes = node.memory_bytes(),
                                .free_memory_bytes = node.free_memory_bytes(),
                                .matrices = node.matrices(),
                                .copies = node.copies(),
                                .alive = node.alive(),
                                .draining = node.draining(),
                                .asked = node.asked()});
        }
        return info;
      });
}

Call<int64_t> DrainNode(const std::shared_ptr<Connection>& connection, const std::string& node,
                        bool undo, const CallOptions& options) {
  v1::DrainNodeRequest request;
  request.set_node(node);
  request.set_undo(undo);
  return LaunchUnary<v1::DrainNodeReply, int64_t>(
      connection, "/sparsed.v1.Cluster/DrainNode", options, /*safe_to_repeat=*/true, request,
      [](const v1::DrainNodeReply& reply) { return reply.matrices(); });
}

Call<ForgottenNode> ForgetNode(const std::shared_ptr<Connection>& connection,
                               const std::string& node, bool lose_matrices,
                               const CallOptions& options) {
  v1::ForgetNodeRequest request;
  request.set_node(node);
  request.set_lose_matrices(lose_matrices);
  return LaunchUnary<v1::ForgetNodeReply, ForgottenNode>(
      connection, "/sparsed.v1.Cluster/ForgetNode", options, /*safe_to_repeat=*/false, request,
      [](const v1::ForgetNodeReply& reply) {
        return ForgottenNode{.records = reply.records(), .lost = reply.lost()};
      });
}

Call<DeviceInfo> Calibrate(const std::shared_ptr<Connection>& connection, const std::string& device,
                           const CallOptions& options) {
  v1::CalibrateRequest request;
  request.set_device(device);
  return LaunchUnary<v1::CalibrateReply, DeviceInfo>(
      connection, "/sparsed.v1.Admin/Calibrate", options, /*safe_to_repeat=*/true, request,
      [](const v1::CalibrateReply& reply) { return FromProto(reply.device()); });
}

Call<Stats> GetStats(const std::shared_ptr<Connection>& connection, const CallOptions& options) {
  return LaunchUnary<v1::Stats, Stats>(connection, "/sparsed.v1.Admin/GetStats", options, true,
                                       v1::GetStatsRequest(),
                                       [](const v1::Stats& reply) { return FromProto(reply); });
}

Call<std::vector<TenantInfo>> ListTenants(const std::shared_ptr<Connection>& connection, bool all,
                                          const CallOptions& options) {
  v1::ListTenantsRequest request;
  request.set_all(all);
  return LaunchList<v1::ListTenantsRequest, v1::ListTenantsReply, TenantInfo>(
      connection, "/sparsed.v1.Admin/ListTenants", options, std::move(request),
      [](const v1::ListTenantsReply& reply) {
        std::vector<TenantInfo> tenants;
        for (const v1::TenantInfo& tenant : reply.tenants()) tenants.push_back(FromProto(tenant));
        return tenants;
      });
}

Call<SlowList> ListSlow(const std::shared_ptr<Connection>& connection, const SlowOptions& slow,
                        const CallOptions& options) {
  v1::ListSlowRequest request;
  request.set_all(slow.all);
  request.set_limit(slow.limit);
  request.set_operation(slow.operation);
  request.set_tenant(slow.tenant);
  request.set_subject(slow.subject);
  return LaunchUnary<v1::ListSlowReply, SlowList>(
      connection, "/sparsed.v1.Admin/ListSlow", options, true, request,
      [](const v1::ListSlowReply& reply) {
        SlowList list;
        for (const v1::SlowRequest& one : reply.requests()) {
          list.requests.push_back(FromProto(one));
        }
        for (const v1::QuotaInfo& quota : reply.refused_at()) {
          list.refused_at.push_back(FromProto(quota));
        }
        list.of_others = reply.of_others();
        return list;
      });
}

}  // namespace client
}  // namespace sparsed
