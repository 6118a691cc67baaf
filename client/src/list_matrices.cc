// Catalog.List. In a cluster a node knows of matrices that it has not what the directory says
// alone: those that have them are asked for the rest.
#include <algorithm>
#include <chrono>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "client/src/admin_calls.h"
#include "client/src/catalog_calls.h"
#include "client/src/convert.h"
#include "client/src/exchange.h"
#include "client/src/shard_work.h"
#include "sparsed/v1/catalog.pb.h"

namespace sparsed {
inline namespace client {
namespace {

using std::chrono::steady_clock;
using Infos = std::vector<MatrixInfo>;

/// So long other nodes are waited for.
constexpr std::chrono::seconds kPatience(3);
/// A server may name any number of them, and each is connected to on a thread of its own.
constexpr size_t kMostNodes = 256;

Call<Infos> Ask(const std::shared_ptr<Connection>& connection,
                const v1::ListMatricesRequest& request, const CallOptions& options) {
  return LaunchList<v1::ListMatricesRequest, v1::ListMatricesReply, MatrixInfo>(
      connection, "/sparsed.v1.Catalog/List", options, request,
      [](const v1::ListMatricesReply& reply) {
        Infos matrices;
        for (const v1::MatrixInfo& matrix : reply.matrices()) {
          matrices.push_back(FromProto(matrix));
        }
        return matrices;
      });
}

/// Other nodes have it, and know more of it. Of one in shards no node does.
bool IsElsewhere(const MatrixInfo& info) {
  return info.state == MatrixState::kUnknown && info.shards.empty() && !info.nodes.empty();
}

/// The state alone, as nobody waits for what has not come in time.
using Connecting = std::shared_ptr<CallState<Connection*>>;

Connecting ConnectTo(Nodes& nodes, const std::string& address) {
  auto state = std::make_shared<CallState<Connection*>>();
  nodes.Connect({address},
                [state](absl::StatusOr<Connection*> there) { state->Complete(std::move(there)); });
  return state;
}

/// Puts what other nodes say of theirs in the place of what `home` says of them.
void AskOthers(Connection& home, ShardWork& work, v1::ListMatricesRequest request, Infos& infos) {
  std::unordered_map<std::string, MatrixInfo*> elsewhere;
  bool any_there = false;
  for (MatrixInfo& info : infos) {
    if (!IsElsewhere(info)) continue;
    any_there = any_there || info.nodes_gone.size() < info.nodes.size();
    elsewhere.emplace(info.name, &info);
  }
  if (!any_there) return;
  std::chrono::nanoseconds patience = kPatience;
  if (const auto left = work.options().timeout) {
    patience = std::min<std::chrono::nanoseconds>(patience, *left);
  }
  const auto until = steady_clock::now() + patience;
  const auto options = [&] {
    CallOptions left = work.options();
    left.timeout = std::max<std::chrono::nanoseconds>(until - steady_clock::now(), {});
    return left;
  };
  const std::shared_ptr<Connection> keep = home.shared_from_this();
  Call<ServerInfo> asked = GetServerInfo(keep, options());
  const absl::StatusOr<ServerInfo> server = work.Wait(asked);
  if (!server.ok()) return;
  Nodes& nodes = home.nodes();
  nodes.Learn(server->node_addresses);
  std::vector<Connecting> connecting;
  for (const std::string& address : server->node_addresses) {
    if (connecting.size() == kMostNodes) break;
    if (address != home.address()) connecting.push_back(ConnectTo(nodes, address));
  }
  request.set_here(true);
  std::vector<Call<Infos>> lists;
  // None waits for another one that does not answer.
  while (!connecting.empty() && steady_clock::now() < until && !work.cancelled()) {
    std::erase_if(connecting, [&](const Connecting& state) {
      constexpr std::chrono::milliseconds kLook(5);
      if (!state->WaitUntil(steady_clock::now() + kLook)) return false;
      const absl::StatusOr<Connection*> there = state->Take();
      if (there.ok()) lists.push_back(Ask({keep, *there}, request, options()));
      return true;
    });
  }
  for (Call<Infos>& list : lists) {
    absl::StatusOr<Infos> theirs = work.Wait(list);
    if (!theirs.ok()) continue;
    for (MatrixInfo& info : *theirs) {
      const auto found = elsewhere.find(info.name);
      if (found == elsewhere.end() || IsElsewhere(info)) continue;
      *found->second = std::move(info);
      elsewhere.erase(found);
    }
  }
}

}  // namespace

Call<Infos> ListMatrices(const std::shared_ptr<Connection>& connection, const std::string& prefix,
                         Listed listed, const CallOptions& options) {
  v1::ListMatricesRequest request;
  request.set_prefix(prefix);
  request.set_shared(listed == Listed::kShared);
  request.set_all(listed == Listed::kAll);
  if (!connection->nodes().in_cluster()) return Ask(connection, request, options);
  auto state = std::make_shared<CallState<Infos>>();
  InShards<Infos> others;
  others.work = std::make_shared<ShardWork>(options, connection->options());
  // The Call keeps the connection until this has returned.
  others.run = [raw = connection.get(), request](ShardWork& work,
                                                 const absl::Status&) -> Result<Infos> {
    Call<Infos> call = Ask(raw->shared_from_this(), request, work.options());
    absl::StatusOr<Infos> infos = work.Wait(call);
    if (infos.ok()) AskOthers(*raw, work, request, *infos);
    return infos;
  };
  client::Start(others, state, absl::OkStatus());
  return Call<Infos>(std::move(state), [connection, work = others.work] { work->Cancel(); });
}

}  // namespace client
}  // namespace sparsed
