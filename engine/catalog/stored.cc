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
                MakeHostCsrLayout(rows, cols, *std::move(offsets), *std::move(columns)));
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
            absl::StatusOr<Layout> read = ReadLayout(store, layout, memory, stop);
            if (!read.ok()) return read.status();
            return std::make_shared<const Layout>(*std::move(read));
          },
          [arrays = layout.arrays] { return std::ranges::all_of(arrays, IsIntact); },
          budget.evictions(), payer};
}

absl::StatusOr<Layout> ReadLayout(Store& store, const LayoutRecord& layout, MemorySource& memory,
                                  Store::Stop stop) {
  absl::StatusOr<Layout> read = store.ReadLayout(layout, memory, stop);
  if (read.ok() && read->kind == kCsr) {
    read->longest_row = LongestRow(ViewCsr(*read).row_offsets);
  }
  return read;
}

std::optional<Measurement> FromRecord(const MeasurementRecord& record, int64_t nnz) {
  const std::optional<ProblemSignature> c = ParseProblemSignature(record.signature);
  if (!c) return std::nullopt;
  Measurement measurement;
  measurement.signature = *c;
  measurement.k = record.k;
  measurement.pipeline = record.pipeline;
  measurement.kernel = record.kernel;
  measurement.device = record.device;
  measurement.median_ms = record.median_ms;
  // Of a pair's products, whose number is not stored, the rate is not known any more.
  measurement.gflops = Gflops(nnz, record.k, record.median_ms);
  measurement.runs = record.runs;
  measurement.baseline_ms = record.baseline_ms;
  measurement.roofline_ms = record.roofline_ms;
  measurement.preparation_ms = record.preparation_ms;
  measurement.model = record.model;
  measurement.pair = record.pair;
  measurement.compulsory_bytes = record.compulsory_bytes;
  measurement.censored = record.censored;
  return measurement;
}

PatternMeasurements FromRecord(PastPattern past) {
  PatternMeasurements known;
  known.past = true;
  known.pattern_hash = std::move(past.hash);
  if (past.features) known.features = std::make_shared<const Features>(*std::move(past.features));
  const int64_t nnz = known.features == nullptr ? 0 : static_cast<int64_t>(known.features->nnz);
  for (const MeasurementRecord& record : past.measurements) {
    std::optional<Measurement> measurement = FromRecord(record, nnz);
    if (measurement) known.measurements.push_back(*std::move(measurement));
  }
  return known;
}

}  // namespace sparsed::engine
