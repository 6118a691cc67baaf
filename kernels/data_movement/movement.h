// How many bytes products with a pattern move between memory and the last level cache: the least
// that any schedule moves, what schedules of parts that fit the cache move, and what a row-wise
// kernel moves. Symbols: S is M x N with nnz nonzeros; C its product.
//
// Paper: Kurt et al., "Characterization of data movement requirements for sparse matrix
// computations on GPUs" (HiPC 2017), sections III to V. It counts words of 4 bytes, two for a
// nonzero; here a nonzero is 4 bytes for its column and the value's own, and row offsets, which the
// paper leaves out, are 8 bytes each.
//
// The row-wise kernel is Gustavson's (SpMV and SpMM likewise): row by row, in order, each nonzero
// of S asks for a row of the other operand. S and C pass through the cache once; the other
// operand's lines are found there or fetched. The cache is one, fully associative, and forgets what
// was used least recently; accumulators live in registers or caches nearer to the cores. Rows that
// many cores work on at once are taken as if they came one after another.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/formats/csr.h"
#include "kernels/pipeline.h"
#include "kernels/problem.h"

namespace sparsed {

struct MovementSpec {
  /// kSpmm: C = S * B, B dense (SpMV: k = 1). kSpgemm: C = S * S, S square.
  Operation operation = Operation::kSpmm;
  int64_t k = 1;            ///< width of B
  int64_t value_bytes = 4;  ///< of one value of S, B and C
  int64_t cache_bytes = 0;
  int64_t line_bytes = 64;  ///< what is fetched at once
  /// Nonzeros (SpMM) or products (SpGEMM) to follow through the cache. Above, a part of the other
  /// operand's lines is followed in a like part of the cache, and a part of C's rows is counted:
  /// the same ones in any order of the rows, so that what differs between two orders is theirs.
  int64_t max_steps = int64_t{1} << 24;
};

struct Movement {
  double flops = 0;  ///< 2 a nonzero and column of B, or 2 a product
  /// Lower bound: S, the rows of the other operand that S touches, and C, once each.
  double footprint_bytes = 0;
  /// Upper bound on what the best schedule moves: rows in their order, cut into parts whose
  /// footprint fits the cache; a part begins with nothing in the cache (Algorithm 3, the partition
  /// being consecutive rows; a row too large for the cache is cut as well).
  double partition_bytes = 0;
  int64_t parts = 0;       ///< of that partition
  double moved_bytes = 0;  ///< what the row-wise kernel moves
  /// Of footprint_bytes and moved_bytes: the other operand.
  double operand_footprint_bytes = 0, operand_moved_bytes = 0;
  double result_nnz = 0;   ///< nonzeros of C (SpGEMM)
  double largest_row = 0;  ///< the part in [0, 1] of all steps that one row has
  /// moved_bytes are of a sample and, for SpGEMM, what depends on result_nnz; flops, parts and the
  /// other operand's footprint never are.
  bool estimate = false;
};

/// Of a valid pattern, its rows in csr.row_order if there is one (position r is row row_order[r]).
/// One thread, a few passes over the nonzeros. Scratch: 16 bytes a line of the other operand that
/// is followed, 8 a column. Errors: INVALID_ARGUMENT (SpGEMM of a pattern that is not square),
/// RESOURCE_EXHAUSTED, CANCELLED.
absl::StatusOr<Movement> ModelMovement(const CsrView& csr, const MovementSpec& spec,
                                       const BuildContext& context);

/// Section III: what a device could do at best.
struct Roofline {
  double bytes_per_second = 0;
  double flops_per_second = 0;

  /// Seconds that so many operations take while so many bytes move: the longer of the two.
  double Seconds(double flops, double bytes) const {
    return std::max(flops / flops_per_second, bytes / bytes_per_second);
  }
  /// Operations a byte above which arithmetic, not memory, is the limit.
  double critical_intensity() const { return flops_per_second / bytes_per_second; }
};

}  // namespace sparsed
