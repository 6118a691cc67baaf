// Layout kind "column_parts": the matrix cut into ranges of columns, each with its entries by row
// (the COO method of Xie et al., "A Pattern-Based SpGEMM Library for Multi-Core and Many-Core
// Architectures", which cuts a product into windows of T's columns).
//
//   part_offsets    i64, parts * (rows + 1)   part p's row r: from p * (rows + 1) + r to the next
//   column_indices  i32, nnz                  in the whole matrix
//   value_source    i32/i64, nnz
//
// Parameters: parts; width, the columns of a part, of which the last may have fewer.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/formats/csr.h"
#include "kernels/layout.h"
#include "kernels/pipeline.h"

namespace sparsed {

inline constexpr std::string_view kColumnParts = "column_parts";

/// Not owned.
struct ColumnPartsView {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t parts = 0;
  int64_t width = 0;
  std::span<const int64_t> part_offsets;
  std::span<const int32_t> column_indices;

  const int64_t* offsets_of(int64_t part) const { return part_offsets.data() + part * (rows + 1); }
};

/// The layout's arrays; the layout must be of kind "column_parts".
ColumnPartsView ViewColumnParts(const Layout& layout);

/// Columns of a part.
inline int64_t PartWidth(int64_t cols, int64_t parts) {
  return cols == 0 ? 1 : (cols + parts - 1) / parts;
}

/// Errors: FAILED_PRECONDITION (more than kMostFormatGrowth times CSR's memory),
/// RESOURCE_EXHAUSTED, CANCELLED.
absl::StatusOr<Layout> BuildColumnParts(const CsrView& csr, int64_t parts,
                                        const BuildContext& context);

}  // namespace sparsed
