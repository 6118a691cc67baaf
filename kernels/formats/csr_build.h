// Builders of "csr" layouts from a plain CSR pattern: a copy, permuted rows, the transposed matrix.
// value_source speaks of the given pattern's nonzeros. Errors: RESOURCE_EXHAUSTED, CANCELLED.
#pragma once

#include <cstdint>
#include <limits>

#include "absl/status/statusor.h"
#include "kernels/formats/csr.h"
#include "kernels/layout.h"
#include "kernels/pipeline.h"

namespace sparsed {

/// The narrowest type of value_source.
inline ElementType SourceType(int64_t nnz) {
  return nnz <= std::numeric_limits<int32_t>::max() ? ElementType::kI32 : ElementType::kI64;
}

absl::StatusOr<Layout> CopyCsr(const CsrView& csr, const BuildContext& context);

/// Row r of the layout is row row_order[r] of `csr`; row_order is i32, rows.
absl::StatusOr<Layout> PermuteRows(const CsrView& csr, Array row_order,
                                   const BuildContext& context);

/// S^T. A counting sort; as many threads as have room for a counter for each column in twice the
/// pattern's own memory.
absl::StatusOr<Layout> TransposeCsr(const CsrView& csr, const BuildContext& context);

}  // namespace sparsed
