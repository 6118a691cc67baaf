// Records from the catalog's rows.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "engine/store/blob.h"
#include "engine/store/database.h"
#include "engine/store/store.h"

namespace sparsed::engine {

/// The blobs that rows refer to, by number.
using Blobs = std::unordered_map<int64_t, std::shared_ptr<Blob>>;

/// Name of DensityMap::packed in the table of features.
inline constexpr std::string_view kPackedDensityMap = "packed_density_map";

/// What the tables of measurements have in common.
inline constexpr std::string_view kMeasurementColumns =
    "class, recipe, kernel, device, k, median_ms, runs, measured_unix_ns, baseline_ms, floor_ms, "
    "preparation_ms, model, right_pattern, transposed, compulsory_bytes, censored";

absl::StatusOr<StoreContents> LoadContents(Database& database, const Blobs& blobs);
/// None if it is not stored.
absl::StatusOr<std::optional<PatternRecord>> LoadPattern(Database& database, const Blobs& blobs,
                                                         const std::string& hash);
absl::StatusOr<std::optional<MatrixRecord>> LoadMatrix(Database& database, const Blobs& blobs,
                                                       const std::string& tenant,
                                                       const std::string& name);
/// None if not all of them are stored. `memory` is the density map's.
absl::StatusOr<std::optional<Features>> LoadFeatures(Database& database, const std::string& hash,
                                                     MemorySource& memory);
/// The one whose hash comes next after `hash`; none after the last. `memory` is the density map's.
absl::StatusOr<std::optional<PastPattern>> LoadNextPast(Database& database, const std::string& hash,
                                                        MemorySource& memory);
/// The array whose blob has the lowest number above `number`; none after the last.
absl::StatusOr<std::optional<StoredArray>> NextArray(Database& database, const Blobs& blobs,
                                                     int64_t number);

}  // namespace sparsed::engine
