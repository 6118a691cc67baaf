#include "kernels/formats/aspt.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "kernels/formats/csr_build.h"
#include "kernels/formats/panel_columns.h"
#include "kernels/formats/permute.h"

namespace sparsed {
namespace {

/// The arrays while they are filled.
struct Parts {
  Array panel_offsets, panel_columns, dense_row_offsets, dense_indices;
  Array remainder_row_offsets, remainder_columns, value_source;
};

absl::Status AllocateInto(Array& array, std::string_view name, ElementType type, int64_t length,
                          const BuildContext& context) {
  auto allocated = AllocateArray(*context.memory, name, type, length);
  if (!allocated.ok()) return allocated.status();
  array = *std::move(allocated);
  return absl::OkStatus();
}

/// Pass 1: how many dense columns each panel and how many entries of either kind each row has.
absl::Status CountParts(const Panels& panels, int64_t min_dense, Parts& parts,
                        const BuildContext& context) {
  const int64_t rows = panels.csr.rows;
  absl::Status status = AllocateInto(parts.panel_offsets, "panel_offsets", ElementType::kI64,
                                     panels.count() + 1, context);
  if (status.ok()) {
    status = AllocateInto(parts.dense_row_offsets, "dense_row_offsets", ElementType::kI64, rows + 1,
                          context);
  }
  if (status.ok()) {
    status = AllocateInto(parts.remainder_row_offsets, "remainder_row_offsets", ElementType::kI64,
                          rows + 1, context);
  }
  if (!status.ok()) return status;
  const auto panel_offsets = parts.panel_offsets.MutableAs<int64_t>();
  const auto dense_offsets = parts.dense_row_offsets.MutableAs<int64_t>();
  const auto remainder_offsets = parts.remainder_row_offsets.MutableAs<int64_t>();
  panel_offsets[0] = dense_offsets[0] = remainder_offsets[0] = 0;
  status = ForEachPanel(panels, context, [&](int64_t panel, PanelColumns& columns) {
    int64_t dense_columns = 0;
    for (int64_t i = 0; i < columns.distinct(); ++i) {
      dense_columns += columns.Distinct(i).number >= min_dense;
    }
    panel_offsets[panel + 1] = dense_columns;
    const RowRange rows = panels.Rows(panel);
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      int64_t dense = 0;
      for (int32_t column : panels.Columns(r)) dense += columns[column] >= min_dense;
      dense_offsets[r + 1] = dense;
      remainder_offsets[r + 1] = static_cast<int64_t>(panels.Columns(r).size()) - dense;
    }
  });
  if (!status.ok()) return status;
  for (auto offsets : {panel_offsets, dense_offsets, remainder_offsets}) {
    std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
  }
  return absl::OkStatus();
}

/// Lists the panel's dense columns, ascending, in `dense` and numbers them; others become -1.
void NumberDenseColumns(PanelColumns& columns, int64_t min_dense, std::span<int32_t> dense) {
  int64_t count = 0;
  for (int64_t i = 0; i < columns.distinct(); ++i) {
    PanelColumns::Entry& entry = columns.Distinct(i);
    if (entry.number >= min_dense) dense[count++] = entry.column;
    entry.number = -1;
  }
  std::sort(dense.begin(), dense.end());
  for (int64_t i = 0; i < count; ++i) columns[dense[i]] = static_cast<int32_t>(i);
}

/// Pass 2: the entries.
absl::Status FillParts(const Panels& panels, int64_t min_dense, Parts& parts,
                       const BuildContext& context) {
  const auto panel_offsets = parts.panel_offsets.As<int64_t>();
  const auto dense_offsets = parts.dense_row_offsets.As<int64_t>();
  const auto remainder_offsets = parts.remainder_row_offsets.As<int64_t>();
  const int64_t dense_nnz = dense_offsets.back();
  const int64_t nnz = panels.csr.nnz();
  absl::Status status = AllocateInto(parts.panel_columns, "panel_columns", ElementType::kI32,
                                     panel_offsets.back(), context);
  if (status.ok()) {
    status =
        AllocateInto(parts.dense_indices, "dense_indices", ElementType::kI32, dense_nnz, context);
  }
  if (status.ok()) {
    status = AllocateInto(parts.remainder_columns, "remainder_columns", ElementType::kI32,
                          nnz - dense_nnz, context);
  }
  if (status.ok()) {
    status = AllocateInto(parts.value_source, kValueSource, SourceType(nnz), nnz, context);
  }
  if (!status.ok()) return status;
  const auto panel_columns = parts.panel_columns.MutableAs<int32_t>();
  const auto dense_indices = parts.dense_indices.MutableAs<int32_t>();
  const auto remainder_columns = parts.remainder_columns.MutableAs<int32_t>();
  WithSource(parts.value_source, [&](auto source) {
    using Source = typename decltype(source)::value_type;
    status = ForEachPanel(panels, context, [&](int64_t panel, PanelColumns& columns) {
      const int64_t first = panel_offsets[panel];
      NumberDenseColumns(columns, min_dense,
                         panel_columns.subspan(first, panel_offsets[panel + 1] - first));
      const RowRange rows = panels.Rows(panel);
      for (int64_t r = rows.begin; r < rows.end; ++r) {
        int64_t d = dense_offsets[r];
        int64_t p = remainder_offsets[r];
        int64_t nonzero = panels.csr.row_offsets[panels.MatrixRow(r)];
        for (int32_t column : panels.Columns(r)) {
          const int32_t index = columns[column];
          if (index >= 0) {
            source[d] = static_cast<Source>(nonzero++);
            dense_indices[d++] = index;
          } else {
            source[dense_nnz + p] = static_cast<Source>(nonzero++);
            remainder_columns[p++] = column;
          }
        }
      }
    });
  });
  return status;
}

Array* FindArray(Layout& layout, std::string_view name) {
  for (Array& array : layout.arrays) {
    if (array.name == name) return &array;
  }
  return nullptr;
}

}  // namespace

