// The rows of a matrix that one of several processors has, split by where the rows of the dense
// operand lie that their columns name: with the processor itself, or elsewhere, to be fetched.
// The sum of both products is the product (as the diagonal and off-diagonal blocks of PETSc's
// MPIAIJ matrices, PETSc users manual, section 2.2).
#pragma once

#include "absl/status/statusor.h"
#include "kernels/array.h"
#include "kernels/formats/csr.h"
#include "kernels/layout.h"
#include "kernels/pipeline.h"
#include "kernels/problem.h"

namespace sparsed {

struct RowSplit {
  Layout own;            ///< plain CSR; column j is row operand.begin + j of the operand
  Layout fetched;        ///< plain CSR; column j is row fetched_rows[j] of the operand
  Array own_source;      ///< i32/i64: which of the matrix's nonzeros each of own's is
  Array fetched_source;  ///< likewise
  Array fetched_rows;    ///< i64, ascending, none of the processor's own
};

/// Rows `rows` of `csr`, by a processor that has rows `operand` of the dense operand. `source`: of
/// each of csr's nonzeros, which of the matrix's it is (i32/i64); null: the same. One pass to
/// count, one to fill; scratch: 4 bytes a column. Errors: RESOURCE_EXHAUSTED, CANCELLED.
absl::StatusOr<RowSplit> SplitRows(const CsrView& csr, RowRange rows, RowRange operand,
                                   const Array* source, const BuildContext& context);

/// How many rows of the operand it fetches, as SplitRows lists them, and how many nonzeros name
/// them. One pass, with a byte a column of scratch.
struct FetchedCount {
  int64_t rows = 0, nonzeros = 0;
};
absl::StatusOr<FetchedCount> CountFetched(const CsrView& csr, RowRange rows, RowRange operand,
                                          const BuildContext& context);

}  // namespace sparsed
