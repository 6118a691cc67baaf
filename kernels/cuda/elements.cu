#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/cuda/elements.h"
#include "kernels/cuda/lanes.cuh"

namespace sparsed::cuda {
namespace {

__global__ void NarrowEach(const int64_t* from, int32_t* to, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) to[i] = static_cast<int32_t>(from[i]);
}

__global__ void Compose(const int32_t* outer, const int32_t* inner, int32_t* to, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) to[i] = outer[inner[i]];
}

template <typename T>
__global__ void Multiply(const T* by, T* to, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) to[i] = Narrow<T>(Widen(to[i]) * Widen(by[i]));
}

template <typename Index, typename T>
__global__ void Gather(const Index* source, const T* from, T* to, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const Index at = __ldcs(source + i);
  to[i] = at < 0 ? T{} : from[at];
}

template <typename T>
__global__ void Scatter(const int64_t* order, const T* from, T* to, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) to[__ldcs(order + i)] = from[i];
}

/// Words of `words` a row, which lie so many words apart; a thread has one of them.
template <bool kScatters, typename Word>
__global__ void MoveRows(const int64_t* order, int64_t rows, int words, const Word* from,
                         int64_t from_pitch, Word* to, int64_t to_pitch) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= rows * words) return;
  const int64_t row = i / words, word = i % words;
  const int64_t other = __ldg(order + row);
  to[(kScatters ? other : row) * to_pitch + word] =
      from[(kScatters ? row : other) * from_pitch + word];
}

/// By the widest words that all rows consist of.
template <bool kScatters>
cudaError_t LaunchMoveRows(cudaStream_t stream, std::span<const int64_t> order, ElementType type,
                           const ConstDense& from, const Dense& to) {
  const auto size = static_cast<int64_t>(SizeOf(type));
  const auto rows = static_cast<int64_t>(order.size());
  const auto move = [&]<typename Word>(Word) {
    constexpr auto kBytes = static_cast<int64_t>(sizeof(Word));
    const int64_t words = to.cols * size / kBytes;
    const int64_t blocks = (rows * words + 255) / 256;
    if (words > std::numeric_limits<int32_t>::max() ||
        blocks > std::numeric_limits<int32_t>::max()) {
      return cudaErrorInvalidConfiguration;
    }
    MoveRows<kScatters><<<static_cast<unsigned>(blocks), 256, 0, stream>>>(
        order.data(), rows, static_cast<int>(words), static_cast<const Word*>(from.data),
        from.leading_dimension * size / kBytes, static_cast<Word*>(to.data),
        to.leading_dimension * size / kBytes);
    return cudaGetLastError();
  };
  const auto all = static_cast<uint64_t>(to.cols * size) |
                   static_cast<uint64_t>(from.leading_dimension * size) |
                   static_cast<uint64_t>(to.leading_dimension * size) |
                   reinterpret_cast<uintptr_t>(from.data) | reinterpret_cast<uintptr_t>(to.data);
  if (all % 16 == 0) return move(uint4{});
  if (all % 8 == 0) return move(uint2{});
  if (all % 4 == 0) return move(uint32_t{});
  return move(uint16_t{});
}

struct Terms {
  int count;
  const void* data[kMostTerms];
  int64_t leading_dimension[kMostTerms];
  double factor[kMostTerms];
};

/// kWidth columns a thread; the grid's y goes over rows.
template <typename T, int kWidth>
__global__ void Sum(const __grid_constant__ Terms terms, int64_t rows, int64_t vectors, T* to,
                    int64_t to_leading_dimension) {
  using Columns = Vector<T, kWidth>;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (first >= vectors) return;
  for (int64_t row = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; row < rows;
       row += static_cast<int64_t>(gridDim.y) * blockDim.y) {
    SumOf<T> sums[kWidth] = {};
    for (int term = 0; term < terms.count; ++term) {
      const T* const from =
          static_cast<const T*>(terms.data[term]) + row * terms.leading_dimension[term];
      const auto factor = static_cast<SumOf<T>>(terms.factor[term]);
      const Columns some = reinterpret_cast<const Columns*>(from)[first];
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sums[i] += factor * Widen(some.at[i]);
    }
    Columns result;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) result.at[i] = Narrow<T>(sums[i]);
    reinterpret_cast<Columns*>(to + row * to_leading_dimension)[first] = result;
  }
}

