#include "client/src/shard_cut.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <variant>

#include "client/src/arrays.h"

namespace sparsed {
inline namespace client {
namespace {

/// Of a matrix that has as many: CheckCut.
int64_t Offset(const CsrView& matrix, int64_t row) {
  return std::visit(
      [row](const auto& offsets) {
        return static_cast<int64_t>(offsets[static_cast<size_t>(row)]);
      },
      matrix.row_offsets);
}

}  // namespace

absl::Status CheckCut(const CsrView& matrix) {
  const auto nnz = static_cast<int64_t>(matrix.column_indices.size());
  const auto length = std::visit(
      [](const auto& offsets) { return static_cast<int64_t>(offsets.size()); }, matrix.row_offsets);
  if (matrix.rows < 0 || matrix.cols < 0 || length - 1 != matrix.rows) {
    return absl::InvalidArgumentError(fmt::format(
        "row_offsets has {} elements, {} rows need one more than rows", length, matrix.rows));
  }
  if (Offset(matrix, 0) != 0 || Offset(matrix, matrix.rows) != nnz) {
    return absl::InvalidArgumentError(
        fmt::format("row_offsets go from {} to {}, expected 0 to nnz, {}", Offset(matrix, 0),
                    Offset(matrix, matrix.rows), nnz));
  }
  if (!Plausible(matrix.rows, matrix.cols, 0)) {
    return absl::InvalidArgumentError(
        fmt::format("{} x {} is no size of a matrix", matrix.rows, matrix.cols));
  }
  for (int64_t row = 0; row < matrix.rows; ++row) {
    if (Offset(matrix, row) <= Offset(matrix, row + 1)) continue;
    return absl::InvalidArgumentError(
        fmt::format("row_offsets[{}] = {} is above row_offsets[{}] = {}", row, Offset(matrix, row),
                    row + 1, Offset(matrix, row + 1)));
  }
  for (int64_t i = 0; i < nnz; ++i) {
    const int32_t column = matrix.column_indices[static_cast<size_t>(i)];
    if (column >= 0 && column < matrix.cols) continue;
    return absl::InvalidArgumentError(
        fmt::format("column_indices[{}] = {} is out of range [0, {})", i, column, matrix.cols));
  }
  return absl::OkStatus();
}

std::pair<int64_t, int64_t> NonzerosOf(const CsrView& matrix, int64_t row) {
  return {Offset(matrix, row), Offset(matrix, row + 1)};
}

std::vector<int64_t> CutByNonzeros(const CsrView& matrix, int shards) {
  const auto nnz = static_cast<int64_t>(matrix.column_indices.size());
  std::vector<int64_t> firsts = {0};
  for (int64_t shard = 1; shard < shards; ++shard) {
    // nnz * shard / shards, which need not overflow.
    const int64_t target = nnz / shards * shard + nnz % shards * shard / shards;
    // The others need a row each.
    int64_t low = firsts.back() + 1;
    int64_t high = matrix.rows - (shards - shard);
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (Offset(matrix, middle) < target) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    firsts.push_back(low);
  }
  firsts.push_back(matrix.rows);
  return firsts;
}

absl::StatusOr<std::vector<std::vector<int32_t>>> CutByPartition(std::span<const int32_t> partition,
                                                                 int64_t rows, int shards) {
  if (static_cast<int64_t>(partition.size()) != rows) {
    return absl::InvalidArgumentError(
        fmt::format("the partition has {} elements, the matrix {} rows", partition.size(), rows));
  }
  std::vector<std::vector<int32_t>> parts(static_cast<size_t>(shards));
  for (size_t row = 0; row < partition.size(); ++row) {
    if (partition[row] < 0 || partition[row] >= shards) {
      return absl::InvalidArgumentError(
          fmt::format("partition[{}] = {} is no shard in [0, {})", row, partition[row], shards));
    }
    parts[static_cast<size_t>(partition[row])].push_back(static_cast<int32_t>(row));
  }
  for (size_t shard = 0; shard < parts.size(); ++shard) {
    if (!parts[shard].empty()) continue;
    return absl::InvalidArgumentError(
        fmt::format("the partition gives shard {} of {} no row", shard, shards));
  }
  return parts;
}

namespace {

/// Adds to `named`, which are marked in `seen`, what else the operand has, in its order: see Cut.
void OrderColumns(const OperandRows& operand, const std::vector<int32_t>& seen,
                  std::vector<int32_t>& named) {
  const auto is_named = [&](int32_t column) { return seen[static_cast<size_t>(column)] != 0; };
  const size_t own = operand.own.size();
  const auto named_own = static_cast<size_t>(std::ranges::count_if(operand.own, is_named));
  if (2 * named_own < own || named.size() - named_own > own) {
    std::ranges::sort(named);
    return;
  }
  std::ranges::copy_if(operand.own, std::back_inserter(named), std::not_fn(is_named));
  std::ranges::sort(named, {},
                    [&](int32_t column) { return operand.places[static_cast<size_t>(column)]; });
}

}  // namespace

CutRows Cut(const CsrView& matrix, std::span<const int32_t> rows, const OperandRows& operand,
            std::vector<int32_t>& seen) {
  CutRows cut;
  cut.row_offsets.reserve(rows.size() + 1);
  cut.row_offsets.push_back(0);
  cut.begins.reserve(rows.size());
  for (const int32_t row : rows) {
    const int64_t begin = Offset(matrix, row), end = Offset(matrix, row + 1);
    cut.begins.push_back(begin);
    cut.row_offsets.push_back(cut.row_offsets.back() + end - begin);
    for (int64_t i = begin; i < end; ++i) {
      int32_t& mark = seen[static_cast<size_t>(matrix.column_indices[static_cast<size_t>(i)])];
      if (mark == 0) cut.columns.push_back(matrix.column_indices[static_cast<size_t>(i)]);
      mark = 1;
    }
  }
  OrderColumns(operand, seen, cut.columns);
  for (size_t j = 0; j < cut.columns.size(); ++j) {
    seen[static_cast<size_t>(cut.columns[j])] = static_cast<int32_t>(j);
  }
  cut.column_indices.reserve(static_cast<size_t>(cut.row_offsets.back()));
  for (const int32_t row : rows) {
    for (int64_t i = Offset(matrix, row); i < Offset(matrix, row + 1); ++i) {
      const int32_t column = matrix.column_indices[static_cast<size_t>(i)];
      cut.column_indices.push_back(seen[static_cast<size_t>(column)]);
    }
  }
  for (const int32_t column : cut.columns) seen[static_cast<size_t>(column)] = 0;
  return cut;
}

}  // namespace client
}  // namespace sparsed
