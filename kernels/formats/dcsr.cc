#include "kernels/formats/dcsr.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/formats/csr_build.h"
#include "kernels/formats/permute.h"

namespace sparsed {
namespace {

/// Fills row_order and returns how many of its rows are stored.
int64_t OrderRows(const CsrView& csr, std::span<int32_t> row_order) {
  int64_t stored = 0, empty = csr.rows;
  for (int64_t r = 0; r < csr.rows; ++r) {
    const int64_t row = csr.row_order.empty() ? r : csr.row_order[r];
    const bool has_nonzeros = csr.row_offsets[row] < csr.row_offsets[row + 1];
    row_order[has_nonzeros ? stored++ : --empty] = static_cast<int32_t>(row);
  }
  std::reverse(row_order.begin() + stored, row_order.end());
  return stored;
}

}  // namespace

std::span<const int32_t> EmptyRows(const Layout& layout) {
  const int64_t stored = layout.Find("row_offsets")->length - 1;
  return layout.Find("row_order")->As<int32_t>().subspan(stored);
}

Layout StoredRows(const Layout& layout) {
  Layout csr = MakeCsrLayout(layout.Find("row_offsets")->length - 1, layout.cols,
                             *layout.Find("row_offsets"), *layout.Find("column_indices"));
  Array row_order = *layout.Find("row_order");
  row_order.length = csr.rows;
  csr.arrays.push_back(std::move(row_order));
  if (const Array* source = layout.Find(kValueSource)) csr.arrays.push_back(*source);
  csr.transposed = layout.transposed;
  return csr;
}

absl::StatusOr<Layout> BuildDcsr(const CsrView& csr, bool with_source,
                                 const BuildContext& context) {
  MemorySource& memory = *context.memory;
  auto order = AllocateArray(memory, "row_order", ElementType::kI32, csr.rows);
  if (!order.ok()) return order.status();
  const int64_t stored = OrderRows(csr, order->MutableAs<int32_t>());
  const auto rows = order->As<int32_t>().first(stored);
  auto offsets = PermuteOffsets(csr.row_offsets, rows, context);
  if (!offsets.ok()) return offsets.status();
  auto columns = AllocateArray(memory, "column_indices", ElementType::kI32, csr.nnz());
  if (!columns.ok()) return columns.status();

  const auto to = offsets->As<int64_t>();
  const auto column_slots = columns->MutableAs<int32_t>();
  ForEachRow(stored, context, [&](int64_t r) {
    std::copy(csr.column_indices.begin() + csr.row_offsets[rows[r]],
              csr.column_indices.begin() + csr.row_offsets[rows[r] + 1],
              column_slots.begin() + to[r]);
  });
  Layout layout;
  layout.kind = kDcsr;
  layout.rows = csr.rows;
  layout.cols = csr.cols;
  layout.nnz = layout.value_slots = csr.nnz();
  for (auto* array : {&order, &offsets, &columns}) layout.arrays.push_back(**std::move(array));
  if (with_source || !csr.row_order.empty()) {
    auto source = AllocateArray(memory, kValueSource, SourceType(csr.nnz()), csr.nnz());
    if (!source.ok()) return source.status();
    WithSource(*source, [&](auto slots) {
      ForEachRow(stored, context, [&](int64_t r) {
        std::iota(slots.begin() + to[r], slots.begin() + to[r + 1], csr.row_offsets[rows[r]]);
      });
    });
    layout.arrays.push_back(*std::move(source));
  }
  if (context.stopped()) return absl::CancelledError("the build was stopped");
  return layout;
}

}  // namespace sparsed
