// The 16-bit floating point types: stored and sent so, computed with as float.
#pragma once

#include <cstdint>

namespace sparsed {
inline namespace client {

/// IEEE 754 binary16: what NumPy calls float16 and CUDA half. Has its bits, and nothing else.
struct Float16 {
  uint16_t bits = 0;

  Float16() = default;
  /// Rounded once, to nearest, ties to even; from 65520 on infinite.
  explicit Float16(double value);
  /// Exact.
  operator float() const;
};

/// The upper half of a float: its range with 8 bits of precision.
struct BFloat16 {
  uint16_t bits = 0;

  BFloat16() = default;
  /// Rounded once, to nearest, ties to even.
  explicit BFloat16(double value);
  /// Exact.
  operator float() const;
};

}  // namespace client
}  // namespace sparsed
