#include "engine/catalog/stored.h"

#include <algorithm>
#include <utility>

#include "kernels/formats/csr.h"

namespace sparsed::engine {

LazyArray::DiskCopy DiskCopyOf(Store& store, Budget& budget, MemoryUse use, MemoryOwner& payer,
                               const StoredArray& array) {
  return {[&store, &memory = budget.Source(use, &payer), array](LazyArray::Stop stop) {
            return store.Read(array, memory, stop);
          },
          [array] { return IsIntact(array); }, budget.evictions(), &payer};
}

LazyLayout::DiskCopy DiskCopyOf(Store& store, Budget& budget, MemoryOwner* payer,
                                const PatternRecord& pattern) {
  return {[&store, &memory = budget.Source(MemoryUse::kMatrices, payer), rows = pattern.rows,
           cols = pattern.cols, row_offsets = pattern.row_offsets,
           column_indices = pattern.column_indices](
              LazyLayout::Stop stop) -> absl::StatusOr<std::shared_ptr<const Layout>> {
            absl::StatusOr<Array> offsets = store.Read(row_offsets, memory, stop);
            if (!offsets.ok()) return offsets.status();
            absl::StatusOr<Array> columns = store.Read(column_indices, memory, stop);
            if (!columns.ok()) return columns.status();
            return std::make_shared<const Layout>(
                MakeCsrLayout(rows, cols, *std::move(offsets), *std::move(columns)));
          },
          [row_offsets = pattern.row_offsets, column_indices = pattern.column_indices] {
            return IsIntact(row_offsets) && IsIntact(column_indices);
          },
          budget.evictions(), payer};
}

LazyLayout::DiskCopy DiskCopyOf(Store& store, Budget& budget, MemoryOwner* payer,
                                const LayoutRecord& layout) {
  return {[&store, &memory = budget.Source(MemoryUse::kLayouts, payer),
           layout](LazyLayout::Stop stop) -> absl::StatusOr<std::shared_ptr<const Layout>> {
            absl::StatusOr<Layout> read = store.ReadLayout(layout, memory, stop);
            if (!read.ok()) return read.status();
            return std::make_shared<const Layout>(*std::move(read));
          },
          [arrays = layout.arrays] { return std::ranges::all_of(arrays, IsIntact); },
          budget.evictions(), payer};
}

}  // namespace sparsed::engine
