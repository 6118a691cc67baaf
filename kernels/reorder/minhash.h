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

/// For rows[i] of `csr`, i in `range`: keys[b * stride + i] = a hash of the `bsize` minhashes of
/// band first_band + b, for b in [0, bands). Rows whose band agrees have the same key. bands *
/// bsize <= kMinHashLanes; every row has at least one nonzero.
void MinHashKeys(const CsrView& csr, std::span<const int32_t> rows, RowRange range, int first_band,
                 int bands, int bsize, int64_t stride, uint32_t* keys);

}  // namespace sparsed
