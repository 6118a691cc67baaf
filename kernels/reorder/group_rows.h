// Row reordering for row panels: rows that share columns, a panel's worth at a time.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/array.h"
#include "kernels/formats/csr.h"
#include "kernels/pipeline.h"

namespace sparsed {

/// An order (i32, rows; position r holds row order[r]) in which every `size` consecutive rows have
/// few columns between them. Greedy: a group begins with a row that shares columns with the last
/// group and takes, again and again, the row with the largest part of its columns in the group.
/// Rows without nonzeros come last. The result depends on the pattern and the size alone. Scratch:
/// the transposed pattern and a few numbers for each row. Errors: RESOURCE_EXHAUSTED, CANCELLED.
absl::StatusOr<Array> GroupRows(const CsrView& csr, int64_t size, const BuildContext& context);

}  // namespace sparsed
