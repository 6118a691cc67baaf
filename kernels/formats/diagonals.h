// Layout kind "dia": values by diagonals, for products of matrices that have few of them (DIA in
// Saad, "Iterative Methods for Sparse Linear Systems", section 3.4). A diagonal is called by its
// column minus its row.
//
//   offsets       i32, count           of the diagonals, ascending
//   row_masks     i64, rows            bit d: the row has an entry in diagonal d; only if there are
//                                      at most 64
//   present       i64, count * words   bit (kMargin + r) % 64 of word (kMargin + r) / 64 of a
//                                      diagonal: row r has an entry there
//   value_source  i32/i64, slots       row r of diagonal d at d * stride + kMargin + r
//
// Parameters: stride. Before a diagonal's rows and behind them there are at least kMargin slots of
// padding, so that as many rows may be read at once from any that is not further out than that.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/formats/csr.h"
#include "kernels/layout.h"
#include "kernels/pipeline.h"

namespace sparsed {

inline constexpr std::string_view kDiagonals = "dia";

/// More are not worth looking for, which takes their number squared.
inline constexpr int64_t kMostDiagonals = int64_t{1} << 14;

/// Not owned.
struct DiagonalsView {
  static constexpr int64_t kMargin = 64;
  static constexpr int64_t kMostMaskBits = 64;

  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;
  int64_t words = 0;  ///< of `present`, to a diagonal
  std::span<const int32_t> offsets;
  std::span<const int64_t> row_masks;  ///< empty: there are more diagonals than bits
  std::span<const int64_t> present;

  int64_t count() const { return static_cast<int64_t>(offsets.size()); }
};

/// The layout's arrays; the layout must be of kind "dia".
DiagonalsView ViewDiagonals(const Layout& layout);

/// The diagonals that have nonzeros, ascending, as an array of i32. FAILED_PRECONDITION if there
/// are more than `most`; RESOURCE_EXHAUSTED, CANCELLED.
absl::StatusOr<Array> FindDiagonals(const CsrView& csr, int64_t most, const BuildContext& context);

/// Errors: FAILED_PRECONDITION (they would take more than kMostFormatGrowth times CSR's memory, or
/// are more than are worth looking for), RESOURCE_EXHAUSTED, CANCELLED.
absl::StatusOr<Layout> BuildDiagonals(const CsrView& csr, const BuildContext& context);

}  // namespace sparsed
