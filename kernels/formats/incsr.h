// Layout kind "incsr": rows cut into sections of aligned columns, and these into blocks; sections
// and blocks without an entry are left out (the InCSR method of Xie et al., "A Pattern-Based SpGEMM
// Library for Multi-Core and Many-Core Architectures", whose S and b are `columns` and `block`).
//
//   section_offsets  i64, rows + 1    where a row's sections begin
//   block_offsets    i64, rows + 1    where its blocks begin; not there if a section is one block
//   section_columns  i32, sections    its first column / columns
//   present          i32, sections    a bit for each of its columns: is there an entry
//   value_source     i32/i64, slots   `block` of each block of a section that has an entry
//
// Parameters: columns, of a section: 2 to 32; block: of a block, a divisor of it. Powers of two.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/formats/csr.h"
#include "kernels/layout.h"
#include "kernels/pipeline.h"

namespace sparsed {

inline constexpr std::string_view kIncsr = "incsr";

inline constexpr int64_t kMostSectionColumns = 32;

struct SectionShape {
  int64_t columns = 16;
  int64_t block = 16;
};

/// A section that is one block, whose values are a line of 64 bytes: what kernels ask for.
inline SectionShape LineSections(ElementType type) {
  const auto columns = 64 / static_cast<int64_t>(SizeOf(type));
  return {columns, columns};
}
/// Whether kernels read such sections: a block's values are a vector of 16 to 64 bytes.
inline bool AreVectors(SectionShape shape, ElementType type) {
  const int64_t bytes = shape.block * static_cast<int64_t>(SizeOf(type));
  return bytes >= 16 && bytes <= 64;
}

/// Not owned.
struct IncsrView {
  int64_t rows = 0;
  int64_t cols = 0;
  SectionShape shape;
  std::span<const int64_t> section_offsets;
  std::span<const int64_t> block_offsets;  ///< section_offsets if a section is one block
  std::span<const int32_t> section_columns;
  std::span<const int32_t> present;
};

/// The layout's arrays; the layout must be of kind "incsr".
IncsrView ViewIncsr(const Layout& layout);

/// Errors: FAILED_PRECONDITION (the shape is none that the kind has; more than kMostFormatGrowth
/// times CSR's memory), RESOURCE_EXHAUSTED, CANCELLED.
absl::StatusOr<Layout> BuildIncsr(const CsrView& csr, SectionShape shape,
                                  const BuildContext& context);

}  // namespace sparsed
