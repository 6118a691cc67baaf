// Row reordering for the last level cache: rows that share columns soon after each other.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/array.h"
#include "kernels/formats/csr.h"
#include "kernels/pipeline.h"

namespace sparsed {

/// An order (i32, rows; position r holds row order[r]) that begins with the first row and goes on
/// with the rows that share a column with those before, first come first served; Cuthill and
/// McKee's without the sorting by degree. Columns that very many rows have lead nowhere. Linear in
/// the nonzeros. Scratch: the transposed pattern, a bit more for each row and column. Errors:
/// RESOURCE_EXHAUSTED, CANCELLED.
absl::StatusOr<Array> BreadthFirst(const CsrView& csr, const BuildContext& context);

}  // namespace sparsed
