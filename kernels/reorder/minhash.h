// MinHash signatures of rows (Leskovec, Rajaraman, Ullman: Mining of Massive Datasets, 3.3 - 3.4),
// a few bands at a time.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/formats/csr.h"
#include "kernels/problem.h"

namespace sparsed {

/// Hashes that one pass over the nonzeros computes: a vector's worth.
inline constexpr int kMinHashLanes = 16;

/// One of the orders of all columns: a column is mixed once by a strong hash; an order is then an
/// exclusive-or and an odd multiplication of 32 bits, both bijections.
struct MinHash {
  /// The finaliser of MurmurHash3.
  static constexpr uint32_t Mix(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x85ebca6bU;
    x = (x ^ (x >> 13)) * 0xc2b2ae35U;
    return x ^ (x >> 16);
  }
  /// The key of a band so far (0: of none), with the next minimum.
  static constexpr uint32_t AddToKey(uint32_t key, uint32_t minimum) {
    return Mix(key * 31 + minimum);
  }

  constexpr explicit MinHash(uint32_t function)
      : flip(Mix(2 * function + 1)), factor(Mix(2 * function + 2) | 1) {}
  constexpr uint32_t operator()(uint32_t mixed) const { return (mixed ^ flip) * factor; }

  uint32_t flip, factor;
};

/// For rows[i] of `csr`, i in `range`: keys[b * stride + i] = a hash of the `bsize` minhashes of
/// band first_band + b, for b in [0, bands). Rows whose band agrees have the same key. bands *
/// bsize <= kMinHashLanes; every row has at least one nonzero.
void MinHashKeys(const CsrView& csr, std::span<const int32_t> rows, RowRange range, int first_band,
                 int bands, int bsize, int64_t stride, uint32_t* keys);

}  // namespace sparsed
