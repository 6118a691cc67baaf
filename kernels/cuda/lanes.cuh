// What the row-wise kernels share: vectors of operand elements, and groups of neighbouring lanes
// that work on one operand row together.
#pragma once

#include <cstdint>

#include "kernels/problem.h"

namespace sparsed::cuda {

/// kWidth elements, loaded and stored by one instruction.
template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Vector {
  T at[kWidth];
};

/// Elements in 16 bytes.
template <typename T>
constexpr int kWidest = static_cast<int>(16 / sizeof(T));

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