template <typename T, int kWidth>
void LaunchSum(cudaStream_t stream, const Terms& terms, const Dense& to) {
  const int64_t vectors = to.cols / kWidth;
  dim3 threads(1, 256);
  while (threads.x < 256 && threads.x < vectors) {
    threads.x *= 2;
    threads.y /= 2;
  }
  const dim3 blocks(
      static_cast<unsigned>((vectors + threads.x - 1) / threads.x),
      static_cast<unsigned>(std::min<int64_t>((to.rows + threads.y - 1) / threads.y, 65535)));
  Sum<T, kWidth><<<blocks, threads, 0, stream>>>(terms, to.rows, vectors, static_cast<T*>(to.data),
                                                 to.leading_dimension);
}

}  // namespace

cudaError_t WeightedSum(cudaStream_t stream, std::span<const WeightedTerm> terms, ElementType type,
                        const Dense& to) {
  const bool no_gaps =
      to.leading_dimension == to.cols && std::ranges::all_of(terms, [&](const WeightedTerm& term) {
        return term.dense.leading_dimension == to.cols;
      });
  const Dense shape = no_gaps ? Dense{to.data, 1, to.rows * to.cols, to.rows * to.cols} : to;
  Terms all = {};
  all.count = static_cast<int>(terms.size());
  const auto widest = static_cast<int64_t>(16 / SizeOf(type));
  const auto divides = [&](const void* data, int64_t leading_dimension) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && leading_dimension % widest == 0;
  };
  bool wide = shape.cols % widest == 0 && divides(to.data, shape.leading_dimension);
  for (size_t i = 0; i < terms.size(); ++i) {
    all.data[i] = terms[i].dense.data;
    all.leading_dimension[i] = no_gaps ? shape.leading_dimension : terms[i].dense.leading_dimension;
    all.factor[i] = terms[i].factor;
    wide = wide && divides(all.data[i], all.leading_dimension[i]);
  }
  VisitFloat(type, [&]<typename T>(T) {
    if (wide) {
      LaunchSum<T, kWidest<T>>(stream, all, shape);
    } else {
      LaunchSum<T, 1>(stream, all, shape);
    }
  });
  return cudaGetLastError();
}

cudaError_t ScatterElements(cudaStream_t stream, ElementType type, const int64_t* order,
                            const void* from, void* to, int64_t count) {
  VisitFloat(type, [&]<typename T>(T) {
    Scatter<<<static_cast<unsigned>((count + 255) / 256), 256, 0, stream>>>(
        order, static_cast<const T*>(from), static_cast<T*>(to), count);
  });
  return cudaGetLastError();
}

cudaError_t GatherRows(cudaStream_t stream, std::span<const int64_t> order, ElementType type,
                       const ConstDense& from, const Dense& to) {
  return LaunchMoveRows<false>(stream, order, type, from, to);
}

cudaError_t ScatterRows(cudaStream_t stream, std::span<const int64_t> order, ElementType type,
                        const ConstDense& from, const Dense& to) {
  return LaunchMoveRows<true>(stream, order, type, from, to);
}

cudaError_t GatherElements(cudaStream_t stream, ElementType type, const Array& source,
                           const void* from, void* to, int64_t count) {
  const auto blocks = static_cast<unsigned>((count + 255) / 256);
  VisitFloat(type, [&]<typename T>(T) {
    const auto* const elements = static_cast<const T*>(from);
    if (source.type == ElementType::kI32) {
      Gather<<<blocks, 256, 0, stream>>>(source.As<int32_t>().data(), elements, static_cast<T*>(to),
                                         count);
    } else {
      Gather<<<blocks, 256, 0, stream>>>(source.As<int64_t>().data(), elements, static_cast<T*>(to),
                                         count);
    }
  });
  return cudaGetLastError();
}

cudaError_t MultiplyElements(cudaStream_t stream, ElementType type, const void* by, void* to,
                             int64_t count) {
  VisitFloat(type, [&]<typename T>(T) {
    Multiply<<<static_cast<unsigned>((count + 255) / 256), 256, 0, stream>>>(
        static_cast<const T*>(by), static_cast<T*>(to), count);
  });
  return cudaGetLastError();
}

cudaError_t ComposeOrders(cudaStream_t stream, const int32_t* outer, const int32_t* inner,
                          int32_t* to, int64_t count) {
  Compose<<<static_cast<unsigned>((count + 255) / 256), 256, 0, stream>>>(outer, inner, to, count);
  return cudaGetLastError();
}

cudaError_t CheckKernelImage() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, NarrowEach);
}

cudaError_t NarrowOffsets(cudaStream_t stream, const int64_t* from, int32_t* to, int64_t count) {
  NarrowEach<<<static_cast<unsigned>((count + 255) / 256), 256, 0, stream>>>(from, to, count);
  return cudaGetLastError();
}

}  // namespace sparsed::cuda
