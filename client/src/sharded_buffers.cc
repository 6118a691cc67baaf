// Buffers of matrices in shards: each shard's node has rows of it, as a buffer by itself. Products
// take rows that a shard lacks from the nodes that have them (server/cluster/gathered_rows.cc).
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <random>
#include <vector>

#include "client/src/arrays.h"
#include "client/src/convert.h"
#include "client/src/dense_rows.h"
#include "client/src/dense_transfer.h"
#include "client/src/sharded.h"
#include "client/src/sharded_calls.h"

namespace sparsed {
inline namespace client {
namespace {

/// Rows of a buffer that a shard's node has: those, or consecutive ones.
struct PartRows {
  int64_t first = 0, count = 0;
  std::shared_ptr<const ShardNumbers> numbers = nullptr;  ///< null: they are consecutive
};

/// INVALID_ARGUMENT unless a buffer of so many rows is an operand or a result of the matrix.
absl::StatusOr<PartRows> RowsOfPart(Connection& home, ShardWork& work, ShardedMatrix& sharded,
                                    size_t shard, int64_t rows) {
  const MatrixInfo& info = sharded.info();
  const ShardInfo& of = info.shards[shard];
  if (rows == info.rows) {
    if (!sharded.partitioned()) return PartRows{of.first_row, of.rows};
    auto numbers = sharded.Numbers(home, work, shard);
    if (!numbers.ok()) return numbers.status();
    return PartRows{0, of.rows, *std::move(numbers)};
  }
  if (rows != info.cols) {
    return absl::InvalidArgumentError(fmt::format(
        "the buffer has {} rows, and \"{}\", which is in shards, is {} x {}: buffers for "
        "it have as many rows as it has rows or columns",
        rows, info.name, info.rows, info.cols));
  }
  const auto [first, end] = EvenPart(rows, shard, info.shards.size());
  return PartRows{first, end - first};
}

/// Of all shards.
absl::StatusOr<std::vector<PartRows>> RowsOfParts(Connection& home, ShardWork& work,
                                                  ShardedMatrix& sharded, int64_t rows) {
  std::vector<PartRows> parts;
  for (size_t i = 0; i < sharded.info().shards.size(); ++i) {
    auto part = RowsOfPart(home, work, sharded, i, rows);
    if (!part.ok()) return part.status();
    parts.push_back(*std::move(part));
  }
  return parts;
}

/// Waits for the calls for all shards, which run at the same time.
template <typename T>
absl::Status WaitForAll(ShardWork& work, std::vector<Call<T>>& calls) {
  absl::Status status;
  for (Call<T>& call : calls) {
    Result<T> done = work.Wait(call);
    status.Update(StatusOf(done));
  }
  return status;
}

absl::Status DeleteParts(Connection& home, ShardWork& work, ShardedMatrix& sharded,
                         const DenseMatrix& buffer) {
  if (absl::Status own = ShardBuffers::CheckOwn(sharded); !own.ok()) return own;
  std::vector<Call<void>> calls;
  for (const ShardInfo& shard : sharded.info().shards) {
    calls.push_back(DeleteDense(RouteOf(home.shared_from_this(), shard.matrix),
                                ShardBuffers::PartOf(buffer, shard).name(), work.options()));
  }
  absl::Status failed;
  bool any = false;
  for (Call<void>& call : calls) {
    const absl::Status done = work.Wait(call);
    any = any || done.ok();
    if (!absl::IsNotFound(done)) failed.Update(done);
  }
  if (!failed.ok() || any) return failed;
  return absl::NotFoundError(
      fmt::format("\"{}\" has no buffer named \"{}\"", sharded.info().name, buffer.name()));
}

absl::StatusOr<DenseMatrix> PutParts(Connection& home, ShardWork& work, ShardedMatrix& sharded,
                                     const DenseMatrix& handle, const DenseView& whole, bool zeros,
                                     const PutOptions& put) {
  if (absl::Status own = ShardBuffers::CheckOwn(sharded); !own.ok()) return own;
  if (put.durable || put.distribution == Distribution::kColumns) {
    return absl::InvalidArgumentError(
        "a buffer for a matrix in shards lies as rows on its nodes, and is not durable");
  }
  if (!zeros) {
    if (const auto bytes = BytesOf(whole, "the matrix"); !bytes.ok()) return bytes.status();
  }
  PutOptions how = put;
  how.rows_of.clear();
  how.distribution = Distribution::kWhole;
  const size_t count = sharded.info().shards.size();
  const absl::StatusOr<std::vector<PartRows>> rows = RowsOfParts(home, work, sharded, whole.rows);
  if (!rows.ok()) return rows.status();
  // The same for all of them, and for no others: so parts of different contents are told apart.
  const uint64_t version = ShardBuffers::NewVersion();
  std::vector<Scratch> scratch(count);
  std::vector<Call<DenseMatrix>> calls;  // destroyed first: they use what is above
  for (size_t i = 0; i < count; ++i) {
    const ShardInfo& shard = sharded.info().shards[i];
    const PartRows& part = (*rows)[i];
    DenseView view{nullptr, whole.type, part.count, whole.cols};
    if (!zeros && part.numbers == nullptr) {
      view = Rows(whole, part.first, part.count);
    } else if (!zeros) {
      scratch[i] = Gather(whole, part.numbers->rows);
      view = scratch[i].View();
    }
    calls.push_back(PutDense(RouteOf(home.shared_from_this(), shard.matrix),
                             ShardBuffers::PartOf(handle, shard), view, zeros, how, work.options(),
                             version));
  }
  if (absl::Status all = WaitForAll(work, calls); !all.ok()) return all;
  return handle;
}

absl::StatusOr<DenseInfo> ReadParts(Connection& home, ShardWork& work, ShardedMatrix& sharded,
                                    const DenseMatrix& buffer, const MutableDenseView& into) {
  if (const auto bytes = BytesOf(into, "the destination"); !bytes.ok()) return bytes.status();
  absl::StatusOr<DenseInfo> info = ShardBuffers::Renew(home, work, sharded, buffer);
  if (!info.ok()) return info;
  if (info->rows != into.rows || info->cols != into.cols || info->type != into.type) {
    return absl::InvalidArgumentError(
        fmt::format("{} is {} x {} {}, the destination {} x {} {}", buffer.name(), info->rows,
                    info->cols, Name(info->type), into.rows, into.cols, Name(into.type)));
  }
  const size_t count = sharded.info().shards.size();
  const absl::StatusOr<std::vector<PartRows>> rows = RowsOfParts(home, work, sharded, into.rows);
  if (!rows.ok()) return rows.status();
  std::vector<Scratch> scratch(count);
  std::vector<Call<DenseInfo>> calls;  // destroyed first: they use what is above
  for (size_t i = 0; i < count; ++i) {
    const ShardInfo& shard = sharded.info().shards[i];
    const PartRows& part = (*rows)[i];
    if (part.numbers != nullptr) scratch[i] = Scratch(into.type, part.count, into.cols);
    const MutableDenseView view =
        part.numbers == nullptr ? Rows(into, part.first, part.count) : scratch[i].MutableView();
    calls.push_back(ReadDense(RouteOf(home.shared_from_this(), shard.matrix),
                              ShardBuffers::PartOf(buffer, shard).name(), view, work.options()));
  }
  absl::Status all;
  for (Call<DenseInfo>& call : calls) {
    const absl::StatusOr<DenseInfo> part = work.Wait(call);
    all.Update(part.status());
    if (part.ok() && part->version != info->version) {
      all.Update(absl::AbortedError(
          fmt::format("\"{}\" was written while it was read: read it again", buffer.name())));
    }
  }
  if (!all.ok()) return all;
  for (size_t i = 0; i < count; ++i) {
    if (const auto& numbers = (*rows)[i].numbers; numbers != nullptr) {
      Scatter(scratch[i].View(), numbers->rows, into);
    }
  }
  return info;
}

/// `whole(connection, options)` is the call where the matrix is none in shards. `lasts`: the buffer
/// may be there when the matrix is not.
template <typename T, typename Whole, typename Run>
Call<T> OfBuffer(const std::shared_ptr<Connection>& connection, const DenseMatrix& buffer,
                 const CallOptions& options, bool lasts, Whole whole, Run run) {
  if (buffer.matrix().empty() || !connection->nodes().in_cluster()) {
    return whole(connection, options);
  }
  auto state = std::make_shared<CallState<T>>();
  InShards<T> in_shards;
  in_shards.work = std::make_shared<ShardWork>(options, connection->options());
  in_shards.run = [raw = connection.get(), name = buffer.matrix(), lasts, whole, run](
                      ShardWork& work, const absl::Status& /*why*/) -> Result<T> {
    const std::shared_ptr<Connection> home = raw->shared_from_this();
    Call<MatrixInfo> asked = GetMatrix(RouteOf(home, name), name, work.options());
    absl::StatusOr<MatrixInfo> info = work.Wait(asked);
    const bool gone = lasts && absl::IsNotFound(info.status());
    if (!info.ok() && !gone) return info.status();
    if (gone || info->shards.empty()) {
      Call<T> call = whole(home, work.options());
      return work.Wait(call);
    }
    const auto sharded = Known(raw->nodes(), name, *std::move(info));
    if (!sharded.ok()) return sharded.status();
    return run(*raw, work, **sharded);
  };
  client::Start(in_shards, state, absl::OkStatus());
  return Call<T>(std::move(state), [connection, work = in_shards.work] { work->Cancel(); });
}

}  // namespace

absl::StatusOr<DenseInfo> ShardBuffers::Renew(Connection& home, ShardWork& work,
                                              ShardedMatrix& sharded, const DenseMatrix& buffer) {
  if (absl::Status own = ShardBuffers::CheckOwn(sharded); !own.ok()) return own;
  std::vector<Call<DenseInfo>> calls;
  for (const ShardInfo& shard : sharded.info().shards) {
    calls.push_back(RenewDense(RouteOf(home.shared_from_this(), shard.matrix),
                               ShardBuffers::PartOf(buffer, shard).name(), work.options()));
  }
  std::optional<DenseInfo> whole;
  size_t missing = 0;
  absl::Status failed;
  bool differ = false;
  for (Call<DenseInfo>& call : calls) {
    const absl::StatusOr<DenseInfo> part = work.Wait(call);
    if (absl::IsNotFound(part.status())) {
      ++missing;
      continue;
    }
    failed.Update(part.status());
    if (!part.ok()) continue;
    if (!whole.has_value()) {
      whole = *part;
      continue;
    }
    differ = differ || part->version != whole->version || part->cols != whole->cols ||
             part->type != whole->type;
    whole->rows += part->rows;
    whole->bytes += part->bytes;
    whole->idle = std::max(whole->idle, part->idle);
  }
  if (!failed.ok()) return failed;
  if (!whole.has_value()) {
    return absl::NotFoundError(
        fmt::format("\"{}\" has no buffer named \"{}\"", sharded.info().name, buffer.name()));
  }
  if (missing > 0 || differ) {
    return absl::FailedPreconditionError(fmt::format(
        "parts of \"{}\" {}: put it again", buffer.name(),
        missing > 0 ? "are gone from their nodes" : "are of different products, as one failed"));
  }
  whole->name = buffer.name();
  whole->leading_dimension = whole->cols;
  whole->shards = static_cast<int>(sharded.info().shards.size());
  whole->parts = 0;
  whole->distribution = Distribution::kRows;
  return *std::move(whole);
}

absl::Status ShardBuffers::CheckOwn(const ShardedMatrix& sharded) {
  // "TENANT~NAME" of another's.
  if (sharded.info().shards.front().matrix.find('~') == std::string::npos) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format(
      "\"{}\" is another tenant's: nodes keep buffers for a matrix in shards for its owner",
      sharded.info().name));
}

uint64_t ShardBuffers::NewVersion() {
  std::random_device random;
  return (static_cast<uint64_t>(random()) << 20 | (random() & 0xfffff)) + 1;
}

std::pair<int64_t, int64_t> EvenPart(int64_t rows, size_t i, size_t count) {
  const auto part = static_cast<int64_t>(i), parts = static_cast<int64_t>(count);
  return {rows * part / parts, rows * (part + 1) / parts};
}

Call<DenseMatrix> PutDenseOrSharded(const std::shared_ptr<Connection>& connection,
                                    const DenseMatrix& handle, const DenseView& matrix, bool zeros,
                                    const PutOptions& put, const CallOptions& options) {
  return OfBuffer<DenseMatrix>(
      connection, handle, options, /*lasts=*/false,
      [handle, matrix, zeros, put](const std::shared_ptr<Connection>& to,
                                   const CallOptions& call_options) {
        PutOptions how = put;
        if (how.distribution == Distribution::kWhole) how.rows_of.clear();
        return PutDense(to, handle, matrix, zeros, how, call_options);
      },
      [handle, matrix, zeros, put](Connection& home, ShardWork& work, ShardedMatrix& sharded) {
        return PutParts(home, work, sharded, handle, matrix, zeros, put);
      });
}

Call<DenseInfo> ReadDenseOrSharded(const std::shared_ptr<Connection>& connection,
                                   const DenseMatrix& buffer, const MutableDenseView& into,
                                   const CallOptions& options) {
  return OfBuffer<DenseInfo>(
      connection, buffer, options, /*lasts=*/true,
      [name = buffer.name(), into](const std::shared_ptr<Connection>& to,
                                   const CallOptions& call_options) {
        return ReadDense(to, name, into, call_options);
      },
      [buffer, into](Connection& home, ShardWork& work, ShardedMatrix& sharded) {
        return ReadParts(home, work, sharded, buffer, into);
      });
}

Call<DenseInfo> RenewDenseOrSharded(const std::shared_ptr<Connection>& connection,
                                    const DenseMatrix& buffer, const CallOptions& options) {
  return OfBuffer<DenseInfo>(
      connection, buffer, options, /*lasts=*/true,
      [name = buffer.name()](const std::shared_ptr<Connection>& to,
                             const CallOptions& call_options) {
        return RenewDense(to, name, call_options);
      },
      [buffer](Connection& home, ShardWork& work, ShardedMatrix& sharded) {
        return ShardBuffers::Renew(home, work, sharded, buffer);
      });
}

Call<void> DeleteDenseOrSharded(const std::shared_ptr<Connection>& connection,
                                const DenseMatrix& buffer, const CallOptions& options) {
  return OfBuffer<void>(
      connection, buffer, options, /*lasts=*/true,
      [name = buffer.name()](const std::shared_ptr<Connection>& to,
                             const CallOptions& call_options) {
        return DeleteDense(to, name, call_options);
      },
      [buffer](Connection& home, ShardWork& work, ShardedMatrix& sharded) {
        return DeleteParts(home, work, sharded, buffer);
      });
}

}  // namespace client
}  // namespace sparsed
