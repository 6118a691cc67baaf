#include "engine/store/records.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

namespace sparsed::engine {
namespace {

/// Of catalogs from before it was packed: all counts.
constexpr std::string_view kUnpackedDensityMap = "density_map";

using Kind = ArrayOwner::Kind;
using Values = std::initializer_list<Database::Value>;
/// By the kind and the row of their owner, in order.
using Arrays = std::map<std::pair<Kind, int64_t>, std::vector<StoredArray>>;

// `a` the array, and the row of its owner with the pattern that this belongs to.
constexpr std::string_view kSelectArrays =
    "SELECT a.blob, a.name, a.type, a.length, a.pattern, a.matrix, a.layout, a.buffer,"
    "       coalesce(p.hash, mp.hash, lp.hash), coalesce(m.tenant, b.tenant),"
    "       coalesce(m.name, b.name), l.recipe"
    "  FROM arrays a"
    "  LEFT JOIN patterns p ON p.id = a.pattern"
    "  LEFT JOIN matrices m ON m.id = a.matrix LEFT JOIN patterns mp ON mp.id = m.pattern"
    "  LEFT JOIN layouts l ON l.id = a.layout LEFT JOIN patterns lp ON lp.id = l.pattern"
    "  LEFT JOIN buffers b ON b.id = a.buffer ";

std::pair<Kind, int64_t> OwnerOf(const Row& row) {
  if (!row.IsNull(4)) return {Kind::kPattern, row.Integer(4)};
  if (!row.IsNull(5)) return {Kind::kMatrix, row.Integer(5)};
  if (!row.IsNull(6)) return {Kind::kLayout, row.Integer(6)};
  return {Kind::kBuffer, row.Integer(7)};
}

absl::StatusOr<Arrays> LoadArrays(Database& database, const Blobs& blobs, std::string_view filter,
                                  Values values) {
  Arrays arrays;
  absl::Status status =
      database.Query(fmt::format("{}{}", kSelectArrays, filter), values, [&](const Row& row) {
        const std::pair<Kind, int64_t> owner = OwnerOf(row);
        const auto blob = blobs.find(row.Integer(0));
        arrays[owner].push_back(
            {{owner.first, row.Text(8), row.Text(9), row.Text(10), row.Text(11)},
             row.Text(1),
             static_cast<ElementType>(row.Integer(2)),
             row.Integer(3),
             blob == blobs.end() ? nullptr : blob->second});
      });
  if (!status.ok()) return status;
  return arrays;
}

/// Fails if an array that a record needs has no row.
class ArrayFinder {
 public:
  ArrayFinder(const Database& database, const Arrays& arrays)
      : database_(database), arrays_(arrays) {}

  std::vector<StoredArray> All(Kind kind, int64_t id) const {
    const auto it = arrays_.find({kind, id});
    return it == arrays_.end() ? std::vector<StoredArray>() : it->second;
  }
  std::optional<StoredArray> Find(Kind kind, int64_t id, std::string_view name) const {
    for (StoredArray& array : All(kind, id)) {
      if (array.name == name) return std::move(array);
    }
    return std::nullopt;
  }
  StoredArray Get(Kind kind, int64_t id, std::string_view name) {
    std::optional<StoredArray> array = Find(kind, id, name);
    if (array) return *std::move(array);
    if (status_.ok()) {
      status_ = database_.Damaged(fmt::format("the array {} of an entry is missing", name));
    }
    return {};
  }
  const absl::Status& status() const { return status_; }

