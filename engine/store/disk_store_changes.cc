// The changes that DiskStore makes: blobs first, then a transaction, then what it left unused goes.
#include <fmt/format.h>

#include <array>
#include <optional>
#include <set>
#include <utility>

#include "engine/store/disk_store.h"

namespace sparsed::engine {
namespace {

using Kind = ArrayOwner::Kind;

absl::Status PatternNotStored(const std::string& hash) {
  return absl::NotFoundError(fmt::format("pattern {} is not stored (any more)", hash));
}

StoredArray Describing(ArrayOwner owner, std::string name, const Array& array,
                       std::shared_ptr<Blob> blob) {
  return {std::move(owner), std::move(name), array.type, array.length, std::move(blob)};
}

/// Deletes what a table has of a pattern and class, the first time that they are named.
absl::Status ClearOnce(Database& database, const char* table, int64_t pattern,
                       const std::string& problem_class,
                       std::set<std::pair<int64_t, std::string>>& cleared) {
  if (!cleared.emplace(pattern, problem_class).second) return absl::OkStatus();
  return database.Query(fmt::format("DELETE FROM {} WHERE pattern = ? AND class = ?", table),
                        {pattern, problem_class});
}

}  // namespace

absl::StatusOr<int64_t> DiskStore::PatternRow(const std::string& hash) {
  const absl::StatusOr<std::optional<int64_t>> id =
      database_->QueryInteger("SELECT id FROM patterns WHERE hash = ?", {hash});
  if (!id.ok()) return id.status();
  if (!*id) return PatternNotStored(hash);
  return **id;
}

absl::Status DiskStore::AddArray(OwnerRow row, int64_t position, const StoredArray& array,
                                 const BlobPtr& blob, BlobChanges& changes) {
  changes.added.push_back(blob);
  return database_->Query(fmt::format("INSERT INTO arrays(blob, {}, position, name, type, length)"
                                      " VALUES(?, ?, ?, ?, ?, ?)",
                                      row.column),
                          {blob->number(), row.id, position, array.name,
                           static_cast<int64_t>(array.type), array.length});
}

absl::Status DiskStore::RemoveArrays(OwnerRow row, BlobChanges& changes) {
  return database_->Query(fmt::format("DELETE FROM arrays WHERE {} = ? RETURNING blob", row.column),
                          {row.id}, [&](const Row& r) { changes.removed.push_back(r.Integer(0)); });
}

absl::Status DiskStore::RemovePatternIfUnused(int64_t pattern, BlobChanges& changes) {
  const absl::StatusOr<std::optional<int64_t>> user =
      database_->QueryInteger("SELECT id FROM matrices WHERE pattern = ? LIMIT 1", {pattern});
  if (!user.ok() || *user) return user.status();
  absl::Status status = RemoveArrays({"pattern", pattern}, changes);
  if (!status.ok()) return status;
  status = database_->Query(
      "DELETE FROM arrays WHERE layout IN (SELECT id FROM layouts WHERE pattern = ?)"
      " RETURNING blob",
      {pattern}, [&](const Row& row) { changes.removed.push_back(row.Integer(0)); });
  if (!status.ok()) return status;
  return database_->Query("DELETE FROM patterns WHERE id = ?", {pattern});
}

bool DiskStore::PatternIsUsable(const std::string& hash) {
  const std::lock_guard lock(mutex_);
  return PatternRow(hash).ok() && !damaged_patterns_.contains(hash);
}

absl::StatusOr<StoredMatrix> DiskStore::PutMatrix(const NewMatrix& matrix, Stop stop) {
  absl::StatusOr<StoredMatrix> stored = absl::AbortedError("");
  if (PatternIsUsable(matrix.pattern_hash)) stored = TryPutMatrix(matrix, false, stop);
  // The pattern was not there, or went before we could refer to it.
  if (absl::IsAborted(stored.status())) stored = TryPutMatrix(matrix, true, stop);
  return stored;
}

absl::StatusOr<StoredMatrix> DiskStore::TryPutMatrix(const NewMatrix& m, bool with_pattern,
                                                     Stop stop) {
  std::vector<const Array*> arrays;
  if (with_pattern) {
    if (!m.row_offsets || !m.column_indices) return PatternNotStored(m.pattern_hash);
    arrays = {&*m.row_offsets, &*m.column_indices};
  }
  arrays.push_back(&m.values);
  if (m.value_order) arrays.push_back(&*m.value_order);
  const absl::StatusOr<std::vector<BlobPtr>> blobs = WriteBlobs(arrays, stop);
  if (!blobs.ok()) return blobs.status();
  const size_t pattern_blobs = with_pattern ? 2 : 0;

  StoredMatrix stored;
  absl::Status status = Apply([&](BlobChanges& changes) {
    absl::StatusOr<PatternRecord> pattern =
        StorePattern(m, std::span(*blobs).first(pattern_blobs), changes);
    if (!pattern.ok()) return pattern.status();
    absl::StatusOr<MatrixRecord> matrix =
        StoreMatrix(m, std::span(*blobs).subspan(pattern_blobs), changes);
    if (!matrix.ok()) return matrix.status();
    stored = {*std::move(pattern), *std::move(matrix)};
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  if (with_pattern) {
    const std::lock_guard lock(mutex_);
    damaged_patterns_.erase(m.pattern_hash);
  }
  return stored;
}

absl::StatusOr<PatternRecord> DiskStore::StorePattern(const NewMatrix& m,
                                                      std::span<const BlobPtr> blobs,
                                                      BlobChanges& changes) {
  absl::StatusOr<std::optional<PatternRecord>> known =
      LoadPattern(*database_, blobs_, m.pattern_hash);
  if (!known.ok()) return known.status();
  const bool usable = *known && !damaged_patterns_.contains(m.pattern_hash);
  if (blobs.empty() && !usable) return absl::AbortedError("the pattern went");
  if (usable) return **std::move(known);  // somebody else's copy: ours goes

  absl::StatusOr<std::optional<int64_t>> id = database_->QueryInteger(
      "INSERT INTO patterns(hash, rows, cols, nnz) VALUES(?, ?, ?, ?)"
      " ON CONFLICT(hash) DO UPDATE SET rows = rows RETURNING id",
      {m.pattern_hash, m.rows, m.cols, m.nnz});
  if (!id.ok()) return id.status();
  const OwnerRow row{"pattern", id->value_or(0)};
  absl::Status status = RemoveArrays(row, changes);  // damaged ones
  const ArrayOwner owner{Kind::kPattern, m.pattern_hash, "", "", ""};
  PatternRecord record;
  if (*known) record.preparation = (*known)->preparation;
  record.hash = m.pattern_hash;
  record.rows = m.rows;
  record.cols = m.cols;
  record.nnz = m.nnz;
  record.row_offsets = Describing(owner, "row_offsets", *m.row_offsets, blobs[0]);
  record.column_indices = Describing(owner, "column_indices", *m.column_indices, blobs[1]);
  if (status.ok()) status = AddArray(row, 0, record.row_offsets, blobs[0], changes);
  if (status.ok()) status = AddArray(row, 1, record.column_indices, blobs[1], changes);
  if (!status.ok()) return status;
  return record;
}

absl::StatusOr<MatrixRecord> DiskStore::StoreMatrix(const NewMatrix& m,
                                                    std::span<const BlobPtr> blobs,
                                                    BlobChanges& changes) {
  const absl::StatusOr<int64_t> pattern = PatternRow(m.pattern_hash);
  if (!pattern.ok()) return pattern.status();
  const absl::StatusOr<std::optional<int64_t>> old_pattern = database_->QueryInteger(
      "SELECT pattern FROM matrices WHERE tenant = ? AND name = ?", {m.tenant, m.name});
  if (!old_pattern.ok()) return old_pattern.status();
  const absl::StatusOr<std::optional<int64_t>> id = database_->QueryInteger(
      "INSERT INTO matrices(tenant, name, pattern, version, created_unix_ns)"
      " VALUES(?, ?, ?, ?, ?)"
      " ON CONFLICT(tenant, name) DO UPDATE SET pattern = excluded.pattern,"
      "   version = excluded.version, created_unix_ns = excluded.created_unix_ns"
      " RETURNING id",
      {m.tenant, m.name, *pattern, static_cast<int64_t>(m.version), m.created_unix_ns});
  if (!id.ok()) return id.status();
  const OwnerRow row{"matrix", id->value_or(0)};
  absl::Status status = RemoveArrays(row, changes);
  if (status.ok() && *old_pattern && **old_pattern != *pattern) {
    status = RemovePatternIfUnused(**old_pattern, changes);
  }
  const ArrayOwner owner{Kind::kMatrix, m.pattern_hash, m.tenant, m.name, ""};
  MatrixRecord record{m.tenant,
                      m.name,
                      m.pattern_hash,
                      m.values.type,
                      m.version,
                      m.created_unix_ns,
                      Describing(owner, "values", m.values, blobs[0]),
                      {}};
  if (status.ok()) status = AddArray(row, 0, record.values, blobs[0], changes);
  if (m.value_order && status.ok()) {
    record.value_order = Describing(owner, "value_order", *m.value_order, blobs[1]);
    status = AddArray(row, 1, *record.value_order, blobs[1], changes);
  }
  if (!status.ok()) return status;
  return record;
}

absl::StatusOr<MatrixRecord> DiskStore::PutValues(const std::string& tenant,
                                                  const std::string& name, uint64_t version,
                                                  const Array& values, Stop stop) {
  const absl::StatusOr<std::vector<BlobPtr>> blobs = WriteBlobs(std::array{&values}, stop);
  if (!blobs.ok()) return blobs.status();
  MatrixRecord record;
  absl::Status status = Apply([&](BlobChanges& changes) -> absl::Status {
    absl::StatusOr<std::optional<MatrixRecord>> old = LoadMatrix(*database_, blobs_, tenant, name);
    if (!old.ok()) return old.status();
    if (!*old) return absl::NotFoundError(fmt::format("matrix '{}' is not stored", name));
    record = **std::move(old);
    const int64_t old_blob = record.values.blob->number();
    record.version = version;
    record.values = Describing(record.values.owner, "values", values, blobs->front());
    const absl::StatusOr<std::optional<int64_t>> id = database_->QueryInteger(
        "UPDATE matrices SET version = ? WHERE tenant = ? AND name = ? RETURNING id",
        {static_cast<int64_t>(version), tenant, name});
    if (!id.ok()) return id.status();
    absl::Status removed = database_->Query("DELETE FROM arrays WHERE blob = ?", {old_blob});
    if (!removed.ok()) return removed;
    changes.removed.push_back(old_blob);
    return AddArray({"matrix", id->value_or(0)}, 0, record.values, blobs->front(), changes);
  });
  if (!status.ok()) return status;
  return record;
}

absl::Status DiskStore::DeleteMatrix(const std::string& tenant, const std::string& name) {
  return Apply([&](BlobChanges& changes) -> absl::Status {
    const absl::StatusOr<std::optional<int64_t>> id = database_->QueryInteger(
        "SELECT id FROM matrices WHERE tenant = ? AND name = ?", {tenant, name});
    if (!id.ok() || !*id) return id.status();
    absl::Status status = RemoveArrays({"matrix", **id}, changes);
    if (!status.ok()) return status;
    const absl::StatusOr<std::optional<int64_t>> pattern =
        database_->QueryInteger("DELETE FROM matrices WHERE id = ? RETURNING pattern", {**id});
    if (!pattern.ok()) return pattern.status();
    return RemovePatternIfUnused(pattern->value_or(0), changes);
  });
}

absl::StatusOr<LayoutRecord> DiskStore::PutLayout(const std::string& pattern_hash,
                                                  const Layout& layout, double build_seconds,
                                                  Stop stop) {
  std::vector<const Array*> arrays;
  for (const Array& array : layout.arrays) arrays.push_back(&array);
  const absl::StatusOr<std::vector<BlobPtr>> blobs = WriteBlobs(arrays, stop);
  if (!blobs.ok()) return blobs.status();

  LayoutRecord record{pattern_hash, layout, build_seconds, {}};
  record.layout.arrays.clear();
  const ArrayOwner owner{Kind::kLayout, pattern_hash, "", "", layout.recipe};
  for (size_t i = 0; i < arrays.size(); ++i) {
    record.arrays.push_back(Describing(owner, arrays[i]->name, *arrays[i], (*blobs)[i]));
  }
  absl::Status status = Apply([&](BlobChanges& changes) -> absl::Status {
    const absl::StatusOr<int64_t> pattern = PatternRow(pattern_hash);
    if (!pattern.ok()) return pattern.status();
    absl::Status removed = RemoveLayout(*pattern, layout.recipe, changes);
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
      {pattern, l.recipe, l.kind, l.rows, l.cols, l.nnz, int64_t{l.transposed}, l.value_slots,
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

absl::Status DiskStore::RemoveLayout(int64_t pattern, const std::string& recipe,
                                     BlobChanges& changes) {
  const absl::StatusOr<std::optional<int64_t>> id = database_->QueryInteger(
      "SELECT id FROM layouts WHERE pattern = ? AND recipe = ?", {pattern, recipe});
  if (!id.ok() || !*id) return id.status();
  absl::Status status = RemoveArrays({"layout", **id}, changes);
  if (!status.ok()) return status;
  return database_->Query("DELETE FROM layouts WHERE id = ?", {**id});
}

absl::Status DiskStore::DropLayout(const std::string& pattern_hash, const std::string& recipe) {
  return Apply([&](BlobChanges& changes) -> absl::Status {
    const absl::StatusOr<int64_t> pattern = PatternRow(pattern_hash);
    if (absl::IsNotFound(pattern.status())) return absl::OkStatus();
    if (!pattern.ok()) return pattern.status();
    absl::Status status = RemoveLayout(*pattern, recipe, changes);
    if (status.ok()) {
      status = database_->Query(
          "INSERT OR IGNORE INTO wanted(pattern, class)"
          " SELECT pattern, class FROM plans WHERE pattern = ? AND recipe = ?",
          {*pattern, recipe});
    }
    if (!status.ok()) return status;
    return database_->Query("DELETE FROM plans WHERE pattern = ? AND recipe = ?",
                            {*pattern, recipe});
  });
}

absl::Status DiskStore::PutPlans(std::span<const PlanRecord> plans) {
  return Apply([&](BlobChanges&) -> absl::Status {
    for (const PlanRecord& plan : plans) {
      const absl::StatusOr<int64_t> pattern = PatternRow(plan.pattern_hash);
      if (!pattern.ok()) return pattern.status();
      absl::Status status = database_->Query(
          "INSERT OR REPLACE INTO"
          " plans(pattern, class, recipe, kernel, baseline_ms, plan_ms, reason)"
          " VALUES(?, ?, ?, ?, ?, ?, ?)",
          {*pattern, plan.problem_class, plan.recipe, plan.kernel, plan.baseline_ms, plan.plan_ms,
           plan.reason});
      if (status.ok()) {
        status = database_->Query("DELETE FROM wanted WHERE pattern = ? AND class = ?",
                                  {*pattern, plan.problem_class});
      }
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  });
}

absl::Status DiskStore::PutMeasurements(std::span<const MeasurementRecord> measurements) {
  return Apply([&](BlobChanges&) -> absl::Status {
    std::set<std::pair<int64_t, std::string>> cleared;
    for (const MeasurementRecord& m : measurements) {
      const absl::StatusOr<int64_t> pattern = PatternRow(m.pattern_hash);
      if (!pattern.ok()) return pattern.status();
      absl::Status status =
          ClearOnce(*database_, "measurements", *pattern, m.problem_class, cleared);
      if (status.ok()) {
        status = database_->Query(
            "INSERT OR REPLACE INTO measurements(pattern, class, recipe, kernel, device, k, "
            "median_ms, runs, measured_unix_ns, baseline_ms, floor_ms, preparation_ms)"
            " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            {*pattern, m.problem_class, m.recipe, m.kernel, m.device, m.k, m.median_ms,
             int64_t{m.runs}, m.measured_unix_ns, m.baseline_ms, m.floor_ms, m.preparation_ms});
      }
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  });
}

absl::Status DiskStore::PutDecisions(std::span<const DecisionRecord> decisions) {
  return Apply([&](BlobChanges&) -> absl::Status {
    std::set<std::pair<int64_t, std::string>> cleared;
    for (const DecisionRecord& d : decisions) {
      const absl::StatusOr<int64_t> pattern = PatternRow(d.pattern_hash);
      if (!pattern.ok()) return pattern.status();
      absl::Status status = ClearOnce(*database_, "decisions", *pattern, d.problem_class, cleared);
      if (status.ok()) {
        status = database_->Query(
            "INSERT OR REPLACE INTO decisions(pattern, class, recipe, tried, reason)"
            " VALUES(?, ?, ?, ?, ?)",
            {*pattern, d.problem_class, d.recipe, int64_t{d.tried}, d.reason});
      }
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  });
}

absl::Status DiskStore::PutWanted(std::span<const WantedRecord> wanted) {
  return Apply([&](BlobChanges&) -> absl::Status {
    for (const WantedRecord& w : wanted) {
      const absl::StatusOr<int64_t> pattern = PatternRow(w.pattern_hash);
      if (!pattern.ok()) return pattern.status();
      absl::Status status = database_->Query(
          "INSERT OR IGNORE INTO wanted(pattern, class) VALUES(?, ?)", {*pattern, w.problem_class});
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  });
}

absl::Status DiskStore::PutPreparation(const std::string& pattern_hash,
                                       const PreparationRecord& preparation) {
  return Apply([&](BlobChanges&) -> absl::Status {
    const absl::StatusOr<int64_t> pattern = PatternRow(pattern_hash);
    if (!pattern.ok()) return pattern.status();
    return database_->Query(
        "UPDATE patterns SET preparation_state = ?, preparation_detail = ?,"
        " preparation_seconds = ? WHERE id = ?",
        {preparation.state, preparation.detail, preparation.seconds, *pattern});
  });
}

absl::Status DiskStore::PutFeatures(const std::string& pattern_hash, const Features& features) {
  return Apply([&](BlobChanges&) -> absl::Status {
    const absl::StatusOr<int64_t> pattern = PatternRow(pattern_hash);
    if (!pattern.ok()) return pattern.status();
    absl::Status status = database_->Query("DELETE FROM features WHERE pattern = ?", {*pattern});
    const auto put = [&](std::string_view name, Database::Value value) {
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
  const std::lock_guard lock(mutex_);
  return LoadFeatures(*database_, pattern_hash, memory);
}

absl::StatusOr<BufferRecord> DiskStore::PutBuffer(const NewBuffer& b, Stop stop) {
  const absl::StatusOr<std::vector<BlobPtr>> blobs = WriteBlobs(std::array{&b.array}, stop);
  if (!blobs.ok()) return blobs.status();
  const BufferRecord record{
      b.tenant,
      b.name,
      b.rows,
      b.cols,
      b.leading_dimension,
      b.version,
      Describing({Kind::kBuffer, "", b.tenant, b.name, ""}, "dense", b.array, blobs->front())};
  absl::Status status = Apply([&](BlobChanges& changes) -> absl::Status {
    const absl::StatusOr<std::optional<int64_t>> id = database_->QueryInteger(
        "INSERT INTO buffers(tenant, name, rows, cols, leading_dimension, version)"
        " VALUES(?, ?, ?, ?, ?, ?)"
        " ON CONFLICT(tenant, name) DO UPDATE SET rows = excluded.rows, cols = excluded.cols,"
        "   leading_dimension = excluded.leading_dimension, version = excluded.version"
        " RETURNING id",
        {b.tenant, b.name, b.rows, b.cols, b.leading_dimension, static_cast<int64_t>(b.version)});
    if (!id.ok()) return id.status();
    const OwnerRow row{"buffer", id->value_or(0)};
    absl::Status removed = RemoveArrays(row, changes);
    if (!removed.ok()) return removed;
    return AddArray(row, 0, record.array, blobs->front(), changes);
  });
  if (!status.ok()) return status;
  return record;
}

absl::Status DiskStore::DeleteBuffer(const std::string& tenant, const std::string& name) {
  return Apply([&](BlobChanges& changes) -> absl::Status {
    const absl::StatusOr<std::optional<int64_t>> id = database_->QueryInteger(
        "SELECT id FROM buffers WHERE tenant = ? AND name = ?", {tenant, name});
    if (!id.ok() || !*id) return id.status();
    absl::Status status = RemoveArrays({"buffer", **id}, changes);
    if (!status.ok()) return status;
    return database_->Query("DELETE FROM buffers WHERE id = ?", {**id});
  });
}

}  // namespace sparsed::engine
