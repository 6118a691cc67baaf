// A call of a matrix that may be in shards.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "client/src/catalog_calls.h"
#include "client/src/remote_call.h"
#include "client/src/sharded.h"

namespace sparsed {
inline namespace client {

/// That of a status or of a result.
inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

/// `whole(in_shards)` starts the call of a matrix that is none; `run(connection, work, sharded)` is
/// what it is of one that is, on a thread of its own, and may be done again after what it did was
/// of shards that are another matrix's by now. Both are kept and hold all that they need by value.
/// `connection` is the client's home.
template <typename T, typename Whole, typename Run>
Call<T> OrSharded(const std::shared_ptr<Connection>& connection, const std::string& name,
                  const CallOptions& options, Whole whole, Run run) {
  Nodes& nodes = connection->nodes();
  const std::shared_ptr<ShardedMatrix> known = nodes.FindSharded(name);
  if (known == nullptr && !nodes.in_cluster()) return whole(InShards<T>());
  InShards<T> in_shards;
  in_shards.work = std::make_shared<ShardWork>(options, connection->options());
  // The Call keeps the connection until this has returned.
  in_shards.run = [raw = connection.get(), name, known, whole, run](
                      ShardWork& work, const absl::Status& /*why*/) -> Result<T> {
    constexpr int kAttempts = 5;
    std::chrono::milliseconds pause(50);
    std::shared_ptr<ShardedMatrix> sharded = known;
    for (int attempt = 1;; ++attempt) {
      // The name may be another matrix's by now, also where these shards live on by another name:
      // what is known from before is asked for at the same time as the shards.
      const std::shared_ptr<ShardedMatrix> before = sharded;
      Call<MatrixInfo> asked =
          GetMatrix(RouteOf(raw->shared_from_this(), name), name, work.options());
      std::optional<Result<T>> result;
      if (before != nullptr) result = run(*raw, work, *before);
      const absl::StatusOr<MatrixInfo> info = work.Wait(asked);
      if (absl::IsNotFound(info.status())) raw->nodes().ForgetSharded(name);
      if (!info.ok()) return info.status();
      const auto told = NoteShards(raw->nodes(), name, *info);
      if (!told.ok()) return told.status();
      sharded = *told;
      if (sharded == nullptr) {
        Call<T> other = whole(InShards<T>());
        return work.Wait(other);
      }
      if (before == nullptr || !before->IsOfUpload(*info)) result = run(*raw, work, *sharded);
      if (!absl::IsNotFound(StatusOf(*result))) return *std::move(result);
      // Another one is in its place, and this node has yet to hear of it, or of a shard.
      if (attempt == kAttempts) break;
      std::this_thread::sleep_for(pause);
      pause *= 2;
    }
    return absl::UnavailableError(fmt::format(
        "shards of \"{}\" are gone: others replace it, or a shard was lost (cluster forget)",
        name));
  };
  if (known == nullptr) return whole(std::move(in_shards));
  auto state = std::make_shared<CallState<T>>();
  client::Start(in_shards, state, absl::OkStatus());
  return Call<T>(std::move(state), [connection, work = in_shards.work] { work->Cancel(); });
}

}  // namespace client
}  // namespace sparsed
