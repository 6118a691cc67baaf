#include "kernels/formats/row_panels.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/formats/csr_build.h"
#include "kernels/formats/panel_columns.h"
#include "kernels/formats/permute.h"

namespace sparsed {
namespace {

/// A panel is long if it holds up a processor that gets its fair share of all slots.
int64_t LongSlots(int64_t slots) { return std::clamp<int64_t>(slots / 4096, 128, 512); }

/// offsets[p + 1] = the distinct columns of panel p, added up.
absl::Status CountSlots(const Panels& panels, std::span<int64_t> offsets,
                        const BuildContext& context) {
  offsets[0] = 0;
  absl::Status status = ForEachPanel(panels, context, [&](int64_t panel, PanelColumns& columns) {
    offsets[panel + 1] = columns.distinct();
  });
  if (status.ok()) std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
  return status;
}

/// Lists the panel's columns, ascending, and numbers them.
void NumberColumns(PanelColumns& columns, std::span<int32_t> list) {
  for (int64_t i = 0; i < columns.distinct(); ++i) list[i] = columns.Distinct(i).column;
  std::sort(list.begin(), list.end());
  for (size_t i = 0; i < list.size(); ++i) columns[list[i]] = static_cast<int32_t>(i);
}

absl::StatusOr<Array> ListLongPanels(std::span<const int64_t> offsets, int64_t long_slots,
                                     const BuildContext& context) {
  const auto is_long = [&](size_t panel) {
    return offsets[panel + 1] - offsets[panel] > long_slots;
  };
  int64_t count = 0;
  for (size_t panel = 0; panel + 1 < offsets.size(); ++panel) count += is_long(panel);
  auto list = AllocateArray(*context.memory, "long_panels", ElementType::kI32, count);
  if (!list.ok()) return list.status();
  auto next = list->MutableAs<int32_t>().begin();
  for (size_t panel = 0; panel + 1 < offsets.size(); ++panel) {
    if (is_long(panel)) *next++ = static_cast<int32_t>(panel);
  }
  return list;
}

}  // namespace

RowPanelsView ViewRowPanels(const Layout& layout) {
  RowPanelsView view;
  view.rows = layout.rows;
  view.cols = layout.cols;
  view.panel_rows = layout.Parameter("rows");
  view.long_slots = layout.Parameter("long");
  view.row_order = layout.Elements<int32_t>("row_order");
  view.panel_offsets = layout.Elements<int64_t>("panel_offsets");
  view.panel_columns = layout.Elements<int32_t>("panel_columns");
  view.row_masks = layout.Elements<int32_t>("row_masks");
  view.long_panels = layout.Elements<int32_t>("long_panels");
  return view;
}

absl::StatusOr<int64_t> CountPanelSlots(const CsrView& csr, int64_t panel_rows,
                                        const BuildContext& context) {
  std::atomic<int64_t> slots = 0;
  const absl::Status status =
      ForEachPanel({csr, panel_rows}, context, [&](int64_t, PanelColumns& columns) {
        slots.fetch_add(columns.distinct(), std::memory_order_relaxed);
      });
  if (!status.ok()) return status;
  return slots.load();
}

absl::StatusOr<Layout> BuildRowPanels(const CsrView& csr, int64_t panel_rows,
                                      const BuildContext& context) {
  const Panels panels{csr, panel_rows};
  MemorySource& memory = *context.memory;
  if (context.progress) context.progress("row_panels", 0, 2);
  auto offsets = AllocateArray(memory, "panel_offsets", ElementType::kI64, panels.count() + 1);
  if (!offsets.ok()) return offsets.status();
  const auto panel_offsets = offsets->MutableAs<int64_t>();
  absl::Status status = CountSlots(panels, panel_offsets, context);
  if (!status.ok()) return status;
  const int64_t slots = panel_offsets.back();
  if (context.progress) context.progress("row_panels", 1, 2);

  auto columns = AllocateArray(memory, "panel_columns", ElementType::kI32, slots);
  if (!columns.ok()) return columns.status();
  auto masks = AllocateArray(memory, "row_masks", ElementType::kI32, slots);
  if (!masks.ok()) return masks.status();
  auto source = AllocateArray(memory, kValueSource, SourceType(csr.nnz()), panel_rows * slots);
  if (!source.ok()) return source.status();
  const auto panel_columns = columns->MutableAs<int32_t>();
  const auto row_masks = masks->MutableAs<int32_t>();
  WithSource(*source, [&](auto nonzeros) {
    using Source = typename decltype(nonzeros)::value_type;
    status = ForEachPanel(panels, context, [&](int64_t panel, PanelColumns& numbers) {
      const int64_t first = panel_offsets[panel];
      const int64_t count = panel_offsets[panel + 1] - first;
      NumberColumns(numbers, panel_columns.subspan(first, count));
      const auto panel_masks = row_masks.subspan(first, count);
      const auto panel_source = nonzeros.subspan(first * panel_rows, count * panel_rows);
      std::fill(panel_masks.begin(), panel_masks.end(), 0);
      std::fill(panel_source.begin(), panel_source.end(), Source{-1});
      const RowRange rows = panels.Rows(panel);
      for (int64_t r = rows.begin; r < rows.end; ++r) {
        const int64_t i = r - rows.begin;
        int64_t nonzero = csr.row_offsets[panels.MatrixRow(r)];
        for (const int32_t column : panels.Columns(r)) {
          const int64_t slot = numbers[column];
          panel_masks[slot] |= static_cast<int32_t>(uint32_t{1} << i);
          panel_source[slot * panel_rows + i] = static_cast<Source>(nonzero++);
        }
      }
    });
  });
  if (!status.ok()) return status;
  const int64_t long_slots = LongSlots(slots);
  auto long_panels = ListLongPanels(panel_offsets, long_slots, context);
  if (!long_panels.ok()) return long_panels.status();

  Layout layout;
  layout.kind = kRowPanels;
  layout.parameters = {{"rows", panel_rows}, {"long", long_slots}};
  layout.rows = csr.rows;
  layout.cols = csr.cols;
  layout.nnz = csr.nnz();
  layout.value_slots = panel_rows * slots;
  if (!csr.row_order.empty()) {
    auto order = AllocateArray(memory, "row_order", ElementType::kI32, csr.rows);
    if (!order.ok()) return order.status();
    std::copy(csr.row_order.begin(), csr.row_order.end(), order->MutableAs<int32_t>().begin());
    layout.arrays.push_back(*std::move(order));
  }
  for (auto* array : {&offsets, &columns, &masks, &long_panels, &source}) {
    layout.arrays.push_back(**std::move(array));
  }
  return layout;
}

}  // namespace sparsed
