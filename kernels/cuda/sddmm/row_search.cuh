// Which row an item belongs to, where consecutive items are cut into rows by offsets: a warp finds
// the rows of 32 items together.
#pragma once

#include <cstdint>

#include "kernels/cuda/lanes.cuh"

namespace sparsed::cuda {

/// Row r has items [begins[r], begins[r + 1]); begins[0] = 0, begins[rows] = items.
struct RowOffsets {
  const int64_t* begins;
  int rows;
  int64_t items;
};

constexpr int kStep = 32;                // items that a warp knows at once
constexpr unsigned kWarp = 0xffffffffu;  // all lanes

/// The row of item `position`, found by the whole warp: 32 places are looked at in each round.
__device__ inline int FindRow(const RowOffsets& s, int64_t position, int lane) {
  int low = 0, high = s.rows;  // begins[low] <= position < begins[high]
  while (high - low > 1) {
    const int step = (high - low - 1) / 32 + 1;
    const int64_t at = low + int64_t{lane} * step;
    const bool begins = at < high && s.begins[at] <= position;
    const int last = 31 - __clz(__ballot_sync(kWarp, begins));  // lane 0 always says yes
    low += last * step;
    high = high - low > step ? low + step : high;
  }
  return low;
}

/// Where row + lane ends, counted from item `begin`, for RowOf.
__device__ inline int RowEnd(const RowOffsets& s, int64_t begin, int row, int lane) {
  const int64_t end = __ldg(s.begins + min(row + 1 + lane, s.rows));
  return static_cast<int>(min(end - begin, int64_t{kStep}));
}

/// Of item begin + lane, if `row` is the row of `begin` or one before it. Behind the last item: any
/// row.
__device__ inline int RowOf(const RowOffsets& s, int64_t begin, int row, int row_end, int lane) {
  int ended = 0;  // rows that end before this lane's item
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    if (__shfl_sync(kWarp, row_end, ended + step - 1) <= lane) ended += step;
  }
  if (__shfl_sync(kWarp, row_end, ended) <= lane) ++ended;
  if (ended < 32 || begin + lane >= s.items) return min(row + ended, s.rows - 1);
  return static_cast<int>(UpperBound(s.begins, row + 33, s.rows, begin + lane)) - 1;
}

}  // namespace sparsed::cuda
