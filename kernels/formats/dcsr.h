// Layout kind "dcsr": doubly compressed sparse rows (Buluc and Gilbert, IPDPS 2008): plain CSR of
// the rows that have nonzeros, and which rows these are. For matrices most of whose rows are empty.
//
// clang-format off
//   row_order       i32, rows         the rows of the matrix (and of C): first those that have
//                                     nonzeros, in the order in which they are stored, then the
//                                     empty ones
//   row_offsets     i64, stored + 1   where stored row r, row row_order[r] of the matrix, begins in
//                                     column_indices; [0] = 0, ascending
//   column_indices  i32, nnz          ascending within a row
//   value_source    i32/i64, nnz      only if permuted or transposed: the CSR nonzero of each slot
// clang-format on
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/formats/csr.h"
#include "kernels/layout.h"
#include "kernels/pipeline.h"

namespace sparsed {

inline constexpr std::string_view kDcsr = "dcsr";

/// The rows of the matrix without nonzeros; the layout must be of kind "dcsr".
std::span<const int32_t> EmptyRows(const Layout& layout);

/// The stored rows as a layout of kind "csr" with permuted rows, for that kind's kernels: it shares
/// the arrays, its rows are the stored ones, its value slots are the same. Kernels that write a row
/// of C for each row of the layout leave out those of EmptyRows.
Layout StoredRows(const Layout& layout);

/// From a pattern whose rows are taken in csr.row_order. value_source speaks of csr's own nonzeros;
/// `with_source`: also where that is the order of the slots, for a pattern that is not the caller's
/// own. Errors: RESOURCE_EXHAUSTED, CANCELLED.
absl::StatusOr<Layout> BuildDcsr(const CsrView& csr, bool with_source, const BuildContext& context);

}  // namespace sparsed
