// The 16-bit floating point types: stored so, computed with as float.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

namespace sparsed {

/// IEEE 754 binary16.
struct Float16 {
  uint16_t bits = 0;

  Float16() = default;
  /// Rounded to nearest, ties to even; beyond 65504 infinite.
  explicit Float16(float value) {
    const uint32_t from = std::bit_cast<uint32_t>(value);
    const uint32_t sign = from >> 16 & 0x8000;
    const uint32_t magnitude = from & 0x7fffffff;
    if (magnitude > 0x7f800000) {  // NaN: stays one
      bits = static_cast<uint16_t>(sign | 0x7e00);
    } else if (magnitude >= 0x47800000) {  // 65536 and above
      bits = static_cast<uint16_t>(sign | 0x7c00);
    } else if (magnitude < 0x38800000) {  // below 2^-14: subnormal; the adder rounds at 2^-24
      const float rounded = std::bit_cast<float>(magnitude) + 0.5F;
      bits = static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(rounded) - 0x3f000000));
    } else {
      const uint32_t odd = magnitude >> 13 & 1;
      bits = static_cast<uint16_t>(sign | ((magnitude - 0x38000000 + 0xfff + odd) >> 13));
    }
  }
  explicit operator float() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
    const uint32_t exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
    if (exponent == 0) {  // zero or subnormal: a multiple of 2^-24
      const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
      return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
    }
    const uint32_t widened = exponent == 0x1f ? 0xff : exponent + 112;
    return std::bit_cast<float>(sign | widened << 23 | fraction << 13);
  }
};

/// The upper half of a float.
struct BFloat16 {
  uint16_t bits = 0;

  BFloat16() = default;
  /// Rounded to nearest, ties to even.
  explicit BFloat16(float value) {
    const uint32_t from = std::bit_cast<uint32_t>(value);
    if (value != value) {
      bits = static_cast<uint16_t>(from >> 16 | 0x40);
    } else {
      bits = static_cast<uint16_t>((from + 0x7fff + (from >> 16 & 1)) >> 16);
    }
  }
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
};

template <typename T>
inline constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

/// What kernels compute with elements of type T in: float for the 16-bit types, else T.
template <typename T>
using SumOf = std::conditional_t<kIsHalf<T>, float, T>;

}  // namespace sparsed
