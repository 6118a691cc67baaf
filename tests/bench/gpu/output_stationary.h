// The SpMM kernel for which Mehrabi et al., "Learning Sparse Matrix Row Permutations for Efficient
// SpMM on GPU Architectures", made their permutations (section II, Fig. 2): output-stationary, over
// column-major operands. It serves to reproduce their figures; the service does not use it.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/layout.h"
#include "kernels/problem.h"
#include "tests/bench/gpu/device.h"

namespace sparsed::test {

/// C = S * B on the device, in float; B [cols, k] and C [rows, k] lie column by column without
/// gaps.
struct ColumnMajorSpmm {
  const Layout& layout;  ///< csr or dcsr
  const float* values;
  const float* b;
  float* c;
  int64_t k;
};

/// A block of 32 warps for each strip of so many columns of B: row r of the layout goes to warp
/// r % 32, its nonzeros to the warp's lanes.
enum class Strip : uint8_t { kOneColumn = 1, kFourColumns = 4 };
absl::Status RunOutputStationary(const Context& context, Strip strip,
                                 const ColumnMajorSpmm& product);

/// Milliseconds of the fastest of cuSPARSE's algorithms that take column-major operands,
/// preprocessed: the median of `rounds` calls. The layout is plain csr.
absl::StatusOr<double> CusparseColumnMajor(Device& device, const ColumnMajorSpmm& product,
                                           int rounds);

}  // namespace sparsed::test
