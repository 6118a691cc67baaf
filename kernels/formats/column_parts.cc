#include "kernels/formats/column_parts.h"

#include <algorithm>
#include <utility>

#include "kernels/formats/csr_build.h"
#include "kernels/formats/permute.h"
#include "kernels/formats/product_format.h"

namespace sparsed {

ColumnPartsView ViewColumnParts(const Layout& layout) {
  ColumnPartsView view;
  view.rows = layout.rows;
  view.cols = layout.cols;
  view.parts = layout.Parameter("parts");
  view.width = layout.Parameter("width");
  view.part_offsets = layout.Elements<int64_t>("part_offsets");
  view.column_indices = layout.Elements<int32_t>("column_indices");
  return view;
}

absl::StatusOr<Layout> BuildColumnParts(const CsrView& csr, int64_t parts,
                                        const BuildContext& context) {
  MemorySource& memory = *context.memory;
  const int64_t width = PartWidth(csr.cols, parts);
  const int64_t stride = csr.rows + 1;
  const absl::Status grown =
      CheckFormatGrowth(csr, fmt::format("in {} parts", parts),
                        static_cast<double>(parts) * static_cast<double>(stride * sizeof(int64_t)) +
                            static_cast<double>(csr.nnz()) * (sizeof(int32_t) + SlotBytes(csr)));
  if (!grown.ok()) return grown;
  auto offsets = AllocateArray(memory, "part_offsets", ElementType::kI64, parts * stride);
  if (!offsets.ok()) return offsets.status();
  auto columns = AllocateArray(memory, "column_indices", ElementType::kI32, csr.nnz());
  if (!columns.ok()) return columns.status();
  auto source = AllocateArray(memory, kValueSource, SourceType(csr.nnz()), csr.nnz());
  if (!source.ok()) return source.status();
  const auto begins = offsets->MutableAs<int64_t>();
  ForEachRow(csr.rows, context, [&](int64_t row) {
    const int32_t* at = csr.column_indices.data() + csr.row_offsets[row];
    const int32_t* const end = csr.column_indices.data() + csr.row_offsets[row + 1];
    for (int64_t part = 0; part < parts; ++part) {
      const int32_t* const cut = std::lower_bound(at, end, (part + 1) * width);
      begins[part * stride + row + 1] = cut - at;
      at = cut;
    }
  });
  if (context.stopped()) return absl::CancelledError("the build was stopped");
  int64_t entries = 0;
  for (int64_t part = 0; part < parts; ++part) {
    begins[part * stride] = entries;
    for (int64_t row = 0; row < csr.rows; ++row) {
      begins[part * stride + row + 1] += begins[part * stride + row];
    }
    entries = begins[part * stride + csr.rows];
  }
  const auto to_columns = columns->MutableAs<int32_t>();
  WithSource(*source, [&]<typename Source>(std::span<Source> slots) {
    ForEachRow(csr.rows, context, [&](int64_t row) {
      int64_t from = csr.row_offsets[row];
      for (int64_t part = 0; part < parts; ++part) {
        const int64_t end = begins[part * stride + row + 1];
        for (int64_t to = begins[part * stride + row]; to < end; ++to, ++from) {
          to_columns[to] = csr.column_indices[from];
          slots[to] = static_cast<Source>(from);
        }
      }
    });
  });
  if (context.stopped()) return absl::CancelledError("the build was stopped");

  Layout layout;
  layout.kind = kColumnParts;
  layout.parameters = {{"parts", parts}, {"width", width}};
  layout.rows = csr.rows;
  layout.cols = csr.cols;
  layout.nnz = csr.nnz();
  layout.value_slots = csr.nnz();
  for (auto* array : {&offsets, &columns, &source}) layout.arrays.push_back(**std::move(array));
  return layout;
}

}  // namespace sparsed
