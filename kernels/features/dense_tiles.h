// How many nonzeros of a pattern adaptive sparse tiling would put into dense tiles.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/formats/csr.h"
#include "kernels/pipeline.h"

namespace sparsed {

/// The share of nonzeros, in [0, 1], that lie in a column with at least `min_dense` nonzeros within
/// their panel of `panel` consecutive rows (in csr.row_order, if there is one). 0 for an empty
/// pattern. Errors: RESOURCE_EXHAUSTED, CANCELLED.
absl::StatusOr<double> DenseTileRatio(const CsrView& csr, int64_t panel, int64_t min_dense,
                                      const BuildContext& context);

}  // namespace sparsed
