// A call of a matrix that may be in shards.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "client/src/catalog_calls.h"
#include "client/src/remote_call.h"
#include "client/src/sharded.h"

namespace sparsed {
inline namespace client {

/// What a server says of a matrix in shards. INTERNAL if its shards do not make it.
absl::StatusOr<std::shared_ptr<ShardedMatrix>> ShardedOf(MatrixInfo info);
/// With what is known of these shards already.
absl::StatusOr<std::shared_ptr<ShardedMatrix>> Known(Nodes& nodes, const std::string& name,
                                                     MatrixInfo info);

/// That of a status or of a result.
inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

/// `whole(options, in_shards)` starts the call of a matrix that is none; `run(connection, work,
/// sharded)` is what it is of one that is, on a thread of its own. Both are kept and hold all that
/// they need by value, and may be called again. `connection` is the client's home.
template <typename T, typename Whole, typename Run>
Call<T> OrSharded(const std::shared_ptr<Connection>& connection, const std::string& name,
                  const CallOptions& options, Whole whole, Run run) {
  Nodes& nodes = connection->nodes();
  const bool known = nodes.FindSharded(name) != nullptr;
  if (!known && !nodes.in_cluster()) return whole(options, InShards<T>());
  InShards<T> in_shards;
  in_shards.work = std::make_shared<ShardWork>(options, connection->options());
  // The Call keeps the connection until this has returned.
  in_shards.run = [raw = connection.get(), name, whole, run](
                      ShardWork& work, const absl::Status& /*why*/) -> Result<T> {
    constexpr int kAttempts = 5;
    std::chrono::milliseconds pause(50);
    std::string before;
    for (int attempt = 1;; ++attempt) {
      // Each time: shards go on under the name of their upload when the matrix gets another one.
      Call<MatrixInfo> call =
          GetMatrix(RouteOf(raw->shared_from_this(), name), name, work.options());
      absl::StatusOr<MatrixInfo> info = work.Wait(call);
      if (!info.ok()) return info.status();
      if (info->shards.empty()) {
        raw->nodes().ForgetSharded(name);
        Call<T> other = whole(work.options(), InShards<T>());
        Result<T> result = work.Wait(other);
        // Who says what it is may lag behind who has it.
        if (!IsInShards(StatusOf(result)) || attempt == kAttempts) return result;
        work.Pause(pause);
        pause *= 2;
        continue;
      }
      const absl::StatusOr<std::shared_ptr<ShardedMatrix>> sharded =
          Known(raw->nodes(), name, *std::move(info));
      if (!sharded.ok()) return sharded.status();
      Result<T> result = run(*raw, work, **sharded);
      if (!absl::IsNotFound(StatusOf(result))) return result;
      // Another one is in its place by now, or none, and who says what it is has yet to hear of it.
      if (attempt == kAttempts) break;
      const std::string& first = (*sharded)->info().shards.front().matrix;
      if (std::exchange(before, first) != first) continue;
      work.Pause(pause);
      pause *= 2;
    }
    return absl::UnavailableError(fmt::format(
        "shards of \"{}\" are gone: others replace it, or a shard was lost (cluster forget)",
        name));
  };
  if (!known) return whole(options, std::move(in_shards));
  auto state = std::make_shared<CallState<T>>();
  client::Start(in_shards, state, absl::OkStatus());
  return Call<T>(std::move(state), [connection, work = in_shards.work] { work->Cancel(); });
}

}  // namespace client
}  // namespace sparsed
