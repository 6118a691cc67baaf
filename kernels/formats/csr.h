// Layout kind "csr": compressed sparse rows, optionally with permuted rows, optionally of the
// transposed matrix.
//
// clang-format off
//   row_offsets     i64, rows + 1   where row r (in layout order) begins in column_indices; [0] = 0,
//                                   ascending
//   column_indices  i32, nnz        ascending within a row, no duplicates, in [0, cols)
//   row_order       i32, rows       only if rows are permuted: layout row r is row row_order[r] of
//                                   the matrix (and of C)
//   value_source    i32/i64, nnz    only if permuted or transposed: the CSR nonzero of each slot
// clang-format on
//
// Offsets are always 64-bit: they are read once a row, and one width keeps one kernel.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/layout.h"

namespace sparsed {

inline constexpr std::string_view kCsr = "csr";

/// Not owned.
struct CsrView {
  int64_t rows = 0;
  int64_t cols = 0;
  std::span<const int64_t> row_offsets;
  std::span<const int32_t> column_indices;
  std::span<const int32_t> row_order;  ///< empty: identity

  int64_t nnz() const { return static_cast<int64_t>(column_indices.size()); }
};

/// The layout's arrays; the layout must be of kind "csr".
CsrView ViewCsr(const Layout& layout);

/// The layout that plain CSR is: shares the arrays, wherever they are. Pipeline "csr".
Layout MakeCsrLayout(int64_t rows, int64_t cols, Array row_offsets, Array column_indices);
/// Likewise of arrays in host memory, which it looks for the longest row in.
Layout MakeHostCsrLayout(int64_t rows, int64_t cols, Array row_offsets, Array column_indices);
/// What Layout::longest_row is with these offsets.
int64_t LongestRow(std::span<const int64_t> row_offsets);

/// Checks untrusted arrays: sizes, row_offsets[0] = 0, ascending, last = nnz, columns in range,
/// ascending within rows, no duplicates. INVALID_ARGUMENT names array, position and row:
/// "column_indices[90210] = 70001 in row 17 is out of range [0, 65536)".
absl::Status ValidateCsr(const CsrView& csr, int threads);
/// As ValidateCsr, but columns may come in any order and more than once in a row.
absl::Status ValidateUnsortedCsr(const CsrView& csr, int threads);

}  // namespace sparsed
