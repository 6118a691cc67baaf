// The changes that DiskStore makes to patterns, matrices and buffers: blobs first, then a
// transaction, then what it left unused goes.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "engine/store/disk_store.h"

namespace sparsed::engine {
namespace {

using Kind = ArrayOwner::Kind;

absl::Status PatternNotStored(const std::string& hash) {
  return absl::NotFoundError(fmt::format("pattern {} is not stored (any more)", hash));
}

/// What the blob of one of a matrix's arrays says of it.
ArrayDescription DescriptionOf(const NewMatrix& m, Kind kind, std::string array) {
  ArrayDescription description;
  description.owner = {kind, m.pattern_hash, "", "", ""};
  description.array = std::move(array);
  description.rows = m.rows;
  description.cols = m.cols;
  description.nnz = m.nnz;
  if (kind == Kind::kPattern) return description;
  description.owner.tenant = m.tenant;
  description.owner.name = m.name;
  description.version = m.version;
  description.created_unix_ns = m.created_unix_ns;
  description.has_value_order = m.value_order.has_value();
  description.time_to_live_ns = m.time_to_live_ns;
  return description;
}

}  // namespace

StoredArray DiskStore::Describing(ArrayOwner owner, std::string name, const Array& array,
                                  BlobPtr blob) {
  return {std::move(owner), std::move(name), array.type, array.length, std::move(blob)};
}

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
  if (status.ok()) status = KeepAsPast(pattern);
  if (!status.ok()) return status;
  return database_->Query("DELETE FROM patterns WHERE id = ?", {pattern});
}

