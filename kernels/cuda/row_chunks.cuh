// Long rows of CSR in chunks of equally many nonzeros, each of which a group of lanes finds the row
// of by a search, so that nothing is prepared (the splitting of long rows of RoDe, Pang et al.,
// PPoPP 2024).
#pragma once

#include <cstdint>

#include "kernels/cuda/lanes.cuh"
#include "kernels/layout.h"

namespace sparsed::cuda {

/// Nonzeros of a chunk for rows of K columns: enough chunks to fill the device, few enough to
/// search and store. Narrow rows need more of them, wide ones have a block for each column block of
/// every chunk.
inline int ChunkFor(int64_t nnz, int64_t k) {
  int chunk = k < 64 ? 64 : 128;
  while (chunk < 2048 && nnz / chunk > (k > 128 ? 8192 : 16384)) chunk *= 2;
  return chunk;
}

/// For groups that have more to do for a nonzero than to add its row: they take a row's nonzeros
/// one after the other, and the rest of the device waits for the last of them.
inline int ShortChunkFor(int64_t nnz) {
  int chunk = 32;
  while (chunk < 2048 && nnz / chunk > 32768) chunk *= 2;
  return chunk;
}

/// Whether a matrix of this size may have a row that is split, whatever is known of this one.
inline bool MayHaveSplitRows(const Layout& layout, int64_t chunk) {
  return layout.nnz > 2 * chunk && layout.cols > 2 * chunk;
}

/// Chunks of `chunk` nonzeros, a multiple of `round`, which is even: arrays of a number for each
/// keep what is behind them aligned. 0: no row is split.
inline int64_t ChunksOf(const Layout& layout, int64_t chunk, int64_t round) {
  const bool all_short = layout.longest_row >= 0 && layout.longest_row <= 2 * chunk;
  if (all_short || !MayHaveSplitRows(layout, chunk)) return 0;
  return ((layout.nnz + chunk - 1) / chunk + round - 1) / round * round;
}

// The row of a nonzero: every lane of the group probes one boundary a step.
template <int kGroup>
__device__ int64_t RowOf(const int64_t* row_offsets, int64_t rows, int64_t position, int lane) {
  const unsigned mask = GroupMask<kGroup>();
  int64_t low = 0, high = rows;  // row_offsets[low] <= position < row_offsets[high]
  while (high - low > 1) {
    const int64_t step = (high - low + kGroup) / (kGroup + 1);
    const int64_t probe = min(low + (lane + 1) * step, high);
    const int below = __popc(__ballot_sync(mask, row_offsets[probe] <= position) & mask);
    high = min(low + (below + 1) * step, high);
    low += below * step;
  }
  return low;
}

struct Span {
  int64_t begin, end;
};

// The part of a split row that belongs to a chunk: a row's part is the chunk that begins in it; its
// first chunk also takes what comes before. `p` has row_offsets, rows, nnz, chunk (nonzeros of one)
// and IsSplit (rows of more than two of them).
template <int kGroup, typename Product>
__device__ Span ChunkOf(const Product& p, int64_t chunk, int lane, int64_t* first_of,
                        int64_t* of_row = nullptr) {
  const int64_t position = chunk * p.chunk;
  *first_of = -1;
  if (position >= p.nnz) return {0, 0};
  const int64_t row = RowOf<kGroup>(p.row_offsets, p.rows, position, lane);
  if (of_row != nullptr) *of_row = row;
  const Span whole = {p.row_offsets[row], p.row_offsets[row + 1]};
  if (!p.IsSplit(whole.end - whole.begin)) return {0, 0};
  const bool first = whole.begin > position - p.chunk;
  if (first) *first_of = row;
  return {first ? whole.begin : position, min(position + p.chunk, whole.end)};
}

/// Of kernels that put the chunks of split rows together: their blocks are kMerging threads, each
/// 32 columns of the rows whose first chunk is among its 32.
constexpr int kMergers = 8;
constexpr dim3 kMerging(32, kMergers);
constexpr int kChunksPerBlock = 32;
inline dim3 MergingGrid(int64_t chunks, int64_t columns) {
  return {static_cast<unsigned>((chunks + kChunksPerBlock - 1) / kChunksPerBlock),
          static_cast<unsigned>((columns + 31) / 32)};
}

/// Rows of so many chunks have a warp of the block, others all of its warps.
constexpr int kFewChunks = 16;

/// Which of a row's chunks a warp takes: from `first` on every `step`-th, up to `last`.
struct Share {
  int64_t first, last;
  int step;
};

/// What all warps of a split row have, in the first of them: `merge(mine, other)` in their order.
/// True there, where it is then to be written.
template <typename One, typename Merge>
__device__ inline bool OverShares(const Share& share, One& mine, One (&shared)[kMergers][32],
                                  const Merge& merge) {
  if (share.step == 1) return true;
  shared[threadIdx.y][threadIdx.x] = mine;
  __syncthreads();
  if (threadIdx.y == 0) {
    for (int i = 1; i < kMergers; ++i) merge(mine, shared[i][threadIdx.x]);
  }
  __syncthreads();
  return threadIdx.y == 0;
}

/// Calls `visit(row, share)` with each of the block's rows: in one warp, or in all alike.
template <typename Product, typename Visit>
__device__ inline void ForEachSplitRow(const Product& p, const Visit& visit) {
  constexpr unsigned kWarp = 0xffffffffu;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kChunksPerBlock + threadIdx.x;
  const int64_t first_of = first < p.chunks ? p.first_of[first] : -1;
  const int64_t last = first_of < 0 ? first : (p.row_offsets[first_of + 1] - 1) / p.chunk;
  // The same in every warp.
  const unsigned few = __ballot_sync(kWarp, first_of >= 0 && last - first < kFewChunks);
  const unsigned many = __ballot_sync(kWarp, first_of >= 0 && last - first >= kFewChunks);
  const auto call = [&](unsigned rows, unsigned warp, int step) {
    const int next = __ffs(static_cast<int>(rows)) - 1;
    const int64_t begin = __shfl_sync(kWarp, first, next), end = __shfl_sync(kWarp, last, next);
    visit(__shfl_sync(kWarp, first_of, next), Share{begin + warp, end, step});
  };
  unsigned number = 0;
  for (unsigned rows = few; rows != 0; rows &= rows - 1) {
    if (number++ % kMergers == threadIdx.y) call(rows, 0, 1);
  }
  for (unsigned rows = many; rows != 0; rows &= rows - 1) call(rows, threadIdx.y, kMergers);
}

}  // namespace sparsed::cuda
