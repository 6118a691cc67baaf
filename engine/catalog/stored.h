// What the store has, as the catalog holds it: read when it is needed, evicted while nobody uses
// it.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/catalog/trial_log.h"
#include "engine/memory/budget.h"
#include "engine/memory/lazy_array.h"
#include "engine/store/store.h"

namespace sparsed::engine {

/// Read into memory of `budget` that `payer`, one of its owners, pays for. `store` and `budget`
/// outlive it. `array` is readable().
LazyArray::DiskCopy DiskCopyOf(Store& store, Budget& budget, MemoryUse use, MemoryOwner& payer,
                               const StoredArray& array);
/// Plain CSR; `payer` may be null.
LazyLayout::DiskCopy DiskCopyOf(Store& store, Budget& budget, MemoryOwner* payer,
                                const PatternRecord& pattern);
LazyLayout::DiskCopy DiskCopyOf(Store& store, Budget& budget, MemoryOwner* payer,
                                const LayoutRecord& layout);

/// As Store::ReadLayout, with what is known of a layout and not stored.
absl::StatusOr<Layout> ReadLayout(Store& store, const LayoutRecord& layout, MemorySource& memory,
                                  Store::Stop stop);

/// On a pattern of `nnz` nonzeros; none if there is no such signature (any more).
std::optional<Measurement> FromRecord(const MeasurementRecord& record, int64_t nnz);
PatternMeasurements FromRecord(PastPattern past);

}  // namespace sparsed::engine
