// Layout kind "aspt": adaptive sparse tiling (Hong, Sukumaran-Rajam, Nisa, Singh, Sadayappan,
// PPoPP'19) over reordered rows (Jiang, Hong, Agrawal, PPoPP'20, section 3).
//
// The rows, in `row_order`, are cut into panels of `panel` consecutive rows. A column with at least
// `min_dense` nonzeros in a panel is dense there; its nonzeros are the panel's dense tile, all
// others the sparse remainder. Both parts are kept row by row. The remainder may have an order of
// its own.
//
// clang-format off
//   row_order              i32, rows          layout row r is row row_order[r] of the matrix (and of
//                                             C); only if the rows are permuted
//   panel_offsets          i64, panels + 1    where panel p's dense columns begin in panel_columns
//   panel_columns          i32                dense columns of each panel, ascending within a panel
//   dense_row_offsets      i64, rows + 1      where layout row r begins in dense_indices
//   dense_indices          i32, dense nnz     ascending within a row: an entry's column is
//                                             panel_columns[panel_offsets[p] + index]
//   remainder_order        i32, rows          remainder row q belongs to layout row
//                                             remainder_order[q]; only if the remainder is
//                                             permuted, else q = r
//   remainder_row_offsets  i64, rows + 1      where remainder row q begins in remainder_columns
//   remainder_columns      i32, the others    columns, ascending within a row
//   value_source           i32/i64, nnz       the CSR nonzero of each value slot: the dense entries'
//                                             slots come first, the remainder's after them, each in
//                                             the order of its index array
// clang-format on
//
// Parameters: panel, min_dense. The entry at position d of dense_indices has value slot d, that at
// position p of remainder_columns has slot dense nnz + p. There is no padding.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/formats/csr.h"
#include "kernels/layout.h"
#include "kernels/pipeline.h"

namespace sparsed {

inline constexpr std::string_view kAspt = "aspt";

/// Not owned.
struct AsptView {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t panel = 1;
  std::span<const int32_t> row_order;  ///< empty: identity
  std::span<const int64_t> panel_offsets;
  std::span<const int32_t> panel_columns;
  std::span<const int64_t> dense_row_offsets;
  std::span<const int32_t> dense_indices;
  std::span<const int32_t> remainder_order;  ///< empty: identity
  std::span<const int64_t> remainder_row_offsets;
  std::span<const int32_t> remainder_columns;

  int64_t panels() const { return static_cast<int64_t>(panel_offsets.size()) - 1; }
  int64_t dense_nnz() const { return static_cast<int64_t>(dense_indices.size()); }
  /// The matrix row at layout row r.
  int64_t MatrixRow(int64_t r) const { return row_order.empty() ? r : row_order[r]; }
  /// The layout row of remainder row q.
  int64_t LayoutRow(int64_t q) const { return remainder_order.empty() ? q : remainder_order[q]; }
  /// The remainder's pattern over its own rows.
  CsrView Remainder() const { return {rows, cols, remainder_row_offsets, remainder_columns, {}}; }
};

/// The layout's arrays; the layout must be of kind "aspt".
AsptView ViewAspt(const Layout& layout);

/// The remainder as a layout of kind "csr" with rows in `row_order` (none: identity), for that
/// kind's kernels: it shares the arrays; its value slots are those behind the dense ones.
Layout RemainderRows(const Layout& layout, std::optional<Array> row_order);

struct AsptOptions {
  int64_t panel = 64;
  int64_t min_dense = 2;
};

/// Tiles a pattern whose rows are taken in csr.row_order. value_source speaks of csr's own
/// nonzeros. Scratch: about two tables of the largest panel. Errors: RESOURCE_EXHAUSTED, CANCELLED.
absl::StatusOr<Layout> BuildAspt(const CsrView& csr, const AsptOptions& options,
                                 const BuildContext& context);

/// Puts the remainder's rows into `order` (i32, rows; remainder row q becomes the one that was at
/// order[q]) in a layout whose remainder is not permuted yet.
/// Errors: RESOURCE_EXHAUSTED, CANCELLED.
absl::Status PermuteRemainder(Layout& layout, Array order, const BuildContext& context);

}  // namespace sparsed
