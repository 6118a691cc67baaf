// What SpGEMM kernels do with an entry of S, one of T and what an entry of C has so far: one type a
// semiring, for the accumulators' template parameters. With vectors: semiring-inl.h.
//
// Each has
//   Nothing()            what Add begins with
//   Untouched()          what a column of a dense window holds that no product has reached; its
//   bits
//                        are those of no sum that AddTouched makes
//   Multiply(s, t)
//   Add(sum, product)
//   AddTouched(sum, product)   as Add, to Untouched() or a sum that it made itself
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "hwy/base.h"

namespace sparsed::cpu {

/// Adding to -0.0 gives the product itself, and every sum ends with "+ 0.0", which turns -0.0 into
/// 0.0 and nothing else.
template <typename T>
struct SumProduct {
  static constexpr T Nothing() { return T{0}; }
  static constexpr T Untouched() { return T{-0.0}; }
  static HWY_INLINE T Multiply(T s, T t) { return s * t; }
  static HWY_INLINE T Add(T sum, T product) { return sum + product; }
  static HWY_INLINE T AddTouched(T sum, T product) { return (sum + product) + T{0}; }
};

/// Counts. They are above 0, and so are their bits.
template <typename T>
struct PlusPair {
  static constexpr T Nothing() { return T{0}; }
  static constexpr T Untouched() { return T{0}; }
  static HWY_INLINE T Multiply(T, T) { return T{1}; }
  static HWY_INLINE T Add(T sum, T product) { return sum + product; }
  static HWY_INLINE T AddTouched(T sum, T product) { return sum + product; }
};

/// Every entry is 1.
template <typename T>
struct Boolean {
  static constexpr T Nothing() { return T{0}; }
  static constexpr T Untouched() { return T{0}; }
  static HWY_INLINE T Multiply(T, T) { return T{1}; }
  static HWY_INLINE T Add(T, T product) { return product; }
  static HWY_INLINE T AddTouched(T, T product) { return product; }
};

/// A NaN gives way to whatever comes, so that C has one only where there is nothing else. What no
/// product has reached is a NaN with bits of its own; those that are products become the usual one.
template <typename T>
struct MinPlus {
  static constexpr T Nothing() {
    if constexpr (sizeof(T) == 4) {
      return std::bit_cast<T>(uint32_t{0x7fc5a5a5});
    } else {
      return std::bit_cast<T>(uint64_t{0x7ff85a5a5a5a5a5a});
    }
  }
  static constexpr T Untouched() { return Nothing(); }
  static HWY_INLINE T Multiply(T s, T t) { return s + t; }
  static HWY_INLINE T Add(T sum, T product) {
    if (product < sum) return product;
    if (!std::isnan(sum)) return sum;
    return std::isnan(product) ? std::numeric_limits<T>::quiet_NaN() : product;
  }
  static HWY_INLINE T AddTouched(T sum, T product) { return Add(sum, product); }
};

}  // namespace sparsed::cpu
