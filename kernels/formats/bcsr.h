// Layout kind "bcsr": dense blocks of height x width in compressed sparse rows of blocks (BCSR; Im,
// Yelick and Vuduc, "Sparsity", IJHPCA 2004), padded with zeros.
//
//   block_offsets  i64, block rows + 1   where a row of blocks begins
//   block_columns  i32, blocks           in blocks, ascending in a row
//   masks          i64, blocks           bit 8 * i + j: row i of the block has column j
//   value_source   i32/i64, slots        height * width for each block, row by row
//
// Parameters: height and width, 1 to 8.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/formats/csr.h"
#include "kernels/layout.h"
#include "kernels/pipeline.h"

namespace sparsed {

inline constexpr std::string_view kBcsr = "bcsr";
inline constexpr int64_t kMostBlockSide = 8;
/// Of the square blocks that SpGEMM reads, two matrices in the same ones.
inline constexpr int64_t kLeastSquareBlock = 2;

struct BlockShape {
  int64_t height = 1;  ///< rows
  int64_t width = 1;   ///< columns
  int64_t places() const { return height * width; }
  friend bool operator==(const BlockShape&, const BlockShape&) = default;
};

/// Not owned.
struct BcsrView {
  int64_t rows = 0;
  int64_t cols = 0;
  BlockShape shape;
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
absl::StatusOr<Layout> BuildBcsr(const CsrView& csr, BlockShape shape, const BuildContext& context);

/// The width of square blocks for which all patterns take the least memory with values of so many
/// bytes, of those whose blocks are filled well enough, by a sample of rows. FAILED_PRECONDITION:
/// there is none.
absl::StatusOr<int64_t> ChooseBlockWidth(std::span<const CsrView> patterns, size_t value_bytes);

/// A shape of blocks, and what a sample of rows says of it.
struct ChosenBlocks {
  BlockShape shape;
  double fill = 0;  ///< share of the places in blocks that are nonzeros
  /// Of a product with a dense operand: what blocks cost for each nonzero, in times of what it
  /// costs from CSR.
  double cost = 0;
};

/// The shape that costs least, of those whose blocks are filled well enough. FAILED_PRECONDITION:
/// there are no nonzeros.
absl::StatusOr<ChosenBlocks> ChooseBlockShape(const CsrView& csr);

}  // namespace sparsed