AsptView ViewAspt(const Layout& layout) {
  AsptView view;
  view.rows = layout.rows;
  view.cols = layout.cols;
  view.panel = layout.Parameter("panel");
  view.row_order = layout.Elements<int32_t>("row_order");
  view.panel_offsets = layout.Elements<int64_t>("panel_offsets");
  view.panel_columns = layout.Elements<int32_t>("panel_columns");
  view.dense_row_offsets = layout.Elements<int64_t>("dense_row_offsets");
  view.dense_indices = layout.Elements<int32_t>("dense_indices");
  view.remainder_order = layout.Elements<int32_t>("remainder_order");
  view.remainder_row_offsets = layout.Elements<int64_t>("remainder_row_offsets");
  view.remainder_columns = layout.Elements<int32_t>("remainder_columns");
  return view;
}

Layout RemainderRows(const Layout& layout, std::optional<Array> row_order) {
  Layout csr = MakeCsrLayout(layout.rows, layout.cols, *layout.Find("remainder_row_offsets"),
                             *layout.Find("remainder_columns"));
  if (row_order) csr.arrays.push_back(*std::move(row_order));
  csr.transposed = layout.transposed;
  return csr;
}

absl::StatusOr<Layout> BuildAspt(const CsrView& csr, const AsptOptions& options,
                                 const BuildContext& context) {
  const Panels panels{csr, options.panel};
  Parts parts;
  if (context.progress) context.progress("aspt", 0, 2);
  absl::Status status = CountParts(panels, options.min_dense, parts, context);
  if (!status.ok()) return status;
  if (context.progress) context.progress("aspt", 1, 2);
  if (status = FillParts(panels, options.min_dense, parts, context); !status.ok()) return status;

  Layout layout;
  layout.kind = kAspt;
  layout.parameters = {{"panel", options.panel}, {"min_dense", options.min_dense}};
  layout.rows = csr.rows;
  layout.cols = csr.cols;
  layout.nnz = csr.nnz();
  layout.value_slots = layout.nnz;
  if (!csr.row_order.empty()) {
    Array row_order;
    status = AllocateInto(row_order, "row_order", ElementType::kI32, csr.rows, context);
    if (!status.ok()) return status;
    std::copy(csr.row_order.begin(), csr.row_order.end(), row_order.MutableAs<int32_t>().begin());
    layout.arrays.push_back(std::move(row_order));
  }
  for (Array* array :
       {&parts.panel_offsets, &parts.panel_columns, &parts.dense_row_offsets, &parts.dense_indices,
        &parts.remainder_row_offsets, &parts.remainder_columns, &parts.value_source}) {
    layout.arrays.push_back(std::move(*array));
  }
  return layout;
}

absl::Status PermuteRemainder(Layout& layout, Array order_array, const BuildContext& context) {
  order_array.name = "remainder_order";
  const auto order = order_array.As<int32_t>();
  const AsptView view = ViewAspt(layout);
  const auto from = view.remainder_row_offsets;
  auto offsets = PermuteOffsets(from, order, context);
  if (!offsets.ok()) return offsets.status();
  offsets->name = "remainder_row_offsets";
  const auto to = offsets->As<int64_t>();
  // Entries move from `entries` to a copy, row by row.
  auto permute = [&](auto entries, auto permuted) {
    ForEachRow(layout.rows, context, [&](int64_t q) {
      std::copy(entries.begin() + from[order[q]], entries.begin() + from[order[q] + 1],
                permuted.begin() + to[q]);
    });
  };
  {
    auto columns = AllocateArray(*context.memory, "remainder_columns", ElementType::kI32,
                                 static_cast<int64_t>(view.remainder_columns.size()));
    if (!columns.ok()) return columns.status();
    permute(view.remainder_columns, columns->MutableAs<int32_t>());
    *FindArray(layout, "remainder_columns") = *std::move(columns);
  }
  absl::Status status;
  WithSource(*FindArray(layout, kValueSource), [&](auto source) {
    Scratch<typename decltype(source)::value_type> permuted;
    const auto remainder = source.subspan(view.dense_nnz());
    status = permuted.Allocate(*context.memory, static_cast<int64_t>(remainder.size()));
    if (!status.ok()) return;
    permute(remainder, permuted.span());
    std::copy(permuted.data(), permuted.data() + permuted.size(), remainder.begin());
  });
  if (!status.ok()) return status;
  *FindArray(layout, "remainder_row_offsets") = *std::move(offsets);
  layout.arrays.push_back(std::move(order_array));
  return context.stopped() ? absl::CancelledError("the build was stopped") : absl::OkStatus();
}

}  // namespace sparsed