bool DiskStore::PatternIsUsable(const std::string& hash) {
  const MutexLock lock(mutex_);
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
  std::vector<NewBlob> arrays;
  if (with_pattern) {
    if (!m.row_offsets || !m.column_indices) return PatternNotStored(m.pattern_hash);
    arrays = {{&*m.row_offsets, DescriptionOf(m, Kind::kPattern, "row_offsets")},
              {&*m.column_indices, DescriptionOf(m, Kind::kPattern, "column_indices")}};
  }
  arrays.push_back({&m.values, DescriptionOf(m, Kind::kMatrix, "values")});
  if (m.value_order) {
    arrays.push_back({&*m.value_order, DescriptionOf(m, Kind::kMatrix, "value_order")});
  }
  const absl::StatusOr<std::vector<BlobPtr>> blobs = WriteBlobs(arrays, stop);
  if (!blobs.ok()) return blobs.status();
  const size_t pattern_blobs = with_pattern ? 2 : 0;

  StoredMatrix stored;
  absl::Status status = Apply([&](BlobChanges& changes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    absl::StatusOr<PatternRecord> pattern =
        StorePattern(m, std::span(*blobs).first(pattern_blobs), changes);
    if (!pattern.ok()) return pattern.status();
    absl::StatusOr<MatrixRecord> matrix =
        StoreMatrix(m, std::span(*blobs).subspan(pattern_blobs), changes);
    if (!matrix.ok()) return matrix.status();
    stored = {*std::move(pattern), *std::move(matrix)};
    return m.moved_from.empty() ? absl::OkStatus() : ForgetMoved(m, changes);
  });
  if (!status.ok()) return status;
  if (with_pattern) {
    const MutexLock lock(mutex_);
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
  uint64_t used_version = 0;
  int64_t id = 0;
  absl::Status status = database_->Query(
      "INSERT INTO matrices(tenant, name, pattern, version, used_version, created_unix_ns,"
      "   time_to_live_ns)"
      " VALUES(?, ?, ?, ?, ?, ?, ?)"
      " ON CONFLICT(tenant, name) DO UPDATE SET pattern = excluded.pattern,"
      "   version = excluded.version, used_version = max(used_version, excluded.used_version),"
      "   created_unix_ns = excluded.created_unix_ns, time_to_live_ns = excluded.time_to_live_ns"
      " RETURNING id, used_version",
      {m.tenant, m.name, *pattern, static_cast<int64_t>(m.version), static_cast<int64_t>(m.version),
       m.created_unix_ns, m.time_to_live_ns},
      [&](const Row& row) {
        id = row.Integer(0);
        used_version = static_cast<uint64_t>(row.Integer(1));
      });
  if (!status.ok()) return status;
  const OwnerRow row{"matrix", id};
  status = RemoveArrays(row, changes);
  if (status.ok() && *old_pattern && **old_pattern != *pattern) {
    status = RemovePatternIfUnused(**old_pattern, changes);
  }
  const ArrayOwner owner{Kind::kMatrix, m.pattern_hash, m.tenant, m.name, ""};
  MatrixRecord record{m.tenant,
                      m.name,
                      m.pattern_hash,
                      m.values.type,
                      m.version,
                      used_version,
                      m.created_unix_ns,
                      Describing(owner, "values", m.values, blobs[0]),
                      {},
                      m.time_to_live_ns};
  if (status.ok()) status = AddArray(row, 0, record.values, blobs[0], changes);
  if (m.value_order && status.ok()) {
    record.value_order = Describing(owner, "value_order", *m.value_order, blobs[1]);
    status = AddArray(row, 1, *record.value_order, blobs[1], changes);
  }
  if (!status.ok()) return status;
  return record;
}

absl::StatusOr<ArrayDescription> DiskStore::DescribeValues(const std::string& tenant,
                                                           const std::string& name) {
  ArrayDescription description;
  description.owner = {Kind::kMatrix, "", tenant, name, ""};
  description.array = "values";
  bool found = false;
  const MutexLock lock(mutex_);
  absl::Status status = database_->Query(
      "SELECT p.hash, p.rows, p.cols, p.nnz, m.created_unix_ns,"
      "       EXISTS(SELECT 1 FROM arrays WHERE matrix = m.id AND name = 'value_order'),"
      "       m.time_to_live_ns"
      "  FROM matrices m JOIN patterns p ON p.id = m.pattern WHERE m.tenant = ? AND m.name = ?",
      {tenant, name}, [&](const Row& row) {
        found = true;
        description.owner.pattern_hash = row.Text(0);
        description.rows = row.Integer(1);
        description.cols = row.Integer(2);
        description.nnz = row.Integer(3);
        description.created_unix_ns = row.Integer(4);
        description.has_value_order = row.Integer(5) != 0;
        description.time_to_live_ns = row.Integer(6);
      });
  if (!status.ok()) return status;
  if (!found) return absl::NotFoundError(fmt::format("matrix '{}' is not stored", name));
  return description;
}

absl::StatusOr<MatrixRecord> DiskStore::PutValues(const std::string& tenant,
                                                  const std::string& name, uint64_t version,
                                                  const Array& values, Stop stop) {
  absl::StatusOr<ArrayDescription> description = DescribeValues(tenant, name);
  if (!description.ok()) return description.status();
  description->version = version;
  const absl::StatusOr<std::vector<BlobPtr>> blobs =
      WriteBlobs(std::array{NewBlob{&values, *std::move(description)}}, stop);
  if (!blobs.ok()) return blobs.status();
  MatrixRecord record;
  absl::Status status = Apply([&](BlobChanges& changes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                                  mutex_) -> absl::Status {
    absl::StatusOr<std::optional<MatrixRecord>> old = LoadMatrix(*database_, blobs_, tenant, name);
    if (!old.ok()) return old.status();
    if (!*old) return absl::NotFoundError(fmt::format("matrix '{}' is not stored", name));
    record = **std::move(old);
    const int64_t old_blob = record.values.blob->number();
    record.version = version;
    record.used_version = std::max(record.used_version, version);
    record.values = Describing(record.values.owner, "values", values, blobs->front());
    const absl::StatusOr<std::optional<int64_t>> id = database_->QueryInteger(
        "UPDATE matrices SET version = ?, used_version = ? WHERE tenant = ? AND name = ?"
        " RETURNING id",
        {static_cast<int64_t>(version), static_cast<int64_t>(record.used_version), tenant, name});
    if (!id.ok()) return id.status();
    absl::Status removed = database_->Query("DELETE FROM arrays WHERE blob = ?", {old_blob});
    if (!removed.ok()) return removed;
    changes.removed.push_back(old_blob);
    return AddArray({"matrix", id->value_or(0)}, 0, record.values, blobs->front(), changes);
  });
  if (!status.ok()) return status;
  return record;
}

absl::Status DiskStore::UseVersions(const std::string& tenant, const std::string& name,
                                    uint64_t version) {
  // It takes no room to speak of: a full disk is no reason to refuse values that are not stored.
  return ApplyRemoval([&](BlobChanges&) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return database_->Query(
        "UPDATE matrices SET used_version = max(used_version, ?) WHERE tenant = ? AND name = ?",
        {static_cast<int64_t>(version), tenant, name});
  });
}

