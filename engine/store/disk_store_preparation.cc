// What DiskStore keeps of preparations: layouts, plans, measurements, features.
#include <fmt/format.h>

#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "engine/store/disk_store.h"

namespace sparsed::engine {
namespace {

using Kind = ArrayOwner::Kind;

/// Of a past pattern.
constexpr int kMostOfPast = 500;
/// What the row of a measurement takes, about.
constexpr int kMeasurementBytes = 256;

/// Deletes what a table has of a pattern and signature, the first time that they are named.
absl::Status ClearOnce(Database& database, const char* table, int64_t pattern,
                       const std::string& signature,
                       std::set<std::pair<int64_t, std::string>>& cleared) {
  if (!cleared.emplace(pattern, signature).second) return absl::OkStatus();
  return database.Query(fmt::format("DELETE FROM {} WHERE pattern = ? AND class = ?", table),
                        {pattern, signature});
}

std::string RightOf(const std::optional<PatternPair>& pair) { return pair ? pair->right : ""; }

/// As the column has it: 1 is the left one, 2 the right one.
int64_t TransposedOf(const std::optional<PatternPair>& pair) {
  return pair ? (pair->transpose_left ? 1 : 0) + (pair->transpose_right ? 2 : 0) : 0;
}

}  // namespace

absl::StatusOr<LayoutRecord> DiskStore::PutLayout(const std::string& pattern_hash,
                                                  const Layout& layout, double build_seconds,
                                                  Stop stop) {
  const ArrayOwner owner{Kind::kLayout, pattern_hash, "", "", layout.pipeline};
  std::vector<NewBlob> arrays;
  for (const Array& array : layout.arrays) {
    arrays.push_back({&array, {.owner = owner, .array = array.name}});
  }
  const absl::StatusOr<std::vector<BlobPtr>> blobs = WriteBlobs(arrays, stop);
  if (!blobs.ok()) return blobs.status();

  LayoutRecord record{pattern_hash, layout, build_seconds, {}};
  record.layout.arrays.clear();
  for (size_t i = 0; i < arrays.size(); ++i) {
    const Array& array = *arrays[i].array;
    record.arrays.push_back(Describing(owner, array.name, array, (*blobs)[i]));
  }
  absl::Status status =
      Apply([&](BlobChanges& changes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::Status {
        const absl::StatusOr<int64_t> pattern = PatternRow(pattern_hash);
        if (!pattern.ok()) return pattern.status();
        absl::Status removed = RemoveLayout(*pattern, layout.pipeline, changes);
        if (!removed.ok()) return removed;
        return StoreLayout(*pattern, record, *blobs, changes);
      });
  if (!status.ok()) return status;
  return record;
}

absl::Status DiskStore::StoreLayout(int64_t pattern, const LayoutRecord& record,
                                    std::span<const BlobPtr> blobs, BlobChanges& changes) {
  const Layout& l = record.layout;
  const absl::StatusOr<std::optional<int64_t>> id = database_->QueryInteger(
      "INSERT INTO layouts(pattern, recipe, kind, rows, cols, nnz, transposed, value_slots,"
      "                    build_seconds)"
      " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id",
      {pattern, l.pipeline, l.kind, l.rows, l.cols, l.nnz, int64_t{l.transposed}, l.value_slots,
       record.build_seconds});
  if (!id.ok()) return id.status();
  const OwnerRow row{"layout", id->value_or(0)};
  absl::Status status;
  for (size_t i = 0; status.ok() && i < l.parameters.size(); ++i) {
    status = database_->Query(
        "INSERT INTO layout_parameters(layout, position, name, value) VALUES(?, ?, ?, ?)",
        {row.id, static_cast<int64_t>(i), l.parameters[i].first, l.parameters[i].second});
  }
  for (size_t i = 0; status.ok() && i < record.arrays.size(); ++i) {
    status = AddArray(row, static_cast<int64_t>(i), record.arrays[i], blobs[i], changes);
  }
  return status;
}

absl::Status DiskStore::RemoveLayout(int64_t pattern, const std::string& pipeline,
                                     BlobChanges& changes) {
  const absl::StatusOr<std::optional<int64_t>> id = database_->QueryInteger(
      "SELECT id FROM layouts WHERE pattern = ? AND recipe = ?", {pattern, pipeline});
  if (!id.ok() || !*id) return id.status();
  absl::Status status = RemoveArrays({"layout", **id}, changes);
  if (!status.ok()) return status;
  return database_->Query("DELETE FROM layouts WHERE id = ?", {**id});
}

absl::Status DiskStore::DropLayout(const std::string& pattern_hash, const std::string& pipeline) {
  return ApplyRemoval(
      [&](BlobChanges& changes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::Status {
        const absl::StatusOr<int64_t> pattern = PatternRow(pattern_hash);
        if (absl::IsNotFound(pattern.status())) return absl::OkStatus();
        if (!pattern.ok()) return pattern.status();
        absl::Status status = RemoveLayout(*pattern, pipeline, changes);
        if (status.ok()) {
          status = database_->Query(
              "INSERT OR IGNORE INTO wanted(pattern, class)"
              " SELECT pattern, class FROM plans WHERE pattern = ? AND recipe = ?",
              {*pattern, pipeline});
        }
        if (!status.ok()) return status;
        return database_->Query("DELETE FROM plans WHERE pattern = ? AND recipe = ?",
                                {*pattern, pipeline});
      });
}

absl::Status DiskStore::PutPlans(std::span<const PlanRecord> plans) {
  return Apply([&](BlobChanges&) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::Status {
    for (const PlanRecord& plan : plans) {
      const absl::StatusOr<int64_t> pattern = PatternRow(plan.pattern_hash);
      if (!pattern.ok()) return pattern.status();
      absl::Status status = database_->Query(
          "INSERT OR REPLACE INTO"
          " plans(pattern, class, recipe, kernel, baseline_ms, plan_ms, reason, distribution, gpus,"
          " whole_ms, best_ms)"
          " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
          {*pattern, plan.signature, plan.pipeline, plan.kernel, plan.baseline_ms, plan.plan_ms,
           plan.reason, plan.distribution, int64_t{plan.gpus}, plan.whole_ms, plan.best_ms});
      if (status.ok()) {
        status = database_->Query("DELETE FROM wanted WHERE pattern = ? AND class = ?",
                                  {*pattern, plan.signature});
      }
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  });
}

absl::Status DiskStore::PutMeasurements(std::span<const MeasurementRecord> measurements) {
  return Apply([&](BlobChanges&) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::Status {
    std::set<std::pair<int64_t, std::string>> cleared;
    for (const MeasurementRecord& m : measurements) {
      const absl::StatusOr<int64_t> pattern = PatternRow(m.pattern_hash);
      if (!pattern.ok()) return pattern.status();
      absl::Status status = ClearOnce(*database_, "measurements", *pattern, m.signature, cleared);
      if (status.ok()) {
        status = database_->Query(
            "INSERT OR REPLACE INTO measurements(pattern, class, recipe, kernel, device, k, "
            "median_ms, runs, measured_unix_ns, baseline_ms, floor_ms, preparation_ms, "
            "model, right_pattern, transposed, compulsory_bytes, censored) "
            "VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            {*pattern, m.signature, m.pipeline, m.kernel, m.device, m.k, m.median_ms,
             int64_t{m.runs}, m.measured_unix_ns, m.baseline_ms, m.roofline_ms, m.preparation_ms,
             m.model, RightOf(m.pair), TransposedOf(m.pair), m.compulsory_bytes,
             int64_t{m.censored}});
      }
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  });
}

absl::Status DiskStore::PutDecisions(std::span<const DecisionRecord> decisions) {
  return Apply([&](BlobChanges&) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::Status {
    std::set<std::pair<int64_t, std::string>> cleared;
    for (const DecisionRecord& d : decisions) {
      const absl::StatusOr<int64_t> pattern = PatternRow(d.pattern_hash);
      if (!pattern.ok()) return pattern.status();
      absl::Status status = ClearOnce(*database_, "decisions", *pattern, d.signature, cleared);
      if (status.ok()) {
        status = database_->Query(
            "INSERT OR REPLACE INTO decisions(pattern, class, recipe, kernel, right_pattern, "
            "transposed, tried, reason) VALUES(?, ?, ?, ?, ?, ?, ?, ?)",
            {*pattern, d.signature, d.pipeline, d.kernel, RightOf(d.pair), TransposedOf(d.pair),
             int64_t{d.tried}, d.reason});
      }
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  });
}

absl::Status DiskStore::PutWanted(std::span<const WantedRecord> wanted) {
  return Apply([&](BlobChanges&) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::Status {
    for (const WantedRecord& w : wanted) {
      const absl::StatusOr<int64_t> pattern = PatternRow(w.pattern_hash);
      if (!pattern.ok()) return pattern.status();
      absl::Status status = database_->Query(
          "INSERT OR IGNORE INTO wanted(pattern, class) VALUES(?, ?)", {*pattern, w.signature});
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  });
}

absl::Status DiskStore::PutPreparation(const std::string& pattern_hash,
                                       const PreparationRecord& preparation) {
  return Apply([&](BlobChanges&) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::Status {
    const absl::StatusOr<int64_t> pattern = PatternRow(pattern_hash);
    if (!pattern.ok()) return pattern.status();
    return database_->Query(
        "UPDATE patterns SET preparation_state = ?, preparation_detail = ?,"
        " preparation_seconds = ? WHERE id = ?",
        {preparation.state, preparation.detail, preparation.seconds, *pattern});
  });
}

absl::Status DiskStore::PutFeatures(const std::string& pattern_hash, const Features& features) {
  return Apply([&](BlobChanges&) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::Status {
    const absl::StatusOr<int64_t> pattern = PatternRow(pattern_hash);
    if (!pattern.ok()) return pattern.status();
    absl::Status status = database_->Query("DELETE FROM features WHERE pattern = ?", {*pattern});
    const auto put = [&](std::string_view name,
                         Database::Value value) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      if (!status.ok()) return;
      status = database_->Query("INSERT INTO features(pattern, name, value) VALUES(?, ?, ?)",
                                {*pattern, name, value});
    };
    for (const FeatureField& field : kFeatureFields) put(field.name, features.*field.value);
    put(kDistanceHistogram, std::as_bytes(std::span(features.distance_histogram)));
    put(kPackedDensityMap, features.density_map.packed());
    return status;
  });
}

absl::StatusOr<std::optional<Features>> DiskStore::ReadFeatures(const std::string& pattern_hash,
                                                                MemorySource& memory) {
  const MutexLock lock(mutex_);
  return LoadFeatures(*database_, pattern_hash, memory);
}

absl::Status DiskStore::KeepAsPast(int64_t pattern) {
  if (most_past_bytes_ <= 0 || disk_is_full_) return absl::OkStatus();
  const absl::StatusOr<std::optional<int64_t>> measured =
      database_->QueryInteger("SELECT 1 FROM measurements WHERE pattern = ? LIMIT 1", {pattern});
  if (!measured.ok() || !*measured) return measured.status();
  // A deletion is to leave a full disk emptier, and what rows leave free stays the catalog's.
  absl::Status status = folder_->CheckRoom(kMostOfPast * kMeasurementBytes);
  if (!status.ok()) return absl::IsResourceExhausted(status) ? absl::OkStatus() : status;
  const absl::StatusOr<std::optional<int64_t>> found = database_->QueryInteger(
      "INSERT INTO past_patterns(hash, gone, bytes)"
      " SELECT hash, (SELECT COALESCE(max(gone), 0) + 1 FROM past_patterns), 0"
      "   FROM patterns WHERE id = ?"
      " ON CONFLICT(hash) DO UPDATE SET gone = excluded.gone RETURNING id",
      {pattern});
  if (!found.ok()) return found.status();
  const int64_t past = found->value_or(0);
  const auto change = [&](const std::string& sql, std::initializer_list<Database::Value> values)
                          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                            if (status.ok()) status = database_->Query(sql, values);
                          };
  change(
      "INSERT OR REPLACE INTO past_features(pattern, name, value)"
      " SELECT ?, name, value FROM features WHERE pattern = ?",
      {past, pattern});
  // What was measured again takes the place of what was known of it before.
  change(
      "DELETE FROM past_measurements WHERE pattern = ? AND"
      " (class, recipe, kernel, device, k, model, right_pattern, transposed) IN"
      " (SELECT class, recipe, kernel, device, k, model, right_pattern, transposed"
      "    FROM measurements WHERE pattern = ?)",
      {past, pattern});
  change(fmt::format("INSERT INTO past_measurements(pattern, {0})"
                     " SELECT ?, {0} FROM measurements WHERE pattern = ? ORDER BY id",
                     kMeasurementColumns),
         {past, pattern});
  change(fmt::format("DELETE FROM past_measurements WHERE pattern = ?1 AND id NOT IN"
                     " (SELECT id FROM past_measurements WHERE pattern = ?1"
                     "   ORDER BY id DESC LIMIT {})",
                     kMostOfPast),
         {past});
  change(fmt::format(
             "UPDATE past_patterns SET bytes ="
             " (SELECT COALESCE(sum(length(name) + length(value)), 0) FROM past_features"
             "   WHERE pattern = ?1)"
             " + {} * (SELECT count(*) FROM past_measurements WHERE pattern = ?1) WHERE id = ?1",
             kMeasurementBytes),
         {past});
  return status.ok() ? BoundPast() : status;
}

absl::Status DiskStore::BoundPast() {
  const auto bytes = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return database_->QueryInteger(
        "SELECT CAST(COALESCE(sum(bytes), 0) AS INTEGER)"
        " FROM past_patterns",
        {});
  };
  absl::StatusOr<std::optional<int64_t>> taken = bytes();
  if (taken.ok() && taken->value_or(0) > most_past_bytes_) {
    const absl::Status status = database_->Query(
        "DELETE FROM past_patterns WHERE id IN (SELECT id FROM"
        " (SELECT id, sum(bytes) OVER (ORDER BY gone DESC) AS with_later FROM past_patterns)"
        " WHERE with_later > ?)",
        {most_past_bytes_});
    if (!status.ok()) return status;
    taken = bytes();
  }
  if (!taken.ok()) return taken.status();
  next_past_bytes_ = taken->value_or(0);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<PastPattern>> DiskStore::ReadNextPast(const std::string& hash,
                                                                   MemorySource& memory) {
  const MutexLock lock(mutex_);
  return LoadNextPast(*database_, hash, memory);
}

}  // namespace sparsed::engine
