// Layout kind "bcsr": dense blocks of width x width in compressed sparse rows of blocks (BCSR; Im,
// Yelick and Vuduc, "Sparsity", IJHPCA 2004), padded with zeros.
//
//   block_offsets  i64, block rows + 1   where a row of blocks begins
//   block_columns  i32, blocks           in blocks, ascending in a row
//   masks          i64, blocks           bit 8 * i + j: row i of the block has column j
//   value_source   i32/i64, slots        width * width for each block, row by row
//
// Parameters: width, 2 to 8.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/formats/csr.h"
#include "kernels/layout.h"
#include "kernels/recipe.h"

namespace sparsed {

inline constexpr std::string_view kBcsr = "bcsr";
inline constexpr int64_t kLeastBlockWidth = 2, kMostBlockWidth = 8;

/// Not owned.
struct BcsrView {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t width = 0;
  std::span<const int64_t> block_offsets;
  std::span<const int32_t> block_columns;
  std::span<const int64_t> masks;

  int64_t block_rows() const { return static_cast<int64_t>(block_offsets.size()) - 1; }
  int64_t blocks() const { return static_cast<int64_t>(block_columns.size()); }
};

/// The layout's arrays; the layout must be of kind "bcsr".
BcsrView ViewBcsr(const Layout& layout);

/// Errors: FAILED_PRECONDITION (fewer than half of the places in blocks are nonzeros),
/// RESOURCE_EXHAUSTED, CANCELLED.
absl::StatusOr<Layout> BuildBcsr(const CsrView& csr, int64_t width, const BuildContext& context);

/// The width for which all patterns take the least memory with values of so many bytes, of those
/// whose blocks are filled well enough, by a sample of rows. FAILED_PRECONDITION: there is none.
absl::StatusOr<int64_t> ChooseBlockWidth(std::span<const CsrView> patterns, size_t value_bytes);

}  // namespace sparsed