 private:
  const Database& database_;
  const Arrays& arrays_;
  absl::Status status_;
};

absl::StatusOr<std::vector<PatternRecord>> LoadPatterns(Database& database, const Arrays& arrays,
                                                        std::string_view filter, Values values) {
  std::vector<PatternRecord> patterns;
  ArrayFinder finder(database, arrays);
  absl::Status status = database.Query(
      fmt::format("SELECT id, hash, rows, cols, nnz, preparation_state, preparation_detail,"
                  "       preparation_seconds FROM patterns {} ORDER BY hash",
                  filter),
      values, [&](const Row& row) {
        const int64_t id = row.Integer(0);
        patterns.push_back({row.Text(1),
                            row.Integer(2),
                            row.Integer(3),
                            row.Integer(4),
                            finder.Get(Kind::kPattern, id, "row_offsets"),
                            finder.Get(Kind::kPattern, id, "column_indices"),
                            {row.Text(5), row.Text(6), row.Real(7)}});
      });
  status.Update(finder.status());
  if (!status.ok()) return status;
  return patterns;
}

absl::StatusOr<std::vector<MatrixRecord>> LoadMatrices(Database& database, const Arrays& arrays,
                                                       std::string_view filter, Values values) {
  std::vector<MatrixRecord> matrices;
  ArrayFinder finder(database, arrays);
  absl::Status status = database.Query(
      fmt::format("SELECT m.id, m.tenant, m.name, p.hash, m.version, m.created_unix_ns,"
                  "       max(m.version, m.used_version), m.time_to_live_ns"
                  "  FROM matrices m JOIN patterns p ON p.id = m.pattern {}"
                  " ORDER BY m.tenant, m.name",
                  filter),
      values, [&](const Row& row) {
        const int64_t id = row.Integer(0);
        StoredArray array = finder.Get(Kind::kMatrix, id, "values");
        const ElementType type = array.type;
        matrices.push_back({row.Text(1), row.Text(2), row.Text(3), type,
                            static_cast<uint64_t>(row.Integer(4)),
                            static_cast<uint64_t>(row.Integer(6)), row.Integer(5), std::move(array),
                            finder.Find(Kind::kMatrix, id, "value_order"), row.Integer(7)});
      });
  status.Update(finder.status());
  if (!status.ok()) return status;
  return matrices;
}

absl::StatusOr<std::vector<ShareRecord>> LoadShares(Database& database) {
  std::vector<ShareRecord> shares;
  absl::Status status = database.Query(
      "SELECT m.tenant, m.name, s.tenant, s.may_write"
      "  FROM shares s JOIN matrices m ON m.id = s.matrix ORDER BY m.tenant, m.name, s.tenant",
      {}, [&](const Row& row) {
        shares.push_back({row.Text(0), row.Text(1), row.Text(2), row.Integer(3) != 0});
      });
  if (!status.ok()) return status;
  return shares;
}

absl::StatusOr<std::vector<LayoutRecord>> LoadLayouts(Database& database, const Arrays& arrays) {
  std::map<int64_t, std::vector<std::pair<std::string, int64_t>>> parameters;
  absl::Status status =
      database.Query("SELECT layout, name, value FROM layout_parameters ORDER BY layout, position",
                     {}, [&](const Row& row) {
                       parameters[row.Integer(0)].emplace_back(row.Text(1), row.Integer(2));
                     });
  if (!status.ok()) return status;
  std::vector<LayoutRecord> layouts;
  const ArrayFinder finder(database, arrays);
  status = database.Query(
      "SELECT l.id, p.hash, l.kind, l.recipe, l.rows, l.cols, l.nnz, l.transposed, l.value_slots,"
      "       l.build_seconds"
      "  FROM layouts l JOIN patterns p ON p.id = l.pattern ORDER BY p.hash, l.recipe",
      {}, [&](const Row& row) {
        const int64_t id = row.Integer(0);
        layouts.push_back({row.Text(1),
                           {row.Text(2),
                            row.Text(3),
                            parameters[id],
                            row.Integer(4),
                            row.Integer(5),
                            row.Integer(6),
                            row.Integer(7) != 0,
                            row.Integer(8),
                            {}},
                           row.Real(9),
                           finder.All(Kind::kLayout, id)});
      });
  if (!status.ok()) return status;
  return layouts;
}

/// Of two columns, right_pattern and transposed: 1 is the left one, 2 the right one.
std::optional<PatternPair> PairOf(const Row& row, int column) {
  PatternPair pair = {row.Text(column), (row.Integer(column + 1) & 1) != 0,
                      (row.Integer(column + 1) & 2) != 0};
  return pair.right.empty() ? std::nullopt : std::optional(std::move(pair));
}

absl::StatusOr<std::vector<PlanRecord>> LoadPlans(Database& database) {
  std::vector<PlanRecord> plans;
  absl::Status status = database.Query(
      "SELECT p.hash, q.class, q.recipe, q.kernel, q.baseline_ms, q.plan_ms, q.reason,"
      "       q.distribution, q.gpus, q.whole_ms, q.best_ms"
      "  FROM plans q JOIN patterns p ON p.id = q.pattern ORDER BY p.hash, q.class",
      {}, [&](const Row& row) {
        plans.push_back({row.Text(0), row.Text(1), row.Text(2), row.Text(3), row.Real(4),
                         row.Real(5), row.Text(6), row.Text(7),
                         static_cast<int32_t>(row.Integer(8)), row.Real(9), row.Real(10)});
      });
  if (!status.ok()) return status;
  return plans;
}

/// Of a row with the pattern's hash and kMeasurementColumns.
MeasurementRecord MeasurementOf(const Row& row) {
  return {row.Text(0),    row.Text(1),     row.Text(2),  row.Text(3),
          row.Text(4),    row.Integer(5),  row.Real(6),  static_cast<int32_t>(row.Integer(7)),
          row.Integer(8), row.Real(9),     row.Real(10), row.Real(11),
          row.Text(12),   PairOf(row, 13), row.Real(15), row.Integer(16) != 0};
}

absl::StatusOr<std::vector<MeasurementRecord>> LoadMeasurements(Database& database) {
  std::vector<MeasurementRecord> measurements;
  absl::Status status = database.Query(
      fmt::format("SELECT p.hash, {} FROM measurements q JOIN patterns p ON p.id = q.pattern"
                  " ORDER BY q.id",
                  kMeasurementColumns),
      {}, [&](const Row& row) { measurements.push_back(MeasurementOf(row)); });
  if (!status.ok()) return status;
  return measurements;
}

absl::StatusOr<std::vector<DecisionRecord>> LoadDecisions(Database& database) {
  std::vector<DecisionRecord> decisions;
  absl::Status status = database.Query(
      "SELECT p.hash, d.class, d.recipe, d.tried, d.reason, d.kernel, d.right_pattern,"
      "       d.transposed"
      "  FROM decisions d JOIN patterns p ON p.id = d.pattern ORDER BY d.id",
      {}, [&](const Row& row) {
        decisions.push_back({row.Text(0), row.Text(1), row.Text(2), row.Integer(3) != 0,
                             row.Text(4), row.Text(5), PairOf(row, 6)});
      });
  if (!status.ok()) return status;
  return decisions;
}

absl::StatusOr<std::vector<WantedRecord>> LoadWanted(Database& database) {
  std::vector<WantedRecord> wanted;
  absl::Status status = database.Query(
      "SELECT p.hash, w.class FROM wanted w JOIN patterns p ON p.id = w.pattern"
      " ORDER BY p.hash, w.class",
      {}, [&](const Row& row) {
        wanted.push_back({row.Text(0), row.Text(1)});
      });
  if (!status.ok()) return status;
  return wanted;
}

/// What is no number of whole integers is none.
std::vector<int64_t> BoundsOf(std::span<const std::byte> blob) {
  std::vector<int64_t> bounds(blob.size() / sizeof(int64_t));
  if (!bounds.empty()) std::memcpy(bounds.data(), blob.data(), bounds.size() * sizeof(int64_t));
  return bounds;
}

absl::StatusOr<std::vector<BufferRecord>> LoadBuffers(Database& database, const Arrays& arrays) {
  std::vector<BufferRecord> buffers;
  ArrayFinder finder(database, arrays);
  absl::Status status = database.Query(
      "SELECT id, tenant, name, rows, cols, leading_dimension, version, owner, time_to_live_ns,"
      "       distribution, row_bounds"
      "  FROM buffers"
      " ORDER BY tenant, name",
      {}, [&](const Row& row) {
        buffers.push_back({row.Text(1), row.Text(2), row.Integer(3), row.Integer(4), row.Integer(5),
                           static_cast<uint64_t>(row.Integer(6)), row.Text(7), row.Integer(8),
                           finder.Get(Kind::kBuffer, row.Integer(0), "dense"), row.Text(9),
                           BoundsOf(row.Blob(10))});
      });
  status.Update(finder.status());
  if (!status.ok()) return status;
  return buffers;
}

/// Moves a result into its place, or its error into `status`.
template <typename T>
void Take(absl::StatusOr<T> result, T& place, absl::Status& status) {
  if (result.ok()) {
    place = *std::move(result);
  } else {
    status.Update(result.status());
  }
}

/// The only record of a filtered result.
template <typename T>
absl::StatusOr<std::optional<T>> Only(absl::StatusOr<std::vector<T>> records) {
  if (!records.ok()) return records.status();
  if (records->empty()) return std::optional<T>();
  return std::optional<T>(std::move(records->front()));
}

}  // namespace

absl::StatusOr<StoreContents> LoadContents(Database& database, const Blobs& blobs) {
  const absl::StatusOr<Arrays> arrays =
      LoadArrays(database, blobs, "ORDER BY a.position, a.blob", {});
  if (!arrays.ok()) return arrays.status();
  StoreContents contents;
  absl::Status status;
  Take(LoadPatterns(database, *arrays, "", {}), contents.patterns, status);
  Take(LoadMatrices(database, *arrays, "", {}), contents.matrices, status);
  Take(LoadShares(database), contents.shares, status);
  Take(LoadLayouts(database, *arrays), contents.layouts, status);
  Take(LoadPlans(database), contents.plans, status);
  Take(LoadMeasurements(database), contents.measurements, status);
  Take(LoadDecisions(database), contents.decisions, status);
  Take(LoadWanted(database), contents.wanted, status);
  Take(LoadBuffers(database, *arrays), contents.buffers, status);
  const absl::StatusOr<std::optional<int64_t>> scrubbed =
      database.QueryInteger("SELECT ended_unix_ns FROM scrubs", {});
  status.Update(scrubbed.status());
  const absl::StatusOr<std::optional<int64_t>> deleted =
      database.QueryInteger("SELECT highest FROM deleted_versions", {});
  status.Update(deleted.status());
  if (!status.ok()) return status;
  contents.deleted_version = static_cast<uint64_t>(deleted->value_or(0));
  contents.scrubbed_unix_ns = scrubbed->value_or(0);
  return contents;
}

absl::StatusOr<std::optional<PatternRecord>> LoadPattern(Database& database, const Blobs& blobs,
                                                         const std::string& hash) {
  const absl::StatusOr<Arrays> arrays = LoadArrays(database, blobs, "WHERE p.hash = ?", {hash});
  if (!arrays.ok()) return arrays.status();
  return Only(LoadPatterns(database, *arrays, "WHERE hash = ?", {hash}));
}

absl::StatusOr<std::optional<MatrixRecord>> LoadMatrix(Database& database, const Blobs& blobs,
                                                       const std::string& tenant,
                                                       const std::string& name) {
  const absl::StatusOr<Arrays> arrays =
      LoadArrays(database, blobs, "WHERE m.tenant = ? AND m.name = ?", {tenant, name});
  if (!arrays.ok()) return arrays.status();
  return Only(LoadMatrices(database, *arrays, "WHERE m.tenant = ? AND m.name = ?", {tenant, name}));
}

namespace {

/// Those in `tables`, of features and of patterns.
absl::StatusOr<std::optional<Features>> LoadFeaturesFrom(
    std::pair<std::string_view, std::string_view> tables, Database& database,
    const std::string& hash, MemorySource& memory) {
  Features features;
  const auto copy = [](std::span<const std::byte> from, std::span<std::byte> to) {
    if (from.size() != to.size()) return false;
    std::ranges::copy(from, to.begin());
    return true;
  };
  absl::Status no_memory;
  const auto keep = [&](absl::StatusOr<DensityMap> map) {
    if (absl::IsResourceExhausted(map.status())) no_memory = map.status();
    if (map.ok()) features.density_map = *std::move(map);
    return map.ok();
  };
  std::set<std::string> found;
  absl::Status status = database.Query(
      fmt::format("SELECT f.name, f.value FROM {} f JOIN {} p ON p.id = f.pattern WHERE p.hash = ?",
                  tables.first, tables.second),
      {hash}, [&](const Row& row) {
        const std::string name = row.Text(0);
        const auto field = std::ranges::find(kFeatureFields, name, &FeatureField::name);
        bool known = field != kFeatureFields.end();
        if (known) features.*field->value = row.Real(1);
        if (name == kDistanceHistogram) {
          known = copy(row.Blob(1), std::as_writable_bytes(std::span(features.distance_histogram)));
        } else if (name == kPackedDensityMap) {
          known = keep(DensityMap::FromPacked(row.Blob(1), memory));
        } else if (name == kUnpackedDensityMap) {
          std::vector<int32_t> tiles(DensityMap::kTiles);
          known = copy(row.Blob(1), std::as_writable_bytes(std::span(tiles))) &&
                  std::ranges::none_of(tiles, [](int32_t count) { return count < 0; }) &&
                  keep(DensityMap::Pack(tiles, memory));
        }
        if (known) found.insert(name);
      });
  if (status.ok()) status = no_memory;
  if (!status.ok()) return status;
  if (found.size() != kFeatureFields.size() + 2) return std::optional<Features>();
  return std::optional<Features>(std::move(features));
}

}  // namespace

absl::StatusOr<std::optional<Features>> LoadFeatures(Database& database, const std::string& hash,
                                                     MemorySource& memory) {
  return LoadFeaturesFrom({"features", "patterns"}, database, hash, memory);
}

absl::StatusOr<std::optional<PastPattern>> LoadNextPast(Database& database, const std::string& hash,
                                                        MemorySource& memory) {
  std::optional<PastPattern> past;
  absl::Status status =
      database.Query("SELECT hash FROM past_patterns WHERE hash > ? ORDER BY hash LIMIT 1", {hash},
                     [&](const Row& row) { past.emplace().hash = row.Text(0); });
  if (!status.ok()) return status;
  if (!past) return past;
  auto features =
      LoadFeaturesFrom({"past_features", "past_patterns"}, database, past->hash, memory);
  if (!features.ok()) return features.status();
  past->features = *std::move(features);
  status = database.Query(
      fmt::format("SELECT p.hash, {} FROM past_measurements q JOIN past_patterns p"
                  " ON p.id = q.pattern WHERE p.hash = ? ORDER BY q.id",
                  kMeasurementColumns),
      {past->hash}, [&](const Row& row) { past->measurements.push_back(MeasurementOf(row)); });
  if (!status.ok()) return status;
  return past;
}

absl::StatusOr<std::optional<StoredArray>> NextArray(Database& database, const Blobs& blobs,
                                                     int64_t number) {
  const absl::StatusOr<Arrays> arrays =
      LoadArrays(database, blobs, "WHERE a.blob > ? ORDER BY a.blob LIMIT 1", {number});
  if (!arrays.ok()) return arrays.status();
  if (arrays->empty()) return std::optional<StoredArray>();
  return std::optional<StoredArray>(arrays->begin()->second.front());
}

}  // namespace sparsed::engine
