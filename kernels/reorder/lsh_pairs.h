// Candidate pairs of similar rows by locality-sensitive hashing: the "LSH(S, siglen, bsize)" of
// Algorithm 3 in Jiang, Hong, Agrawal, "A Novel Data Transformation and Execution Strategy for
// Accelerating Sparse Matrix Multiplication on GPUs", PPoPP'20.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/formats/csr.h"
#include "kernels/pipeline.h"
#include "kernels/reorder/pair_set.h"

namespace sparsed {

struct LshOptions {
  int siglen = 128;  ///< minhashes of a row, a multiple of bsize
  int bsize =
      2;  ///< minhashes of a band, at most kMinHashLanes: rows agreeing in one share a bucket
  /// The bucket cap: in each band a row is paired with this many rows before it in its bucket, not
  /// with all of them, so that a bucket of b rows gives O(b) pairs.
  int64_t neighbours = 1;
  /// Pairs less similar than this are dropped: they would not bring a shared column.
  float min_similarity = 0.05F;
  /// Past this many pairs for each row (but at least 65,536 in all) the least similar are dropped.
  int64_t pairs_per_row = 4;
};

/// Candidate pairs of the rows of `csr` (its row_order is ignored). The result depends on the
/// pattern and the options alone, not on the threads. Scratch: about 200 bytes a row.
/// Errors: RESOURCE_EXHAUSTED, CANCELLED.
absl::StatusOr<CandidatePairs> FindCandidatePairs(const CsrView& csr, const LshOptions& options,
                                                  const BuildContext& context);

}  // namespace sparsed
