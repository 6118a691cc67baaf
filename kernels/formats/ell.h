// Layout kinds "ell" and "ellpack_r": as much room for each row as the longest one takes, so that
// no offset has to be read to find a row.
//
//   lengths       i32, rows           of the rows; not in "ell" if all have `width` entries
//   columns       i32, slots          0 behind a row's last entry
//   value_source  i32/i64, slots
//
// Entry j of row i is at i * width + j in "ell", for a thread that goes through a row, and at
// j * rows + i in "ellpack_r", for threads that have neighbouring rows (ELLPACK-R: Vazquez,
// Fernandez, Garzon, CCPE 2011). Behind the last row of "ell" kSpare slots may be read.
//
// Parameters: width.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/formats/csr.h"
#include "kernels/layout.h"
#include "kernels/pipeline.h"

namespace sparsed {

inline constexpr std::string_view kEll = "ell";
inline constexpr std::string_view kEllpackR = "ellpack_r";

/// Not owned.
struct EllView {
  static constexpr int64_t kSpare = 16;

  int64_t rows = 0;
  int64_t cols = 0;
  int64_t width = 0;                 ///< entries of the longest row
  std::span<const int32_t> lengths;  ///< empty: all have `width` entries
  std::span<const int32_t> columns;
};

/// The layout's arrays; the layout must be of kind "ell" or "ellpack_r".
EllView ViewEll(const Layout& layout);

/// `kind`: kEll or kEllpackR. Errors: FAILED_PRECONDITION (more than kMostFormatGrowth times CSR's
/// memory), RESOURCE_EXHAUSTED, CANCELLED.
absl::StatusOr<Layout> BuildEll(const CsrView& csr, std::string_view kind,
                                const BuildContext& context);

}  // namespace sparsed
