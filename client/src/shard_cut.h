// A matrix's rows, cut into shards.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sparsed/types.h"

namespace sparsed {
inline namespace client {

/// As UploadOptions says.
inline constexpr int kMostShards = 1024;

/// INVALID_ARGUMENT unless offsets ascend from 0 to the nonzeros and columns are in range: what is
/// cut is read through both.
absl::Status CheckCut(const CsrView& matrix);

/// Those of a row, [begin, end), of a matrix that CheckCut finds right.
std::pair<int64_t, int64_t> NonzerosOf(const CsrView& matrix, int64_t row);

/// The first row of each shard, and behind the last: at least one row each, of consecutive ones
/// with as many nonzeros as whole rows allow. 1 <= shards <= rows.
std::vector<int64_t> CutByNonzeros(const CsrView& matrix, int shards);

/// The rows of each shard, ascending. INVALID_ARGUMENT unless `partition` says one of [0, shards)
/// for each row, and none of them has none.
absl::StatusOr<std::vector<std::vector<int32_t>>> CutByPartition(std::span<const int32_t> partition,
                                                                 int64_t rows, int shards);

/// Rows of a matrix, and of its columns those that they name: column j of the shard is column
/// columns[j] of the whole. A row's nonzeros are in the order that they had.
struct CutRows {
  std::vector<int64_t> row_offsets;
  std::vector<int32_t> column_indices;
  std::vector<int32_t> columns;
  /// Where each row's nonzeros begin in the whole.
  std::vector<int64_t> begins;
};
/// Rows of operands that stay on the nodes, by the whole's columns.
struct OperandRows {
  std::span<const int32_t> own;  ///< the shard's node has these
  /// Where each row is: they ascend by the shard whose node has it, and by its number there.
  std::span<const double> places;
};
/// `rows`: which, ascending. `seen`: of the whole's columns, all 0; it is left so.
///
/// If at least half of the node's own rows are named, and no more others than it has: all of the
/// own ones are columns, and columns are in the order of places. So an operand is the rows that the
/// node has, with others above and below, and none of its own is copied. Else columns ascend.
CutRows Cut(const CsrView& matrix, std::span<const int32_t> rows, const OperandRows& operand,
            std::vector<int32_t>& seen);

}  // namespace client
}  // namespace sparsed
