// Rows of C in bins by how many entries they may have, and what more than one kernel does with such
// bins: the analysis, the lists, and the kernels over short and over long rows.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/spgemm/host.h"
#include "kernels/cuda/spgemm/products.cuh"
#include "kernels/cuda/spgemm/semirings.cuh"

namespace sparsed::cuda {

constexpr int kBins = 8, kLists = kBins / 2;
/// The most entries of a row of the four bins of short rows, and of those that a small block adds
/// up.
constexpr int kTinyRow = 16, kSmallRow = 32, kShortRow = 64, kFairRow = 128, kMiddleRow = 1024;
/// The bins of longer rows.
constexpr int kMiddleBin = 4, kLongBin = 5, kLastBin = 6;
/// Of rows that a kernel finds it has no room for.
constexpr int kSpareBin = 7;

/// A row is in the first bin where it has no more entries and no more nonzeros in S: few threads
/// are not to walk through many rows of T.
struct BinLimits {
  int32_t entries[kLastBin], nonzeros[kLastBin];
};

/// Rows of a range by bin; row numbers count from the range's first.
struct Bins {
  int32_t* sizes;  ///< kBins
  int32_t* next;   ///< of each bin: the place of the next row that nobody has taken
  int32_t* lists;  ///< two bins in each, from its beginning and from its end
  int64_t capacity;

  /// The i-th row of a bin.
  __device__ int32_t& Row(int bin, int32_t i) const {
    return lists[bin / 2 * capacity + (bin % 2 == 0 ? i : capacity - 1 - i)];
  }
};

/// What rows are computed and where they go.
template <typename T>
struct Rows {
  SparsePair<T> pair;
  int64_t first;             ///< row 0 of the lists
  const int64_t* row_begin;  ///< where rows go; numeric only
  int32_t* columns;
  T* values;
  int64_t* row_nnz;
};

/// The first and the last column that a row of C may have; none: INT32_MAX and -1.
struct ColumnRange {
  int32_t least, most;
};

/// Of the row whose nonzeros are [begin, end), for teams that fill their warp.
template <int kLanes>
__device__ inline ColumnRange RangeOf(const int32_t* s_columns, const int64_t* t_offsets,
                                      const int32_t* t_columns, int64_t begin, int64_t end) {
  ColumnRange range = {INT32_MAX, -1};
  for (int64_t j = begin + threadIdx.x % kLanes; j < end; j += kLanes) {
    const int32_t k = __ldg(s_columns + j);
    const int64_t start = __ldg(t_offsets + k), stop = __ldg(t_offsets + k + 1);
    if (start == stop) continue;
    range.least = min(range.least, __ldg(t_columns + start));
    range.most = max(range.most, __ldg(t_columns + stop - 1));
  }
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    range.least = min(range.least, __shfl_xor_sync(0xffffffffu, range.least, distance, kLanes));
    range.most = max(range.most, __shfl_xor_sync(0xffffffffu, range.most, distance, kLanes));
  }
  return range;
}

/// SpgemmKernel::workspace: room for the lists of all rows.
size_t BinnedRowsWorkspace(const Problem& problem, const SpgemmArguments& arguments, int threads);

/// SpgemmKernel::analyse. A row of many products is bounded by what lies between its columns, too.
absl::Status AnalyseRows(const Context& context, const SpgemmArguments& arguments,
                         std::span<int64_t> row_bounds, int64_t* products);
/// The same by products and columns of C alone, which is quicker.
absl::Status CountProducts(const Context& context, const SpgemmArguments& arguments,
                           std::span<int64_t> row_bounds, int64_t* products);

/// Puts `count` rows into bins by entries: row_begin[i + 1] - row_begin[i], or without it
/// row_nnz[i]. Rows without any are done by this. Queued; `workspace` has the lists.
template <typename T>
cudaError_t FillBins(const Context& context, const Rows<T>& rows, int64_t count,
                     const BinLimits& limits, Bins* bins);

/// Computes, or counts, the rows of the bins before `end_bin`, at most four; queued. Of each of
/// these launches there are <SumProduct<float>, false> and, with true, sums of products and least
/// sums of both types.
template <typename Semiring, bool kNumeric>
cudaError_t LaunchShortRows(cudaStream_t stream, const Rows<typename Semiring::Element>& rows,
                            int64_t count, const Bins& bins, int end_bin);
/// ... of kMiddleBin.
template <typename Semiring, bool kNumeric>
cudaError_t LaunchMiddleRows(cudaStream_t stream, const Rows<typename Semiring::Element>& rows,
                             int64_t count, const Bins& bins);
/// ... of the bins from `bin` down to `last_bin`.
template <typename Semiring, bool kNumeric>
cudaError_t LaunchLongRows(cudaStream_t stream, const Rows<typename Semiring::Element>& rows,
                           int64_t count, const Bins& bins, int bin, int last_bin);

template <typename T>
Rows<T> RowsOf(const SpgemmArguments& arguments, RowRange range) {
  Rows<T> rows = {};
  rows.pair = PairOf<T>(arguments);
  rows.first = range.begin;
  return rows;
}
template <typename T>
Rows<T> RowsOf(const RowsCall& call) {
  Rows<T> rows = RowsOf<T>(call.arguments, call.range);
  rows.row_begin = call.row_begin.data();
  rows.columns = call.column_indices;
  rows.values = static_cast<T*>(call.values);
  rows.row_nnz = call.row_nnz.data();
  return rows;
}

/// A grid that fills the device, and no more blocks than the rows ask for; of many rows so many
/// that each ends soon: what has a higher priority starts when blocks end.
inline unsigned BlocksForRows(int64_t rows, int64_t for_each_multiprocessor,
                              int64_t rows_of_block) {
  constexpr int64_t kMostTurns = 64;
  const int64_t turns = (rows + rows_of_block - 1) / rows_of_block;
  const int64_t fill = Multiprocessors() * for_each_multiprocessor;
  return static_cast<unsigned>(std::min(std::max(fill, turns / kMostTurns), turns));
}

}  // namespace sparsed::cuda
