#include "kernels/formats/ell.h"

#include <algorithm>
#include <utility>

#include "kernels/formats/csr_build.h"
#include "kernels/formats/permute.h"
#include "kernels/formats/product_format.h"

namespace sparsed {

EllView ViewEll(const Layout& layout) {
  EllView view;
  view.rows = layout.rows;
  view.cols = layout.cols;
  view.width = layout.Parameter("width");
  view.lengths = layout.Elements<int32_t>("lengths");
  view.columns = layout.Elements<int32_t>("columns");
  return view;
}

absl::StatusOr<Layout> BuildEll(const CsrView& csr, std::string_view kind,
                                const BuildContext& context) {
  MemorySource& memory = *context.memory;
  const bool by_row = kind == kEll;
  int64_t width = 0;
  for (int64_t row = 0; row < csr.rows; ++row) {
    width = std::max(width, csr.row_offsets[row + 1] - csr.row_offsets[row]);
  }
  // Rows and width are below 2^31.
  const int64_t entries = csr.rows * width;
  const absl::Status grown =
      CheckFormatGrowth(csr, "in rows of one length",
                        static_cast<double>(entries) * (sizeof(int32_t) + SlotBytes(csr)));
  if (!grown.ok()) return grown;
  const int64_t slots = entries + (by_row ? EllView::kSpare : 0);
  const bool even = by_row && entries == csr.nnz();
  auto lengths = AllocateArray(memory, "lengths", ElementType::kI32, even ? 0 : csr.rows);
  if (!lengths.ok()) return lengths.status();
  auto columns = AllocateArray(memory, "columns", ElementType::kI32, slots);
  if (!columns.ok()) return columns.status();
  auto source = AllocateArray(memory, kValueSource, SourceType(csr.nnz()), slots);
  if (!source.ok()) return source.status();
  const int64_t row_step = by_row ? width : 1;
  const int64_t entry_step = by_row ? 1 : csr.rows;
  const auto to_columns = columns->MutableAs<int32_t>();
  const auto to_lengths = lengths->MutableAs<int32_t>();
  WithSource(*source, [&]<typename Source>(std::span<Source> to_source) {
    std::fill(to_columns.begin() + entries, to_columns.end(), 0);
    std::fill(to_source.begin() + entries, to_source.end(), Source{-1});
    ForEachRow(csr.rows, context, [&](int64_t row) {
      const int64_t begin = csr.row_offsets[row];
      const int64_t length = csr.row_offsets[row + 1] - begin;
      for (int64_t j = 0; j < width; ++j) {
        const int64_t slot = row * row_step + j * entry_step;
        to_columns[slot] = j < length ? csr.column_indices[begin + j] : 0;
        to_source[slot] = j < length ? static_cast<Source>(begin + j) : Source{-1};
      }
      if (!even) to_lengths[row] = static_cast<int32_t>(length);
    });
  });
  if (context.stopped()) return absl::CancelledError("the build was stopped");

  Layout layout;
  layout.kind = kind;
  layout.parameters = {{"width", width}};
  layout.rows = csr.rows;
  layout.cols = csr.cols;
  layout.nnz = csr.nnz();
  layout.value_slots = slots;
  if (!even) layout.arrays.push_back(*std::move(lengths));
  layout.arrays.push_back(*std::move(columns));
  layout.arrays.push_back(*std::move(source));
  return layout;
}

}  // namespace sparsed
