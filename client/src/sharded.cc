#include "client/src/sharded.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "client/src/arrays.h"
#include "client/src/convert.h"
#include "client/src/shard_cut.h"
#include "client/src/sharded_calls.h"
#include "sparsed/v1/catalog.pb.h"

namespace sparsed {
inline namespace client {
namespace {

absl::Status MakesNoSense(std::string_view what) {
  return absl::InternalError(
      fmt::format("the server's {} of a matrix in shards make no sense", what));
}

/// The one column of each row. INTERNAL unless it is rows x cols, with one nonzero in each row and
/// each column once at most.
absl::StatusOr<std::vector<int32_t>> ColumnsOf(CsrMatrix matrix, int64_t rows, int64_t cols) {
  bool right = matrix.rows == rows && matrix.cols == cols && matrix.nnz() == rows;
  std::vector<bool> seen(right ? static_cast<size_t>(cols) : 0);
  for (int64_t row = 0; right && row < rows; ++row) {
    const auto i = static_cast<size_t>(row);
    right = matrix.row_offsets[i] == row;
    if (!right) break;
    auto mark = seen[static_cast<size_t>(matrix.column_indices[i])];
    right = !mark;
    mark = true;
  }
  if (!right) return MakesNoSense("numbers");
  return std::move(matrix.column_indices);
}

absl::StatusOr<CsrMatrix> DownloadPart(Connection& connection, ShardWork& work,
                                       const std::string& name) {
  Call<CsrMatrix> call =
      Download(RouteOf(connection.shared_from_this(), name), name, work.options());
  return work.Wait(call);
}

}  // namespace

absl::StatusOr<std::shared_ptr<ShardedMatrix>> ShardedOf(MatrixInfo info) {
  bool right = Plausible(info.rows, info.cols, info.nnz) && !info.shards.empty() &&
               info.shards.size() <= kMostShards;
  int64_t rows = 0, nnz = 0;
  for (const ShardInfo& shard : info.shards) {
    const bool partitioned = !shard.row_numbers.empty();
    right = right && shard.rows >= 1 && shard.rows <= info.rows - rows && shard.cols >= 0 &&
            shard.cols <= info.cols && shard.nnz >= 0 && shard.nnz <= info.nnz - nnz &&
            partitioned != info.shards.front().row_numbers.empty() &&
            (partitioned || shard.first_row == rows);
    if (!right) break;
    rows += shard.rows;
    nnz += shard.nnz;
  }
  if (!right || rows != info.rows || nnz != info.nnz) return MakesNoSense("sizes");
  return std::make_shared<ShardedMatrix>(std::move(info));
}

absl::StatusOr<std::shared_ptr<ShardedMatrix>> Known(Nodes& nodes, const std::string& name,
                                                     MatrixInfo info) {
  std::shared_ptr<ShardedMatrix> known = nodes.FindSharded(name);
  if (known != nullptr && known->info().shards.front().matrix == info.shards.front().matrix) {
    return known;
  }
  auto sharded = ShardedOf(std::move(info));
  if (sharded.ok()) nodes.LearnSharded(name, *sharded);
  return sharded;
}

void NoteShards(Nodes& nodes, const std::string& name, const MatrixInfo& info) {
  // What makes no sense is said when it is used.
  if (!info.shards.empty()) Known(nodes, name, info).status().IgnoreError();
}

ShardedMatrix::ShardedMatrix(MatrixInfo info)
    : info_(std::move(info)), numbers_(info_.shards.size()) {
  int64_t nnz = 0;
  for (const ShardInfo& shard : info_.shards) {
    first_nonzeros_.push_back(nnz);
    nnz += shard.nnz;
  }
}

void ShardedMatrix::SetNumbers(size_t shard, ShardNumbers numbers) {
  auto shared = std::make_shared<const ShardNumbers>(std::move(numbers));
  const MutexLock lock(mutex_);
  numbers_[shard] = std::move(shared);
}

absl::StatusOr<std::shared_ptr<const ShardNumbers>> ShardedMatrix::Numbers(Connection& connection,
                                                                           ShardWork& work,
                                                                           size_t shard) {
  {
    const MutexLock lock(mutex_);
    if (numbers_[shard] != nullptr) return numbers_[shard];
  }
  const ShardInfo& of = info_.shards[shard];
  ShardNumbers numbers;
  absl::StatusOr<CsrMatrix> part = DownloadPart(connection, work, of.columns);
  if (!part.ok()) return part.status();
  auto columns = ColumnsOf(*std::move(part), of.cols, info_.cols);
  if (!columns.ok()) return columns.status();
  // Or a large operand would be on its way before somebody says where else it has to go.
  connection.nodes().RouteLike(of.matrix, of.columns);
  numbers.columns = *std::move(columns);
  if (partitioned()) {
    part = DownloadPart(connection, work, of.row_numbers);
    if (!part.ok()) return part.status();
    const auto* const begins = std::get_if<std::vector<double>>(&part->values);
    if (begins == nullptr) return MakesNoSense("numbers");
    for (const double begin : *begins) {
      if (!(begin >= 0 && begin <= static_cast<double>(info_.nnz)) || begin != std::floor(begin)) {
        return MakesNoSense("numbers");
      }
      numbers.begins.push_back(static_cast<int64_t>(begin));
    }
    auto rows = ColumnsOf(*std::move(part), of.rows, info_.rows);
    if (!rows.ok()) return rows.status();
    if (!std::ranges::is_sorted(*rows)) return MakesNoSense("numbers");
    numbers.rows = *std::move(rows);
  }
  auto shared = std::make_shared<const ShardNumbers>(std::move(numbers));
  const MutexLock lock(mutex_);
  return numbers_[shard] = std::move(shared);
}

absl::StatusOr<std::shared_ptr<const std::vector<int64_t>>> ShardedMatrix::Begins(
    Connection& connection, ShardWork& work) {
  {
    const MutexLock lock(mutex_);
    if (begins_ != nullptr) return begins_;
  }
  // All of them before there is memory for as many rows as the server says.
  std::vector<std::shared_ptr<const ShardNumbers>> all;
  for (size_t shard = 0; shard < info_.shards.size(); ++shard) {
    const auto numbers = Numbers(connection, work, shard);
    if (!numbers.ok()) return numbers.status();
    all.push_back(*numbers);
  }
  constexpr int64_t kNone = -1;
  std::vector<int64_t> begins(static_cast<size_t>(info_.rows) + 1, kNone);
  for (const auto& numbers : all) {
    for (size_t j = 0; j < numbers->rows.size(); ++j) {
      begins[static_cast<size_t>(numbers->rows[j])] = numbers->begins[j];
    }
  }
  begins.back() = info_.nnz;
  // Each row is one shard's, and only one's: as many as there are.
  if (begins.front() != 0 || !std::ranges::is_sorted(begins)) return MakesNoSense("numbers");
  for (size_t shard = 0; shard < all.size(); ++shard) {
    int64_t nnz = 0;
    for (const int32_t row : all[shard]->rows) {
      nnz += begins[static_cast<size_t>(row) + 1] - begins[static_cast<size_t>(row)];
    }
    if (nnz != info_.shards[shard].nnz) return MakesNoSense("numbers");
  }
  auto shared = std::make_shared<const std::vector<int64_t>>(std::move(begins));
  const MutexLock lock(mutex_);
  return begins_ = std::move(shared);
}

namespace {

/// Puts a shard's rows where they are in the whole, whose row offsets are there already. Columns
/// ascend there, in whichever order the shard has them.
void PutRows(const CsrMatrix& part, const ShardNumbers& numbers, int64_t first_row,
             CsrMatrix& whole) {
  const auto column_of = [&](int64_t i) {
    return numbers.columns[static_cast<size_t>(part.column_indices[static_cast<size_t>(i)])];
  };
  std::vector<int64_t> order;  // of a row's nonzeros
  for (int64_t row = 0; row < part.rows; ++row) {
    const int64_t to =
        numbers.rows.empty() ? first_row + row : numbers.rows[static_cast<size_t>(row)];
    const int64_t begin = part.row_offsets[static_cast<size_t>(row)];
    order.resize(static_cast<size_t>(part.row_offsets[static_cast<size_t>(row) + 1] - begin));
    std::iota(order.begin(), order.end(), begin);
    if (!std::ranges::is_sorted(order, {}, column_of)) std::ranges::sort(order, {}, column_of);
    const auto at = static_cast<size_t>(whole.row_offsets[static_cast<size_t>(to)]);
    for (size_t i = 0; i < order.size(); ++i) whole.column_indices[at + i] = column_of(order[i]);
    std::visit(
        [&](const auto& values) {
          auto& into = std::get<std::decay_t<decltype(values)>>(whole.values);
          for (size_t i = 0; i < order.size(); ++i) {
            into[at + i] = values[static_cast<size_t>(order[i])];
          }
        },
        part.values);
  }
}

absl::StatusOr<CsrMatrix> DownloadSharded(Connection& connection, ShardWork& work,
                                          ShardedMatrix& sharded) {
  const MatrixInfo& info = sharded.info();
  std::vector<CsrMatrix> parts;
  std::vector<std::shared_ptr<const ShardNumbers>> numbers;
  for (size_t shard = 0; shard < info.shards.size(); ++shard) {
    const ShardInfo& of = info.shards[shard];
    absl::StatusOr<CsrMatrix> part = DownloadPart(connection, work, of.matrix);
    if (!part.ok()) return part.status();
    const auto known = sharded.Numbers(connection, work, shard);
    if (!known.ok()) return known.status();
    if (part->rows != of.rows || part->cols != of.cols || part->type() != info.type) {
      return MakesNoSense("shards");
    }
    parts.push_back(*std::move(part));
    numbers.push_back(*known);
  }
  CsrMatrix whole;
  whole.rows = info.rows;
  whole.cols = info.cols;
  // At first of each row how many nonzeros it has.
  whole.row_offsets.assign(static_cast<size_t>(info.rows) + 1, 0);
  for (size_t shard = 0; shard < parts.size(); ++shard) {
    for (int64_t row = 0; row < parts[shard].rows; ++row) {
      const auto i = static_cast<size_t>(row);
      const int64_t to = numbers[shard]->rows.empty() ? info.shards[shard].first_row + row
                                                      : numbers[shard]->rows[i];
      whole.row_offsets[static_cast<size_t>(to) + 1] =
          parts[shard].row_offsets[i + 1] - parts[shard].row_offsets[i];
    }
  }
  for (size_t row = 0; row + 1 < whole.row_offsets.size(); ++row) {
    whole.row_offsets[row + 1] += whole.row_offsets[row];
  }
  const auto nnz = static_cast<size_t>(whole.row_offsets.back());
  int64_t of_parts = 0;
  for (const CsrMatrix& part : parts) of_parts += part.nnz();
  // Two shards that say to have the same row would leave others without room.
  if (static_cast<size_t>(of_parts) != nnz) return MakesNoSense("numbers");
  whole.column_indices.resize(nnz);
  whole.values = ZeroValues(info.type, nnz);
  for (size_t shard = 0; shard < parts.size(); ++shard) {
    PutRows(parts[shard], *numbers[shard], info.shards[shard].first_row, whole);
    parts[shard] = {};
  }
  return whole;
}

}  // namespace

Call<CsrMatrix> DownloadOrSharded(const std::shared_ptr<Connection>& connection,
                                  const std::string& name, const CallOptions& options) {
  return OrSharded<CsrMatrix>(
      connection, name, options,
      [raw = connection.get(), name](const CallOptions& call_options,
                                     InShards<CsrMatrix> in_shards) {
        return Download(RouteOf(raw->shared_from_this(), name), name, call_options,
                        std::move(in_shards));
      },
      DownloadSharded);
}

Call<void> WaitReadyOrSharded(const std::shared_ptr<Connection>& connection,
                              const std::string& name, ProgressCallback progress,
                              const CallOptions& options) {
  return OrSharded<void>(
      connection, name, options,
      [raw = connection.get(), name, progress](const CallOptions& call_options,
                                               InShards<void> in_shards) {
        return Watch(RouteOf(raw->shared_from_this(), name), name, /*follow=*/false, progress,
                     call_options, std::move(in_shards));
      },
      [](Connection& home, ShardWork& work, ShardedMatrix& sharded) -> absl::Status {
        for (const ShardInfo& shard : sharded.info().shards) {
          Call<void> call = Watch(RouteOf(home.shared_from_this(), shard.matrix), shard.matrix,
                                  /*follow=*/false, nullptr, work.options());
          if (absl::Status ready = work.Wait(call); !ready.ok()) return ready;
        }
        return absl::OkStatus();
      });
}

}  // namespace client
}  // namespace sparsed
