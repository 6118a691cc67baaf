// Passes over the values of each row's nonzeros, of one head or several: short rows have a warp
// each, long ones a block. Each lane is of one head; heads are taken 32 at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/cuda/lanes.cuh"

namespace sparsed::cuda {

/// Of a row: what a warp goes over in 32 steps. Longer ones would keep their warp when all others
/// are done.
constexpr int64_t kLongPass = 1024;
constexpr int kPassWarps = 8;  ///< of a block
constexpr int kPassThreads = kPassWarps * 32;

/// A plain sum, as passes find one.
template <typename W>
struct Summed {
  W sum;

  __device__ void Add(W number) { sum += number; }
  __device__ void Merge(const Summed& other) { sum += other.sum; }
  __device__ static Summed None() { return {0}; }
};

template <typename S>
__device__ inline S FromLane(const S& mine, int lane_mask) {
  S other;
  static_assert(sizeof(S) % 4 == 0);
  const auto* const from = reinterpret_cast<const unsigned*>(&mine);
  auto* const to = reinterpret_cast<unsigned*>(&other);
#pragma unroll
  for (size_t i = 0; i < sizeof(S) / 4; ++i) to[i] = __shfl_xor_sync(~0U, from[i], lane_mask);
  return other;
}

/// How the lanes of a warp share nonzeros and heads: lane l is of head l % lanes, and of every
/// (32 / lanes)-th nonzero.
struct PassHeads {
  int heads;
  int shift;  // the lanes are a power of two

  __device__ int lanes() const { return 1 << shift; }
  __device__ int64_t head() const {
    return static_cast<int64_t>(blockIdx.y) * 32 + (threadIdx.x & (lanes() - 1));
  }
  __device__ bool inside() const { return head() < heads; }
};

/// All of a warp's of one head, in every lane of that.
template <typename S>
__device__ inline S OverWarp(S mine, int lanes) {
  for (int mask = 16; mask >= lanes; mask /= 2) mine.Merge(FromLane(mine, mask));
  return mine;
}

/// All of a block's. The block may use `shared` again when all have returned.
template <typename S>
__device__ inline S OverBlock(S mine, int lanes, S (*shared)[32]) {
  mine = OverWarp(mine, lanes);
  __syncthreads();
  shared[threadIdx.x / 32][threadIdx.x % 32] = mine;
  __syncthreads();
  S all = shared[0][threadIdx.x % 32];
  for (int i = 1; i < kPassWarps; ++i) all.Merge(shared[i][threadIdx.x % 32]);
  return all;
}

/// A row, by a warp or a block: `width` threads, this one number `at`. `work.Find` looks at a
/// nonzero, `work.Write` writes what became of it, `work.WriteRow` that of the row.
template <bool kBlock, typename Work>
__device__ inline void PassOver(int64_t row, int64_t begin, int64_t end, int at, int width,
                                const PassHeads& heads, const Work& work,
                                typename Work::Found (*shared)[32]) {
  using Found = typename Work::Found;
  const int64_t head = heads.head();
  const int64_t first = begin + (at >> heads.shift), step = width >> heads.shift;
  Found found = Found::None();
  if (heads.inside()) {
    for (int64_t i = first; i < end; i += step) work.Find(i, head, found);
  }
  if constexpr (kBlock) {
    found = OverBlock(found, heads.lanes(), shared);
  } else {
    found = OverWarp(found, heads.lanes());
  }
  if (!heads.inside()) return;
  if constexpr (Work::kOfRows) {
    if (at < heads.lanes()) work.WriteRow(row, head, found);
  } else {
    for (int64_t i = first; i < end; i += step) work.Write(i, head, found);
  }
}

template <typename Work>
__global__ void __launch_bounds__(kPassThreads)
    ShortRows(const int64_t* offsets, int64_t rows, const PassHeads heads, const Work work) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kPassWarps + threadIdx.x / 32;
  if (row >= rows) return;
  const int64_t begin = offsets[row], end = offsets[row + 1];
  if (end - begin > kLongPass) return;
  PassOver<false>(row, begin, end, threadIdx.x % 32, 32, heads, work, nullptr);
}

/// A block's rows are far apart, since long ones often are neighbours.
template <typename Work>
__global__ void __launch_bounds__(kPassThreads)
    LongRows(const int64_t* offsets, int64_t rows, const PassHeads heads, const Work work) {
  __shared__ typename Work::Found shared[kPassWarps][32];
  __shared__ unsigned found_long[kPassWarps];
  for (int64_t base = blockIdx.x; base < rows;
       base += static_cast<int64_t>(gridDim.x) * kPassThreads) {
    const int64_t own = base + static_cast<int64_t>(threadIdx.x) * gridDim.x;
    const bool is_long = own < rows && offsets[own + 1] - offsets[own] > kLongPass;
    const unsigned longs = __ballot_sync(~0U, is_long);
    __syncthreads();
    if (threadIdx.x % 32 == 0) found_long[threadIdx.x / 32] = longs;
    __syncthreads();
    for (int warp = 0; warp < kPassWarps; ++warp) {
      for (unsigned left = found_long[warp]; left != 0; left &= left - 1) {
        const int number = warp * 32 + __ffs(static_cast<int>(left)) - 1;
        const int64_t row = base + static_cast<int64_t>(number) * gridDim.x;
        PassOver<true>(row, offsets[row], offsets[row + 1], threadIdx.x, kPassThreads, heads, work,
                       shared);
      }
    }
  }
}

/// Of one row or more and one head or more.
template <typename Work>
cudaError_t LaunchPass(cudaStream_t stream, std::span<const int64_t> row_offsets, int64_t heads,
                       const Work& work) {
  const auto rows = static_cast<int64_t>(row_offsets.size()) - 1;
  PassHeads shared = {static_cast<int>(heads), 0};
  while (shared.shift < 5 && int64_t{1} << shared.shift < heads) ++shared.shift;
  const auto of_heads = static_cast<unsigned>((heads + 31) / 32);
  const auto blocks = static_cast<unsigned>((rows + kPassWarps - 1) / kPassWarps);
  ShortRows<<<dim3(blocks, of_heads), kPassThreads, 0, stream>>>(row_offsets.data(), rows, shared,
                                                                 work);
  // Most blocks find no long row among theirs: as few as look at a row a thread, but some for each
  // multiprocessor.
  const auto most = static_cast<unsigned>(
      std::min(rows, std::max<int64_t>((rows + kPassThreads - 1) / kPassThreads, 512)));
  LongRows<<<dim3(most, of_heads), kPassThreads, 0, stream>>>(row_offsets.data(), rows, shared,
                                                              work);
  return cudaGetLastError();
}

}  // namespace sparsed::cuda
