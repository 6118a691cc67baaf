// S * B, B dense, by the server's kernel for the CPU, and what undoing a permutation of S costs.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/matrix_file.h"

namespace sparsed::tools {

/// Seconds, each the best of `runs`, which take turns.
struct DenseTimes {
  double before = 0;
  double after = 0;
  double permute = 0;  ///< rows of B into the new order, rows of the result back
};

/// Of the patterns of `matrix` and of `reordered`, its symmetric permutation by `order`, in f32.
/// INTERNAL if their products are not the same one. Errors: RESOURCE_EXHAUSTED.
absl::StatusOr<DenseTimes> TimeDenseProducts(const SparseMatrix& matrix,
                                             const SparseMatrix& reordered,
                                             const std::vector<int32_t>& order, int64_t k,
                                             int threads, int runs);

}  // namespace sparsed::tools
