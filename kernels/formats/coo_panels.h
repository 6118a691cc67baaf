// Layout kind "coo_panels": every nonzero with its row and its column, panel by panel of
// consecutive rows, and column by column within a panel. Whoever goes over the nonzeros in this
// order needs a column's operand row once for the whole panel, while the panel's own operand rows
// stay in a cache.
//
//   entry_rows     i32, nnz        row of the matrix
//   entry_columns  i32, nnz        ascending within a panel; rows in their order within a column
//   value_source   i32/i64, nnz    the CSR nonzero of each entry
//
// Parameter: rows (of a panel, before the last). A panel's rows are consecutive in the order in
// which they were taken; the entries name rows of the matrix, so that the order itself is not kept.
// There is no padding.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/formats/csr.h"
#include "kernels/layout.h"
#include "kernels/pipeline.h"

namespace sparsed {

inline constexpr std::string_view kCooPanels = "coo_panels";

/// Not owned.
struct CooPanelsView {
  int64_t rows = 0;
  int64_t cols = 0;
  std::span<const int32_t> entry_rows;
  std::span<const int32_t> entry_columns;
};

/// The layout's arrays; the layout must be of kind "coo_panels".
CooPanelsView ViewCooPanels(const Layout& layout);

/// Lists the nonzeros of a pattern whose rows are taken in csr.row_order. value_source speaks of
/// csr's own nonzeros. Scratch: 8 bytes a panel, and about two tables of the largest panel.
/// Errors: RESOURCE_EXHAUSTED, CANCELLED.
absl::StatusOr<Layout> BuildCooPanels(const CsrView& csr, int64_t panel_rows,
                                      const BuildContext& context);

}  // namespace sparsed
