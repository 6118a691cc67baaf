// What the row-wise kernels share: vectors of operand elements, how elements become numbers to
// compute with, and groups of neighbouring lanes that work on one operand row together.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/problem.h"

namespace sparsed::cuda {

/// kWidth elements, loaded and stored by one instruction.
template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Vector {
  T at[kWidth];
};

/// Column blocks, the narrowest of 16 elements, are at most 65,535 in a grid.
constexpr int64_t kMostSpmmWidth = int64_t{1} << 20;

/// Elements in 16 bytes.
template <typename T>
constexpr int kWidest = static_cast<int>(16 / sizeof(T));

template <typename T, int kWidth>
__device__ inline Vector<T, kWidth> LoadVector(const T* from) {
  using Whole = std::conditional_t<sizeof(T) * kWidth == 16, uint4, uint2>;
  if constexpr (kIsHalf<T> && sizeof(T) * kWidth == sizeof(Whole)) {
    const Whole loaded = *reinterpret_cast<const Whole*>(from);
    Vector<T, kWidth> vector;
    __builtin_memcpy(&vector, &loaded, sizeof(vector));
    return vector;
  } else {
    return *reinterpret_cast<const Vector<T, kWidth>*>(from);
  }
}

/// Bytes of SumOf the type.
inline size_t SumSize(ElementType type) { return type == ElementType::kF64 ? 8 : 4; }

/// An element as it is computed with.
__device__ inline float Widen(Float16 x) { return __half2float(__ushort_as_half(x.bits)); }
__device__ inline float Widen(BFloat16 x) { return __uint_as_float(uint32_t{x.bits} << 16); }
__device__ inline float Widen(float x) { return x; }
__device__ inline double Widen(double x) { return x; }

/// The element nearest to x.
template <typename T>
__device__ inline T Narrow(SumOf<T> x) {
  if constexpr (kIsHalf<T>) {
    T narrow;
    if constexpr (std::is_same_v<T, Float16>) {
      narrow.bits = __half_as_ushort(__float2half_rn(x));
    } else {
      narrow.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
    }
    return narrow;
  } else {
    return x;
  }
}

/// Through the read-only path.
template <typename T>
__device__ inline T ReadOnly(const T* from) {
  if constexpr (kIsHalf<T>) {
    T element;
    element.bits = __ldg(&from->bits);
    return element;
  } else {
    return __ldg(from);
  }
}

/// What is read or written once, and leaves the caches to what is read again.
template <typename T>
__device__ inline T ReadOnce(const T* from) {
  if constexpr (kIsHalf<T>) {
    T element;
    element.bits = __ldcs(&from->bits);
    return element;
  } else {
    return __ldcs(from);
  }
}
template <typename T>
__device__ inline void WriteOnce(T* to, T element) {
  if constexpr (kIsHalf<T>) {
    __stcs(&to->bits, element.bits);
  } else {
    __stcs(to, element);
  }
}

/// The lanes of this thread's group of kGroup (a power of two) within its warp.
template <int kGroup>
__device__ inline unsigned GroupMask() {
  if constexpr (kGroup == 32) {
    return 0xffffffffu;
  } else {
    return ((1u << kGroup) - 1) << ((threadIdx.x % 32) / kGroup * kGroup);
  }
}

/// Whether rows of this matrix can be read 16 bytes at a time.
template <typename T>
bool RowsAreWide(const void* data, int64_t leading_dimension, int64_t k) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && leading_dimension % kWidest<T> == 0 &&
         k % kWidest<T> == 0;
}

#if __CUDA_ARCH__ >= 900
constexpr bool kAddsVectors = true;
#else
constexpr bool kAddsVectors = false;
#endif

/// Adds to kWidth elements in global memory atomically, each by itself: two or four floats by one
/// instruction where the hardware has it. `to` is aligned to all of them.
template <typename T, int kWidth>
__device__ inline void AtomicAddVector(T* to, const Vector<T, kWidth>& sum) {
  if constexpr (kAddsVectors && sizeof(T) == 4 && (kWidth == 2 || kWidth == 4)) {
#if __CUDA_ARCH__ >= 900
    if constexpr (kWidth == 4) {
      atomicAdd(reinterpret_cast<float4*>(to),
                make_float4(sum.at[0], sum.at[1], sum.at[2], sum.at[3]));
    } else {
      atomicAdd(reinterpret_cast<float2*>(to), make_float2(sum.at[0], sum.at[1]));
    }
#endif
  } else {
    for (int j = 0; j < kWidth; ++j) atomicAdd(to + j, sum.at[j]);
  }
}

/// First index in [low, high) whose value exceeds `value`, or high.
__device__ inline int64_t UpperBound(const int64_t* sorted, int64_t low, int64_t high,
                                     int64_t value) {
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (sorted[middle] <= value) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace sparsed::cuda
