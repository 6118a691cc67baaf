#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/src/connection.h"
#include "sparsed/client.h"

namespace sparsed {
inline namespace client {

Call<ServerInfo> GetServerInfo(const std::shared_ptr<Connection>& connection,
                               const CallOptions& options);
Call<ClusterInfo> ListNodes(const std::shared_ptr<Connection>& connection,
                            const CallOptions& options);
Call<int64_t> DrainNode(const std::shared_ptr<Connection>& connection, const std::string& node,
                        bool undo, const CallOptions& options);
Call<ForgottenNode> ForgetNode(const std::shared_ptr<Connection>& connection,
                               const std::string& node, bool lose_matrices,
                               const CallOptions& options);
Call<DeviceInfo> Calibrate(const std::shared_ptr<Connection>& connection, const std::string& device,
                           const CallOptions& options);
Call<Stats> GetStats(const std::shared_ptr<Connection>& connection, const CallOptions& options);
Call<std::vector<TenantInfo>> ListTenants(const std::shared_ptr<Connection>& connection, bool all,
                                          const CallOptions& options);
Call<SlowList> ListSlow(const std::shared_ptr<Connection>& connection, const SlowOptions& slow,
                        const CallOptions& options);
Call<void> WatchRequests(const std::shared_ptr<Connection>& connection, bool all,
                         RequestsCallback on_requests, const CallOptions& options);
Call<void> SaveSnapshot(const std::shared_ptr<Connection>& connection, SnapshotCallback on_bytes,
                        const CallOptions& options);

}  // namespace client
}  // namespace sparsed
