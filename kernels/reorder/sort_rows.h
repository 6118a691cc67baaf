// The row permutations of Mehrabi, Lee, Chatterjee, Sorin, Lee, O'Connor, "Learning Sparse Matrix
// Row Permutations for Efficient SpMM on GPU Architectures", section III: rows sorted
// for balance, for reuse, or for both.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/array.h"
#include "kernels/formats/csr.h"
#include "kernels/pipeline.h"

namespace sparsed {

/// How the kernel that a permutation serves works through rows: a block of `warps` * `run`
/// consecutive rows at a time, each warp a run of `run` of them, one after another; the warps of a
/// block work at the same time. With run = 1 row r goes to warp r % warps, as in the paper.
struct RowPolicy {
  int64_t warps = 32;
  int64_t run = 1;
  /// Nonzeros that a warp takes at once: a row's load is ceil(nonzeros / lanes). The paper's kernel
  /// takes 32; kernels over row-major operands give their lanes to columns of B, and take one.
  int64_t lanes = 1;
  /// Columns of S that one bit of a row's mask stands for: how many rows of B one fetch brings. 1
  /// for row-major operands; the paper's are column-major, 32.
  int64_t mask_columns = 1;
};

/// Below, the sequence is the rows in the order in which they are worked on: first those that the
/// warps begin with, warp by warp, then each warp's second, and so on. The distance of two rows is
/// the Hamming distance of their masks. Where the paper leaves more than one row to choose from,
/// that of the lowest number is taken.
enum class RowSort : uint8_t {
  /// By load, descending (the text on Flipped Sort has the largest load in the first warp).
  kPlain,
  /// The same, with every second `warps` rows of the sequence the other way round.
  kFlipped,
  /// Longest processing time first: each row, by load descending, to the warp with the least load
  /// so far that has room: for the permutation to exist, warps have equal numbers of rows.
  kLpt,
  /// The first `warps` rows are those of the least load; each further one is the nearest to the row
  /// before it in its warp, `warps` earlier in the sequence.
  kWarpAware,
  /// Each row is the nearest to the one before it in the sequence. The paper does not say which is
  /// the first: one of the least load.
  kCtaAware,
  /// Hybrid-1: plain sort; of the rows of equal load each is the nearest to the one before it.
  kHybrid1,
  /// Hybrid-2.1: CTA-aware; of equally near rows the one whose load is nearest to that of the row
  /// before it, which another warp has at the same time.
  kHybrid21,
  /// Hybrid-2.2: CTA-aware; of equally near rows the nearest to the row before it in its warp.
  kHybrid22,
  /// Hybrid-2.3: warp-aware; ties as in Hybrid-2.1.
  kHybrid23,
};

/// An order (i32, rows; position r holds row order[r]) of the pattern's rows. The nearest rows are
/// searched in near-linear time, see nearest_rows.h. The result depends on the pattern, the sort
/// and the policy alone. Every number of the policy is in [1, 2^31).
/// Errors: RESOURCE_EXHAUSTED, CANCELLED.
absl::StatusOr<Array> SortRows(const CsrView& csr, RowSort sort, const RowPolicy& policy,
                               const BuildContext& context);

}  // namespace sparsed
