#include "kernels/formats/coo_panels.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/formats/csr_build.h"
#include "kernels/formats/panel_columns.h"
#include "kernels/formats/permute.h"
#include "kernels/scratch.h"

namespace sparsed {
namespace {

/// starts[p] = the entries before panel p. Columns are numbered in 32 bits within a panel.
absl::Status CountEntries(const Panels& panels, std::span<int64_t> starts) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  int64_t entries = 0;
  for (int64_t panel = 0; panel < panels.count(); ++panel) {
    starts[panel] = entries;
    const RowRange rows = panels.Rows(panel);
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      entries += static_cast<int64_t>(panels.Columns(r).size());
    }
    if (entries - starts[panel] > kMost) {
      return absl::ResourceExhaustedError(fmt::format(
          "coo_panels: {} nonzeros in one panel, the most are {}", entries - starts[panel], kMost));
    }
  }
  return absl::OkStatus();
}

/// Gives each column of the panel the number of its first entry, from `first` on, in place of its
/// count. `order` has room for the panel's distinct columns.
void NumberEntries(PanelColumns& columns, std::span<int32_t> order) {
  for (int64_t i = 0; i < columns.distinct(); ++i) order[i] = columns.Distinct(i).column;
  std::sort(order.begin(), order.begin() + columns.distinct());
  int32_t next = 0;
  for (int64_t i = 0; i < columns.distinct(); ++i) {
    next += std::exchange(columns[order[i]], next);
  }
}

}  // namespace

CooPanelsView ViewCooPanels(const Layout& layout) {
  CooPanelsView view;
  view.rows = layout.rows;
  view.cols = layout.cols;
  view.entry_rows = layout.Elements<int32_t>("entry_rows");
  view.entry_columns = layout.Elements<int32_t>("entry_columns");
  return view;
}

absl::StatusOr<Layout> BuildCooPanels(const CsrView& csr, int64_t panel_rows,
                                      const BuildContext& context) {
  const Panels panels{csr, panel_rows};
  MemorySource& memory = *context.memory;
  if (context.progress) context.progress("coo_panels", 0, 1);
  Scratch<int64_t> starts;
  absl::Status status = starts.Allocate(memory, panels.count());
  if (!status.ok()) return status;
  status = CountEntries(panels, starts.span());
  if (!status.ok()) return status;

  auto rows = AllocateArray(memory, "entry_rows", ElementType::kI32, csr.nnz());
  if (!rows.ok()) return rows.status();
  auto columns = AllocateArray(memory, "entry_columns", ElementType::kI32, csr.nnz());
  if (!columns.ok()) return columns.status();
  auto source = AllocateArray(memory, kValueSource, SourceType(csr.nnz()), csr.nnz());
  if (!source.ok()) return source.status();
  const auto entry_rows = rows->MutableAs<int32_t>();
  const auto entry_columns = columns->MutableAs<int32_t>();
  WithSource(*source, [&](auto nonzeros) {
    using Source = typename decltype(nonzeros)::value_type;
    status = ForEachPanel(panels, context, [&](int64_t panel, PanelColumns& numbers) {
      const int64_t first = starts[panel];
      NumberEntries(numbers, entry_columns.subspan(first));
      const RowRange range = panels.Rows(panel);
      for (int64_t r = range.begin; r < range.end; ++r) {
        const int64_t row = panels.MatrixRow(r);
        int64_t nonzero = csr.row_offsets[row];
        for (const int32_t column : panels.Columns(r)) {
          const int64_t entry = first + numbers[column]++;
          entry_rows[entry] = static_cast<int32_t>(row);
          entry_columns[entry] = column;
          nonzeros[entry] = static_cast<Source>(nonzero++);
        }
      }
    });
  });
  if (!status.ok()) return status;

  Layout layout;
  layout.kind = kCooPanels;
  layout.parameters = {{"rows", panel_rows}};
  layout.rows = csr.rows;
  layout.cols = csr.cols;
  layout.nnz = csr.nnz();
  layout.value_slots = csr.nnz();
  for (auto* array : {&rows, &columns, &source}) layout.arrays.push_back(**std::move(array));
  return layout;
}

}  // namespace sparsed
