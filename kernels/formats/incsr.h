// Layout kind "incsr": rows cut into sections of aligned columns, those without an entry left out
// (the InCSR method of Xie et al., "A Pattern-Based SpGEMM Library for Multi-Core and Many-Core
// Architectures"): a section's values are a line of the cache.
//
//   section_offsets  i64, rows + 1    where a row's sections begin
//   section_columns  i32, sections    its first column / columns
//   present          i32, sections    a bit for each of its columns: is there an entry
//   value_source     i32/i64, slots   `columns` of each section
//
// Parameters: columns, of a section: 8 or 16.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/formats/csr.h"
#include "kernels/layout.h"
#include "kernels/recipe.h"

namespace sparsed {

inline constexpr std::string_view kIncsr = "incsr";

/// Of a section whose values are a line: kernels read no others.
inline int64_t SectionColumns(ElementType type) { return 64 / static_cast<int64_t>(SizeOf(type)); }

/// Not owned.
struct IncsrView {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t columns = 0;
  std::span<const int64_t> section_offsets;
  std::span<const int32_t> section_columns;
  std::span<const int32_t> present;
};

/// The layout's arrays; the layout must be of kind "incsr".
IncsrView ViewIncsr(const Layout& layout);

/// Errors: FAILED_PRECONDITION (more than kMostFormatGrowth times CSR's memory),
/// RESOURCE_EXHAUSTED, CANCELLED.
absl::StatusOr<Layout> BuildIncsr(const CsrView& csr, int64_t columns, const BuildContext& context);

}  // namespace sparsed
