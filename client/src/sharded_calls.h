// A call of a matrix that may be in shards.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "client/src/catalog_calls.h"
#include "client/src/remote_call.h"
#include "client/src/sharded.h"

namespace sparsed {
inline namespace client {

/// What a server says of a matrix in shards. INTERNAL if its shards do not make it.
absl::StatusOr<std::shared_ptr<ShardedMatrix>> ShardedOf(MatrixInfo info);

/// That of a status or of a result.
inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

/// `whole(in_shards)` starts the call of a matrix that is none; `run(connection, work, sharded)` is
/// what it is of one that is, on a thread of its own. Both are kept and hold all that they need by
/// value. `connection` is the client's home.
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
    constexpr int kAttempts = 3;
    std::shared_ptr<ShardedMatrix> sharded = known;
    for (int attempt = 1;; ++attempt) {
      if (sharded == nullptr) {
        Call<MatrixInfo> call =
            GetMatrix(RouteOf(raw->shared_from_this(), name), name, work.options());
        absl::StatusOr<MatrixInfo> info = work.Wait(call);
        if (!info.ok()) return info.status();
        if (info->shards.empty()) {
          Call<T> other = whole(InShards<T>());
          return work.Wait(other);
        }
        auto told = ShardedOf(*std::move(info));
        if (!told.ok()) return told.status();
        sharded = *std::move(told);
        raw->nodes().LearnSharded(name, sharded);
      }
      Result<T> result = run(*raw, work, *sharded);
      if (!absl::IsNotFound(StatusOf(result)) || attempt == kAttempts) return result;
      // Another one may be in its place.
      raw->nodes().ForgetSharded(name);
      sharded = nullptr;
    }
  };
  if (known == nullptr) return whole(std::move(in_shards));
  auto state = std::make_shared<CallState<T>>();
  client::Start(in_shards, state, absl::OkStatus());
  return Call<T>(std::move(state), [connection, work = in_shards.work] { work->Cancel(); });
}

}  // namespace client
}  // namespace sparsed
