// Layout kind "row_panels": panels of consecutive rows, stored densely over the columns that any of
// them has, so that a kernel reads an operand's row once for the whole panel (the row windows of
// TC-GNN, Wang et al., ATC'23, and DTC-SpMM, Fan et al., ASPLOS'24, without their padding to
// tiles).
//
// The rows, in `row_order`, are cut into panels of `rows` consecutive rows; the last one may have
// fewer. A panel has one slot for each column in which any of its rows has a nonzero.
//
//   row_order      i32, rows            layout row r is row row_order[r] of the matrix (and of C);
//                                       only if the rows are permuted
//   panel_offsets  i64, panels + 1      where panel p's slots begin
//   panel_columns  i32, slots           the slot's column; ascending within a panel
//   row_masks      i32, slots           bit i: row i of the panel has a nonzero in the slot's
//   column long_panels    i32                  panels of more than `long` slots, ascending: work
//   for more
//                                       than one group of threads
//   value_source   i32/i64, rows * slots  the CSR nonzero of row i of slot s at rows * s + i; -1,
//                                       padding, where bit i of row_masks[s] is 0
//
// Parameters: rows (1 to 32), long. Values are padded with zeros; since 0 * inf is no zero, a
// kernel must heed row_masks where the operand is not finite.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/formats/csr.h"
#include "kernels/layout.h"
#include "kernels/pipeline.h"

namespace sparsed {

inline constexpr std::string_view kRowPanels = "row_panels";

/// Not owned.
struct RowPanelsView {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t panel_rows = 1;
  int64_t long_slots = 0;              ///< parameter "long"
  std::span<const int32_t> row_order;  ///< empty: identity
  std::span<const int64_t> panel_offsets;
  std::span<const int32_t> panel_columns;
  std::span<const int32_t> row_masks;
  std::span<const int32_t> long_panels;

  int64_t panels() const { return static_cast<int64_t>(panel_offsets.size()) - 1; }
  int64_t slots() const { return static_cast<int64_t>(panel_columns.size()); }
  /// The matrix row at layout row r.
  int64_t MatrixRow(int64_t r) const { return row_order.empty() ? r : row_order[r]; }
};

/// The layout's arrays; the layout must be of kind "row_panels".
RowPanelsView ViewRowPanels(const Layout& layout);

/// Slots that panels of so many rows need, the rows taken in csr.row_order. Errors as below.
absl::StatusOr<int64_t> CountPanelSlots(const CsrView& csr, int64_t panel_rows,
                                        const BuildContext& context);

/// Cuts a pattern whose rows are taken in csr.row_order into panels. value_source speaks of csr's
/// own nonzeros. Scratch: about two tables of the largest panel. Errors: RESOURCE_EXHAUSTED,
/// CANCELLED.
absl::StatusOr<Layout> BuildRowPanels(const CsrView& csr, int64_t panel_rows,
                                      const BuildContext& context);

}  // namespace sparsed