absl::Status DiskStore::PutShare(const ShareRecord& s) {
  return Apply([&](BlobChanges&) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::Status {
    const absl::StatusOr<std::optional<int64_t>> id = database_->QueryInteger(
        "SELECT id FROM matrices WHERE tenant = ? AND name = ?", {s.tenant, s.name});
    if (!id.ok()) return id.status();
    if (!*id) return absl::NotFoundError(fmt::format("matrix '{}' is not stored", s.name));
    return database_->Query(
        "INSERT INTO shares(matrix, tenant, may_write) VALUES(?, ?, ?)"
        " ON CONFLICT(matrix, tenant) DO UPDATE SET may_write = excluded.may_write",
        {**id, s.with, int64_t{s.may_write}});
  });
}

absl::Status DiskStore::DeleteShare(const std::string& tenant, const std::string& name,
                                    const std::string& with) {
  return ApplyRemoval([&](BlobChanges&) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return database_->Query(
        "DELETE FROM shares WHERE tenant = ?"
        " AND matrix = (SELECT id FROM matrices WHERE tenant = ? AND name = ?)",
        {with, tenant, name});
  });
}

absl::StatusOr<std::optional<int64_t>> DiskStore::MatrixRow(const std::string& tenant,
                                                            const std::string& name) {
  return database_->QueryInteger("SELECT id FROM matrices WHERE tenant = ? AND name = ?",
                                 {tenant, name});
}

absl::Status DiskStore::RemoveMatrix(int64_t id, BlobChanges& changes) {
  absl::Status status = RemoveArrays({"matrix", id}, changes);
  if (status.ok()) {
    status = database_->Query(
        "UPDATE deleted_versions SET highest ="
        " max(highest, (SELECT max(version, used_version) FROM matrices WHERE id = ?))",
        {id});
  }
  if (!status.ok()) return status;
  const absl::StatusOr<std::optional<int64_t>> pattern =
      database_->QueryInteger("DELETE FROM matrices WHERE id = ? RETURNING pattern", {id});
  if (!pattern.ok()) return pattern.status();
  return RemovePatternIfUnused(pattern->value_or(0), changes);
}

absl::Status DiskStore::ForgetMoved(const NewMatrix& m, BlobChanges& changes) {
  const absl::StatusOr<std::optional<int64_t>> from = MatrixRow(m.tenant, m.moved_from);
  if (!from.ok()) return from.status();
  if (!*from) return absl::NotFoundError(fmt::format("matrix '{}' is not stored", m.moved_from));
  const absl::StatusOr<std::optional<int64_t>> to = MatrixRow(m.tenant, m.name);
  if (!to.ok()) return to.status();
  absl::Status moved =
      database_->Query("UPDATE shares SET matrix = ? WHERE matrix = ?", {to->value_or(0), **from});
  if (!moved.ok()) return moved;
  return RemoveMatrix(**from, changes);
}

