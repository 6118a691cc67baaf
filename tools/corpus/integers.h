// Roots in integers: the same on every machine.
#pragma once

#include <cmath>
#include <cstdint>

namespace sparsed::corpus {

/// The largest number whose square is not above x.
inline uint64_t SquareRoot(uint64_t x) {
  auto root = static_cast<uint64_t>(std::sqrt(static_cast<double>(x)));
  while (root > 0 && root > x / root) --root;
  while (root + 1 <= x / (root + 1)) ++root;
  return root;
}

/// The largest number whose cube is not above x, which is below 2^60.
inline uint64_t CubeRoot(uint64_t x) {
  uint64_t root = 0;
  for (uint64_t bit = uint64_t{1} << 19; bit > 0; bit >>= 1) {
    const uint64_t larger = root + bit;
    if (larger * larger * larger <= x) root = larger;
  }
  return root;
}

}  // namespace sparsed::corpus
