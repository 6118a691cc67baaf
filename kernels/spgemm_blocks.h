// How a SpGEMM result, whose size is not known before, is computed in memory of a known size: block
// of rows by block of rows into scratch with room for each row's bound, then moved together.
//
//   analyse(...)                                          row_bounds
//   for (int64_t row = 0; row < M; row = block.end) {
//     block = NextRowBlock(row_bounds, row, RowBlockEntries(threads));
//     entries = PlaceRowBlock(row_bounds, block, row_begin);
//     numeric(..., block, row_begin, columns, values, row_nnz);      scratch of `entries`
//     nnz = CompactRowBlock(...);                                    into the result, or in place
//   }
#pragma once

#include <cstdint>
#include <span>

#include "kernels/array.h"
#include "kernels/problem.h"

namespace sparsed {

/// Entries of scratch that a block should have. For one thread: few enough to be still in its cache
/// when they are moved. For a team: so many that waiting for the last one at the end of each block
/// does not count, even where other programs take processors away for a while.
constexpr int64_t RowBlockEntries(int threads) {
  return threads == 1 ? int64_t{1} << 18 : int64_t{1} << 21;
}

/// Rows that a block has at most, however short they are: a row takes memory, too.
inline constexpr int64_t kMaxBlockRows = int64_t{1} << 18;

/// At most kMaxBlockRows rows from `begin` on whose bounds add up to at most `max_entries`; a
/// single row if the first one alone exceeds that (a row's bound is at most N). Empty at the end.
RowRange NextRowBlock(std::span<const int64_t> row_bounds, int64_t begin, int64_t max_entries);

/// row_begin[i] = the position of row block.begin + i if each row takes its bound;
/// row_begin[block size] = all of them, which is returned. `row_begin` has a row more than the
/// block.
int64_t PlaceRowBlock(std::span<const int64_t> row_bounds, RowRange block,
                      std::span<int64_t> row_begin);

/// A block as SpgemmKernel::numeric left it: row i has row_nnz[i] entries from row_begin[i] on.
struct RowBlock {
  std::span<const int64_t> row_begin;
  std::span<const int64_t> row_nnz;
  const int32_t* column_indices;
  const void* values;
  ElementType type;
};

/// Copies the rows one after the other to `column_indices` and `values`, which are either the
/// block's own arrays (moved in place) or overlap them nowhere. Returns their entries.
int64_t CompactRowBlock(const RowBlock& block, int threads, int32_t* column_indices, void* values);

}  // namespace sparsed
