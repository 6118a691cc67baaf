#include "kernels/formats/incsr.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/formats/csr_build.h"
#include "kernels/formats/permute.h"
#include "kernels/formats/product_format.h"

namespace sparsed {

IncsrView ViewIncsr(const Layout& layout) {
  IncsrView view;
  view.rows = layout.rows;
  view.cols = layout.cols;
  view.columns = layout.Parameter("columns");
  view.section_offsets = layout.Elements<int64_t>("section_offsets");
  view.section_columns = layout.Elements<int32_t>("section_columns");
  view.present = layout.Elements<int32_t>("present");
  return view;
}

absl::StatusOr<Layout> BuildIncsr(const CsrView& csr, int64_t columns,
                                  const BuildContext& context) {
  MemorySource& memory = *context.memory;
  auto offsets = AllocateArray(memory, "section_offsets", ElementType::kI64, csr.rows + 1);
  if (!offsets.ok()) return offsets.status();
  const auto begins = offsets->MutableAs<int64_t>();
  ForEachRow(csr.rows, context, [&](int64_t row) {
    int64_t sections = 0, last = -1;
    for (int64_t i = csr.row_offsets[row]; i < csr.row_offsets[row + 1]; ++i) {
      const int64_t section = csr.column_indices[i] / columns;
      sections += section != last ? 1 : 0;
      last = section;
    }
    begins[row + 1] = sections;
  });
  if (context.stopped()) return absl::CancelledError("the build was stopped");
  begins[0] = 0;
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  const int64_t sections = begins[csr.rows];
  // A section's values are a line, whatever their type is.
  const double section_bytes =
      64 + 2 * sizeof(int32_t) + static_cast<double>(columns) * SizeOf(SourceType(csr.nnz()));
  const absl::Status grown = CheckFormatGrowth(
      csr, "in sections",
      static_cast<double>(sections) * section_bytes + static_cast<double>(offsets->bytes()));
  if (!grown.ok()) return grown;
  auto firsts = AllocateArray(memory, "section_columns", ElementType::kI32, sections);
  if (!firsts.ok()) return firsts.status();
  auto present = AllocateArray(memory, "present", ElementType::kI32, sections);
  if (!present.ok()) return present.status();
  auto source = AllocateArray(memory, kValueSource, SourceType(csr.nnz()), sections * columns);
  if (!source.ok()) return source.status();
  const auto to_columns = firsts->MutableAs<int32_t>();
  const auto to_present = present->MutableAs<int32_t>();
  WithSource(*source, [&]<typename Source>(std::span<Source> slots) {
    ForEachRow(csr.rows, context, [&](int64_t row) {
      int64_t at = begins[row] - 1, last = -1;
      for (int64_t i = csr.row_offsets[row]; i < csr.row_offsets[row + 1]; ++i) {
        const int64_t section = csr.column_indices[i] / columns;
        if (section != last) {
          ++at;
          to_columns[at] = static_cast<int32_t>(section);
          to_present[at] = 0;
          std::fill_n(slots.begin() + at * columns, columns, Source{-1});
          last = section;
        }
        const int64_t lane = csr.column_indices[i] % columns;
        to_present[at] |= 1 << lane;
        slots[at * columns + lane] = static_cast<Source>(i);
      }
    });
  });
  if (context.stopped()) return absl::CancelledError("the build was stopped");

  Layout layout;
  layout.kind = kIncsr;
  layout.parameters = {{"columns", columns}};
  layout.rows = csr.rows;
  layout.cols = csr.cols;
  layout.nnz = csr.nnz();
  layout.value_slots = sections * columns;
  for (auto* array : {&offsets, &firsts, &present, &source}) {
    layout.arrays.push_back(**std::move(array));
  }
  return layout;
}

}  // namespace sparsed
