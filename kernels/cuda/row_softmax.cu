// Short rows have a warp each, long ones a block. A row is read twice, the second time from a
// cache, and written once.
#include <algorithm>

#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/row_softmax.h"

namespace sparsed::cuda {
namespace {

/// Of a row: what a warp goes over in 32 steps. Longer ones would keep their warp when all others
/// are done.
constexpr int64_t kLong = 1024;
constexpr int kWarps = 8;  ///< of a block
constexpr unsigned kMostBlocks = 1 << 16;

__device__ inline float Exp(float x) { return expf(x); }
__device__ inline double Exp(double x) { return exp(x); }

/// The greatest of some numbers, and the sum of exp(number - greatest).
template <typename W>
struct Softened {
  W greatest, sum;

  __device__ void Add(W number) {
    if (number == -static_cast<W>(INFINITY)) return;  // less than any other by as much as can be
    if (number <= greatest) {
      sum += Exp(number - greatest);
      return;
    }
    // Also a NaN, which stays, and infinity, which is no number afterwards: exp(0) is 1 otherwise.
    sum = sum * Exp(greatest - number) + Exp(number - number);
    greatest = number;
  }
  __device__ void Merge(const Softened& other) {
    if (other.sum == 0) return;
    if (sum == 0) {
      *this = other;
      return;
    }
    const W both = other.greatest <= greatest ? greatest : other.greatest;
    sum = sum * Exp(greatest - both) + other.sum * Exp(other.greatest - both);
    greatest = both;
  }
  __device__ static Softened None() { return {-static_cast<W>(INFINITY), 0}; }
};

/// A plain sum, with the same operations.
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

/// All of a warp's, in every lane.
template <typename S>
__device__ inline S OverWarp(S mine) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) mine.Merge(FromLane(mine, mask));
  return mine;
}

/// All of a block's, in every thread. The block may use `shared` again when all have returned.
template <typename S>
__device__ inline S OverBlock(S mine, S* shared) {
  mine = OverWarp(mine);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = mine;
  __syncthreads();
  S all = shared[0];
  for (int i = 1; i < kWarps; ++i) all.Merge(shared[i]);
  return all;
}

/// `Work::Find` looks at some nonzeros of a row, `Work::Write` writes them.
template <bool kLongRows, typename Work>
__global__ void __launch_bounds__(kWarps * 32)
    Rows(const int64_t* offsets, int64_t rows, Work work) {
  using Found = typename Work::Found;
  __shared__ Found shared[kWarps];
  const int64_t lane = kLongRows ? threadIdx.x : threadIdx.x % 32;
  const int64_t width = kLongRows ? kWarps * 32 : 32;
  const int64_t at_once = kLongRows ? gridDim.x : static_cast<int64_t>(gridDim.x) * kWarps;
  int64_t row =
      kLongRows ? blockIdx.x : static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  for (; row < rows; row += at_once) {
    const int64_t begin = offsets[row], end = offsets[row + 1];
    if ((end - begin > kLong) != kLongRows) continue;
    Found found = Found::None();
    for (int64_t i = begin + lane; i < end; i += width) work.Find(i, found);
    if constexpr (kLongRows) {
      found = OverBlock(found, shared);
    } else {
      found = OverWarp(found);
    }
    for (int64_t i = begin + lane; i < end; i += width) work.Write(i, found);
  }
}

template <typename T>
struct Softmax {
  using Found = Softened<SumOf<T>>;
  SumOf<T> scale;
  const T* x;
  T* y;

  __device__ void Find(int64_t i, Found& found) const { found.Add(scale * Widen(x[i])); }
  __device__ void Write(int64_t i, const Found& found) const {
    y[i] = Narrow<T>(Exp(scale * Widen(x[i]) - found.greatest) / found.sum);
  }
};

template <typename T>
struct SoftmaxGradient {
  using Found = Summed<SumOf<T>>;
  SumOf<T> scale;
  const T* y;
  const T* dy;
  T* dx;

  __device__ void Find(int64_t i, Found& found) const { found.Add(Widen(y[i]) * Widen(dy[i])); }
  __device__ void Write(int64_t i, const Found& found) const {
    dx[i] = Narrow<T>(scale * Widen(y[i]) * (Widen(dy[i]) - found.sum));
  }
};

template <typename Work>
cudaError_t Launch(cudaStream_t stream, std::span<const int64_t> row_offsets, const Work& work) {
  const auto rows = static_cast<int64_t>(row_offsets.size()) - 1;
  const auto blocks = [&](int64_t rows_a_block) {
    const int64_t all = (rows + rows_a_block - 1) / rows_a_block;
    return static_cast<unsigned>(std::min<int64_t>(all, kMostBlocks));
  };
  Rows<false><<<blocks(kWarps), kWarps * 32, 0, stream>>>(row_offsets.data(), rows, work);
  // Most blocks find no long row among theirs.
  Rows<true>
      <<<std::min(blocks(1), 4096U), kWarps * 32, 0, stream>>>(row_offsets.data(), rows, work);
  return cudaGetLastError();
}

}  // namespace

cudaError_t RowSoftmax(cudaStream_t stream, std::span<const int64_t> row_offsets, ElementType type,
                       double scale, const void* x, void* y) {
  return VisitFloat(type, [&]<typename T>(T) {
    return Launch(
        stream, row_offsets,
        Softmax<T>{static_cast<SumOf<T>>(scale), static_cast<const T*>(x), static_cast<T*>(y)});
  });
}

cudaError_t RowSoftmaxGradient(cudaStream_t stream, std::span<const int64_t> row_offsets,
                               ElementType type, double scale, const void* y, const void* dy,
                               void* dx) {
  return VisitFloat(type, [&]<typename T>(T) {
    return Launch(stream, row_offsets,
                  SoftmaxGradient<T>{static_cast<SumOf<T>>(scale), static_cast<const T*>(y),
                                     static_cast<const T*>(dy), static_cast<T*>(dx)});
  });
}

}  // namespace sparsed::cuda
