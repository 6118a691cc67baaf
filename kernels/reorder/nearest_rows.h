// Chains of rows, each the nearest of those left to one before it: the greedy searches of Mehrabi
// et al., section III, in near-linear time.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/formats/csr.h"
#include "kernels/pipeline.h"

namespace sparsed {

/// What decides between rows that are equally near.
enum class NearestTie : uint8_t {
  kRow,   ///< the lowest number
  kLoad,  ///< the load nearest to that of the row just before it, then the lowest number
  kWarp,  ///< the distance to the row `warps` before it, then the lowest number
};

struct NearestOptions {
  int64_t stride = 1;  ///< each row is the nearest to the one so many places before it
  NearestTie tie = NearestTie::kRow;
  int64_t warps = 32;    ///< for NearestTie::kWarp
  bool by_load = false;  ///< rows of a larger load come first, whatever their distance
};

/// Fills `sequence` with a permutation of the rows of `masks`: first `stride` rows of the least
/// load (of the largest, by load), then each the nearest to the row `stride` places before it, by
/// the Hamming distance of their column sets.
///
/// The exact search compares all pairs. Here rows of the same columns and load are one class. Each
/// column has a list of its classes, half of the lists in an order in which classes of equal
/// MinHash follow each other, half in the rows' own. The candidates for a place are, if the row
/// before has equals left, the first of these; otherwise the nearest few in each of its columns'
/// lists, on either side, that are left, and the classes of the fewest columns, which are the
/// nearest of those that share none. They are ranked by the columns in which they were met; if a
/// list was longer than the window, the distances of the best few are computed. So the time is that
/// of the sorts and a constant for each nonzero, and the result is exact where the lists are short
/// (ties of NearestTie::kWarp are broken among the best few alone).
/// Scratch: about 20 bytes a nonzero (24 from 2^32 on) and 80 a row. Errors: RESOURCE_EXHAUSTED,
/// CANCELLED.
absl::Status ChainNearestRows(const CsrView& masks, std::span<const int32_t> loads,
                              const NearestOptions& options, const BuildContext& context,
                              std::span<int32_t> sequence);

}  // namespace sparsed
