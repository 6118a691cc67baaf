// A matrix's rows, cut into shards.
#pragma once

#include <cstdint>
#include <span>
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

/// The first row of each shard, and behind the last: at least one row each, of consecutive ones
/// with as many nonzeros as whole rows allow. 1 <= shards <= rows.
std::vector<int64_t> CutByNonzeros(const CsrView& matrix, int shards);

/// The rows of each shard, ascending. INVALID_ARGUMENT unless `partition` says one of [0, shards)
/// for each row, and none of them has none.
absl::StatusOr<std::vector<std::vector<int32_t>>> CutByPartition(std::span<const int32_t> partition,
                                                                 int64_t rows, int shards);

/// Rows of a matrix, and of its columns those that they name, ascending: column j of the shard is
/// column columns[j] of the whole. A row's nonzeros are in the order that they had.
struct CutRows {
  std::vector<int64_t> row_offsets;
  std::vector<int32_t> column_indices;
  std::vector<int32_t> columns;
  /// Where each row's nonzeros begin in the whole.
  std::vector<int64_t> begins;
};
/// `rows`: which, ascending. `seen`: of the whole's columns, all 0; it is left so.
CutRows Cut(const CsrView& matrix, std::span<const int32_t> rows, std::vector<int32_t>& seen);

}  // namespace client
}  // namespace sparsed
