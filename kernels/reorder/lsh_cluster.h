// Row reordering by clustering: Algorithm 3 of Jiang, Hong, Agrawal, "A Novel Data Transformation
// and Execution Strategy for Accelerating Sparse Matrix Multiplication on GPUs", PPoPP'20, section
// 3.2.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/array.h"
#include "kernels/formats/csr.h"
#include "kernels/pipeline.h"
#include "kernels/reorder/lsh_pairs.h"

namespace sparsed {

/// How the rows of one cluster follow each other.
enum class ClusterOrder : uint8_t {
  kAscending,  ///< by index, as Algorithm 3 says
  kMerged,     ///< as they were merged: the most similar stay together where a cluster is larger
               ///< than a row panel
};

struct ClusterOptions {
  int64_t max_cluster = 256;  ///< threshold_size: a cluster this large takes no more rows
  ClusterOrder order = ClusterOrder::kMerged;
  /// Clusters whose representing rows are less similar than this stay apart. 0 is the paper's.
  float min_similarity = 0.05F;
};

struct RowOrder {
  Array row_order;              ///< i32, rows: position r holds row row_order[r] of the matrix
  int64_t candidate_pairs = 0;  ///< that LSH found
  int64_t moved = 0;            ///< rows that were merged into another's cluster
};

/// Lines 2 - 34 of Algorithm 3 on given candidate pairs, which are consumed.
/// Errors: RESOURCE_EXHAUSTED, CANCELLED.
absl::StatusOr<RowOrder> ClusterRows(const CsrView& csr, CandidatePairs pairs,
                                     const ClusterOptions& options, const BuildContext& context);

/// All of Algorithm 3. The result depends on the pattern and the options alone.
absl::StatusOr<RowOrder> LshClusterRows(const CsrView& csr, const LshOptions& lsh,
                                        const ClusterOptions& options, const BuildContext& context);

}  // namespace sparsed