absl::Status DiskStore::DeleteMatrix(const std::string& tenant, const std::string& name) {
  return ApplyRemoval(
      [&](BlobChanges& changes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::Status {
        const absl::StatusOr<std::optional<int64_t>> id = MatrixRow(tenant, name);
        if (!id.ok() || !*id) return id.status();
        return RemoveMatrix(**id, changes);
      });
}

absl::StatusOr<BufferRecord> DiskStore::PutBuffer(const NewBuffer& b, Stop stop) {
  ArrayDescription description;
  description.owner = {Kind::kBuffer, "", b.tenant, b.name, ""};
  description.array = "dense";
  description.rows = b.rows;
  description.cols = b.cols;
  description.leading_dimension = b.leading_dimension;
  description.version = b.version;
  description.buffer_owner = b.owner;
  description.time_to_live_ns = b.time_to_live_ns;
  const absl::StatusOr<std::vector<BlobPtr>> blobs =
      WriteBlobs(std::array{NewBlob{&b.array, std::move(description)}}, stop);
  if (!blobs.ok()) return blobs.status();
  absl::StatusOr<BufferRecord> record;
  absl::Status status = Apply([&](BlobChanges& changes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    record = StoreBuffer(b, blobs->front(), changes);
    return record.status();
  });
  if (!status.ok()) return status;
  return record;
}

absl::StatusOr<BufferRecord> DiskStore::StoreBuffer(const NewBuffer& b, const BlobPtr& blob,
                                                    BlobChanges& changes) {
  BufferRecord record{b.tenant,
                      b.name,
                      b.rows,
                      b.cols,
                      b.leading_dimension,
                      b.version,
                      b.owner,
                      b.time_to_live_ns,
                      Describing({Kind::kBuffer, "", b.tenant, b.name, ""}, "dense", b.array, blob),
                      b.distribution,
                      b.row_bounds};
  const absl::StatusOr<std::optional<int64_t>> id = database_->QueryInteger(
      "INSERT INTO buffers(tenant, name, rows, cols, leading_dimension, version, owner,"
      "   time_to_live_ns, distribution, row_bounds)"
      " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
      " ON CONFLICT(tenant, name) DO UPDATE SET rows = excluded.rows, cols = excluded.cols,"
      "   leading_dimension = excluded.leading_dimension, version = excluded.version,"
      "   owner = excluded.owner, time_to_live_ns = excluded.time_to_live_ns,"
      "   distribution = excluded.distribution, row_bounds = excluded.row_bounds"
      " RETURNING id",
      {b.tenant, b.name, b.rows, b.cols, b.leading_dimension, static_cast<int64_t>(b.version),
       b.owner, b.time_to_live_ns, b.distribution, std::as_bytes(std::span(b.row_bounds))});
  if (!id.ok()) return id.status();
  const OwnerRow row{"buffer", id->value_or(0)};
  absl::Status status = RemoveArrays(row, changes);
  if (status.ok()) status = AddArray(row, 0, record.array, blob, changes);
  if (!status.ok()) return status;
  return record;
}

absl::Status DiskStore::DeleteBuffer(const std::string& tenant, const std::string& name) {
  return ApplyRemoval(
      [&](BlobChanges& changes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::Status {
        const absl::StatusOr<std::optional<int64_t>> id = database_->QueryInteger(
            "SELECT id FROM buffers WHERE tenant = ? AND name = ?", {tenant, name});
        if (!id.ok() || !*id) return id.status();
        absl::Status status = RemoveArrays({"buffer", **id}, changes);
        if (!status.ok()) return status;
        return database_->Query("DELETE FROM buffers WHERE id = ?", {**id});
      });
}

std::unique_ptr<DiskStore> DiskStore::Over(FileSystem& files, std::unique_ptr<Database> database,
                                           std::shared_ptr<BlobFolder> folder) {
  return std::unique_ptr<DiskStore>(
      new DiskStore(files, nullptr, std::move(database), std::move(folder)));
}

absl::Status DiskStore::AdoptMatrix(const NewMatrix& matrix, std::span<const int64_t> blobs) {
  std::vector<BlobPtr> adopted;
  for (const int64_t number : blobs) {
    adopted.push_back(std::make_shared<Blob>(folder_, number, /*forsaken=*/false));
  }
  return Apply([&](BlobChanges& changes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    absl::Status status = StorePattern(matrix, std::span(adopted).first(2), changes).status();
    if (!status.ok()) return status;
    return StoreMatrix(matrix, std::span(adopted).subspan(2), changes).status();
  });
}

absl::Status DiskStore::AdoptBuffer(const NewBuffer& buffer, int64_t blob) {
  const auto adopted = std::make_shared<Blob>(folder_, blob, /*forsaken=*/false);
  return Apply([&](BlobChanges& changes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return StoreBuffer(buffer, adopted, changes).status();
  });
}

}  // namespace sparsed::engine
