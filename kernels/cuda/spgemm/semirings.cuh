// Semirings on the GPU: what a product is, what a sum of products begins with, and how it grows
// while several lanes add to it.
#pragma once

#include <limits>
#include <type_traits>

namespace sparsed::cuda {

template <typename T>
struct SumProduct {
  using Element = T;
  static constexpr bool kSums = true;
  __device__ static T Nothing() { return 0; }
  __device__ static T Product(T s, T t) { return s * t; }
  __device__ static void Add(T* sum, T product) { atomicAdd(sum, product); }
};

template <typename T>
struct PlusPair {
  using Element = T;
  static constexpr bool kSums = true;
  __device__ static T Nothing() { return 0; }
  __device__ static T Product(T /*s*/, T /*t*/) { return 1; }
  __device__ static void Add(T* sum, T product) { atomicAdd(sum, product); }
};

/// A NaN gives way to whatever comes.
template <typename T>
struct MinPlus {
  using Element = T;
  static constexpr bool kSums = true;
  using Bits = std::conditional_t<sizeof(T) == 4, unsigned, unsigned long long>;
  __device__ static T Nothing() { return std::numeric_limits<T>::quiet_NaN(); }
  __device__ static T Product(T s, T t) { return s + t; }
  __device__ static void Add(T* sum, T product) {
    auto* const bits = reinterpret_cast<Bits*>(sum);
    T seen = *sum;
    while (product < seen || (isnan(seen) && !isnan(product))) {
      Bits expected, wanted;
      __builtin_memcpy(&expected, &seen, sizeof(T));
      __builtin_memcpy(&wanted, &product, sizeof(T));
      const Bits found = atomicCAS(bits, expected, wanted);
      if (found == expected) break;
      __builtin_memcpy(&seen, &found, sizeof(T));
    }
  }
};

/// An entry is there or not.
template <typename T>
struct Boolean {
  using Element = T;
  static constexpr bool kSums = false;
};

}  // namespace sparsed::cuda
