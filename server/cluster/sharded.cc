// Matrices in shards: records that say what larger matrices are made of, and shards that are left.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "server/cluster/busy.h"
#include "server/cluster/cluster.h"
#include "server/cluster/shards.h"
#include "server/log/log.h"

namespace sparsed::server {
namespace {

constexpr int kAttempts = 5;

absl::Status ChangedElsewhere(std::string_view name) {
  return absl::AbortedError(fmt::format("other nodes change \"{}\" at the same time", name));
}

absl::Status NotInShards(std::string_view name) {
  return absl::NotFoundError(fmt::format("there is no matrix in shards named \"{}\"", name));
}

engine::NameKey UploadOf(const MatrixRecord& whole) { return {whole.key.first, whole.upload}; }

/// The tenants and uploads of those that are there.
std::set<engine::NameKey> LiveUploads(const std::vector<MatrixRecord>& records) {
  std::set<engine::NameKey> live;
  for (const MatrixRecord& record : records) {
    if (record.in_shards()) live.insert(UploadOf(record));
  }
  return live;
}

v1::ElementType ElementTypeOf(const std::string& type) {
  v1::ElementType parsed = v1::ELEMENT_TYPE_UNSPECIFIED;
  v1::ElementType_Parse(fmt::format("ELEMENT_TYPE_{}", absl::AsciiStrToUpper(type)), &parsed);
  return parsed;
}

/// Its name, as `looks` says it, and its sizes.
v1::MatrixInfo SizesOf(const MatrixRecord& record, std::string_view looks) {
  v1::MatrixInfo info;
  info.set_name(engine::ReferenceFor(looks, record.key));
  info.set_rows(record.rows);
  info.set_cols(record.cols);
  info.set_nnz(record.nnz);
  info.set_type(ElementTypeOf(record.type));
  return info;
}

}  // namespace

bool IsInShards(const absl::Status& status) { return status.GetPayload(kInShardsUrl).has_value(); }

void Cluster::AddNodes(const std::vector<MatrixCopy>& copies, v1::MatrixInfo& info) const {
  const MutexLock lock(mutex_);
  for (const MatrixCopy& copy : copies) {
    if (std::ranges::find(info.nodes(), copy.node) != info.nodes().end()) continue;
    info.add_nodes(copy.node);
    // This one is there, and may have yet to hear so after its lease has ended.
    if (copy.node == options_.self.name || IsSilentLocked()) continue;
    if (!IsAliveLocked(copy.node)) info.add_nodes_gone(copy.node);
  }
}

v1::MatrixInfo Cluster::InfoOf(const MatrixRecord& record, std::string_view looks) const {
  v1::MatrixInfo info = SizesOf(record, looks);
  info.set_pattern_hash(record.pattern_hash);
  info.set_owner(record.key.first);
  const CopyIdentity& identity =
      record.in_shards() ? record.made : record.acknowledged().front().identity;
  info.set_version(identity.version);
  info.set_created_unix_ns(identity.created_unix_ns);
  AddNodes(record.copies, info);
  info.set_copies_missing(CopiesMissing(record.key));
  info.set_replicas(ReplicasOf(record));
  if (!record.in_shards()) return info;
  info.set_durable(true);
  int64_t first_row = 0, csr_bytes = 0;
  const int64_t nonzero_bytes = 4 + (info.type() == v1::ELEMENT_TYPE_F64   ? 8
                                     : info.type() == v1::ELEMENT_TYPE_F32 ? 4
                                                                           : 2);
  for (const ShardRecord& sizes : record.shards) {
    csr_bytes += 8 * (sizes.rows + 1) + nonzero_bytes * sizes.nnz;
    ShardName name{record.upload, info.shards_size()};
    const auto reference = [&](ShardName::Part part) {
      name.part = part;
      return engine::ReferenceFor(looks, {record.key.first, ToString(name)});
    };
    v1::Shard& shard = *info.add_shards();
    shard.set_columns(reference(ShardName::Part::kColumns));
    if (record.partitioned) {
      shard.set_row_numbers(reference(ShardName::Part::kRowNumbers));
    } else {
      shard.set_first_row(first_row);
    }
    shard.set_matrix(reference(ShardName::Part::kRows));
    shard.set_rows(sizes.rows);
    shard.set_cols(sizes.cols);
    shard.set_nnz(sizes.nnz);
    first_row += sizes.rows;
    const engine::NameKey key(record.key.first, ToString(name));
    const std::optional<MatrixRecord> of_shard = RecordOf(key);
    if (!of_shard.has_value()) continue;
    for (const MatrixCopy& copy : of_shard->copies) shard.add_nodes(copy.node);
    AddNodes(of_shard->copies, info);
    info.set_copies_missing(std::max(info.copies_missing(), CopiesMissing(key)));
  }
  info.set_csr_bytes(csr_bytes);
  return info;
}

absl::Status Cluster::InShardsError(std::string_view tenant, std::string_view reference,
                                    const MatrixRecord& record) const {
  absl::Status status = absl::FailedPreconditionError(fmt::format(
      "\"{}\" is in {} shards, and this is not for such a matrix: SpMM, SDDMM with operands that "
      "the "
      "request brings, download, rename, share and delete are, by clients that know of shards; "
      "prepare and explain are for each of its shards by name, such as \"{}\"",
      reference, record.shards.size(),
      engine::ReferenceFor(tenant, {record.key.first, ToString(ShardName{record.upload, 0})})));
  status.SetPayload(kInShardsUrl, absl::Cord(SizesOf(record, tenant).SerializeAsString()));
  return status;
}

absl::StatusOr<MatrixRecord> Cluster::PartOf(const engine::NameKey& key, int64_t rows,
                                             int64_t cols) {
  std::optional<MatrixRecord> record = RecordOf(key);
  if (!record.has_value() || record->deleted) {
    if (absl::Status known = Reload(key); !known.ok()) return known;
    record = RecordOf(key);
  }
  if (!record.has_value() || record->deleted || record->in_shards()) {
    return absl::NotFoundError(fmt::format("there is no \"{}\"", key.second));
  }
  if ((rows >= 0 && record->rows != rows) || (cols >= 0 && record->cols != cols)) {
    return absl::InvalidArgumentError(
        fmt::format("\"{}\" is {} x {}, and the other shards and the whole make it {} x {}",
                    key.second, record->rows, record->cols, rows, cols));
  }
  const std::chrono::nanoseconds age =
      std::chrono::system_clock::now().time_since_epoch() -
      std::chrono::nanoseconds(record->copies.front().identity.created_unix_ns);
  if (age > options_.stray_patience / 2) {
    return absl::FailedPreconditionError(
        fmt::format("\"{}\" came too long ago, and may be dropped: upload it anew", key.second));
  }
  return *std::move(record);
}

absl::StatusOr<MatrixRecord> Cluster::Assemble(const engine::NameKey& key, const Shards& shards) {
  if (!IsUpload(shards.upload)) {
    return absl::InvalidArgumentError(
        fmt::format("upload is \"{}\", expected 16 of [0-9a-f]", absl::CHexEscape(shards.upload)));
  }
  if (shards.count < 1 || shards.count > kMostShards) {
    return absl::InvalidArgumentError(
        fmt::format("shards is {}, expected 1 to {}", shards.count, kMostShards));
  }
  MatrixRecord whole;
  whole.key = key;
  whole.rows = shards.rows;
  whole.cols = shards.cols;
  whole.upload = shards.upload;
  whole.partitioned = shards.partitioned;
  int64_t rows = 0;
  for (int i = 0; i < shards.count; ++i) {
    const auto part = [&](ShardName::Part of, int64_t part_rows, int64_t part_cols) {
      return PartOf({key.first, ToString(ShardName{shards.upload, i, of})}, part_rows, part_cols);
    };
    const auto shard = part(ShardName::Part::kRows, -1, -1);
    if (!shard.ok()) return shard.status();
    const auto columns = part(ShardName::Part::kColumns, shard->cols, shards.cols);
    if (!columns.ok()) return columns.status();
    if (shards.partitioned) {
      const auto row_numbers = part(ShardName::Part::kRowNumbers, shard->rows, shards.rows);
      if (!row_numbers.ok()) return row_numbers.status();
    }
    if (i == 0) whole.type = shard->type;
    if (shard->type != whole.type) {
      return absl::InvalidArgumentError(
          fmt::format("shard {} is {}, those before it {}", i, shard->type, whole.type));
    }
    whole.shards.push_back({shard->rows, shard->cols, shard->nnz});
    rows += shard->rows;
    whole.nnz += shard->nnz;
    const CopyIdentity& identity = shard->copies.front().identity;
    whole.made.created_unix_ns = std::max(whole.made.created_unix_ns, identity.created_unix_ns);
    whole.made.version = std::max(whole.made.version, identity.version);
  }
  if (rows != shards.rows) {
    return absl::InvalidArgumentError(
        fmt::format("the shards have {} rows, the matrix {}", rows, shards.rows));
  }
  // As whoever reads the record will have it.
  return ParseMatrixRecord(ToJson(whole));
}

absl::StatusOr<MatrixRecord> Cluster::MakeSharded(const engine::NameKey& key, const Shards& shards,
                                                  bool replace) {
  if (absl::Status valid = engine::ValidateName("matrix", key.second); !valid.ok()) return valid;
  if (ParseShardName(key.second).has_value()) {
    return absl::InvalidArgumentError(
        fmt::format("\"{}\" is the name of a shard: choose another", key.second));
  }
  if (const std::string problem = Problem(); !problem.empty()) {
    return absl::UnavailableError(problem);
  }
  const Busy busy(*this, key);
  if (!busy.held()) return absl::UnavailableError("the server is shutting down");
  const absl::StatusOr<MatrixRecord> whole = Assemble(key, shards);
  if (!whole.ok()) return whole.status();
  absl::Status status = Reload(key);
  for (int attempt = 0; status.ok() && attempt < kAttempts; ++attempt) {
    const MatrixRecord present = RecordOf(key).value_or(MatrixRecord());
    const bool there = present.revision != 0 && !present.deleted;
    if (there && !replace) return engine::NameIsTaken(key.second);
    if (there && !present.in_shards()) {
      return absl::FailedPreconditionError(
          fmt::format("\"{}\" is a matrix that is not in shards: delete it first", key.second));
    }
    if (!present.renamed_from.empty()) return ChangedElsewhere(key.second);
    // They go with the first matrix that was made of them.
    const engine::NameKey shard(key.first, ToString(ShardName{.upload = shards.upload}));
    const std::string other = WholeOf(shard);
    if ((!other.empty() && other != key.second) || IsRetired(shard)) {
      return absl::FailedPreconditionError(
          fmt::format("the upload {} is that of {} already: upload the shards anew", shards.upload,
                      other.empty() ? "a matrix that is gone" : fmt::format("\"{}\"", other)));
    }
    MatrixRecord next = *whole;
    next.epoch = present.epoch;
    next.revision = present.revision;
    next.former = present.former;
    next.shares = present.shares;
    status = Write(next);
    if (status.ok()) return next;
    if (!absl::IsAborted(status)) break;
    status = Reload(key);
  }
  return status.ok() ? ChangedElsewhere(key.second) : status;
}

absl::StatusOr<MatrixRecord> Cluster::RenameSharded(const engine::NameKey& from,
                                                    const engine::NameKey& to) {
  if (absl::Status valid = engine::ValidateName("matrix", to.second); !valid.ok()) return valid;
  if (ParseShardName(to.second).has_value()) {
    return absl::InvalidArgumentError(
        fmt::format("\"{}\" is the name of a shard: choose another", to.second));
  }
  absl::Status status = Reload(to);
  for (int attempt = 0; status.ok() && attempt < kAttempts; ++attempt) {
    MatrixRecord old = RecordOf(from).value_or(MatrixRecord());
    if (!old.in_shards()) return NotInShards(from.second);
    if (from == to) return old;
    const MatrixRecord present = RecordOf(to).value_or(MatrixRecord());
    if (present.revision != 0 && !present.deleted) return engine::NameIsTaken(to.second);
    if (!present.renamed_from.empty()) return ChangedElsewhere(to.second);
    MatrixRecord next = old;
    next.key = to;
    next.former = present.former;
    next.epoch = std::max(old.epoch, present.epoch) + 1;
    next.revision = present.revision;
    Directory::Change gone{.key = DirectoryKey(from), .value = {}, .if_revision = old.revision};
    MarkDeleted(old);
    ++old.epoch;
    if (!old.former.empty()) gone.value = ToJson(old);
    status =
        directory_
            ->Apply({{.key = DirectoryKey(to), .value = ToJson(next), .if_revision = next.revision},
                     std::move(gone)})
            .status();
    Note(status);
    const bool aborted = absl::IsAborted(status);
    absl::Status known = Reload(to);
    if (known.ok()) known = Reload(from);
    if (status.ok()) return next;
    if (!aborted) return status;
    status = known;
  }
  return status.ok() ? ChangedElsewhere(from.second) : status;
}

absl::StatusOr<MatrixRecord> Cluster::ShareSharded(const engine::NameKey& key,
                                                   const engine::Share& share, bool revoke) {
  if (share.with != engine::kEverybody) {
    absl::Status valid = engine::ValidateName("tenant's", share.with);
    if (!valid.ok()) return valid;
  }
  if (share.with == key.first) {
    return absl::InvalidArgumentError("a matrix is not shared with its owner, who has it anyway");
  }
  absl::Status status;
  for (int attempt = 0; status.ok() && attempt < kAttempts; ++attempt) {
    MatrixRecord record = RecordOf(key).value_or(MatrixRecord());
    if (!record.in_shards()) return NotInShards(key.second);
    const size_t others = std::erase_if(
        record.shares, [&](const engine::Share& other) { return other.with == share.with; });
    if (revoke && others == 0) {
      return absl::NotFoundError(
          fmt::format("\"{}\" is not shared with \"{}\"", key.second, share.with));
    }
    if (!revoke) record.shares.push_back(share);
    if (record.shares.size() > engine::Shares::kMost) {
      return absl::ResourceExhaustedError(
          fmt::format("\"{}\" is shared with {} tenants, which is the most", key.second,
                      engine::Shares::kMost));
    }
    status = Write(record);
    if (status.ok()) return record;
    if (!absl::IsAborted(status)) return status;
    status = Reload(key);
  }
  return status.ok() ? ChangedElsewhere(key.second) : status;
}

std::vector<engine::Share> Cluster::SharesOf(const MatrixRecord& record) const {
  if (!ParseShardName(record.key.second).has_value()) return record.shares;
  // A shard is for whom its matrix is for, and for nobody else where that is gone.
  const auto of = RecordOf({record.key.first, WholeOf(record.key)});
  if (!of.has_value()) return {};
  std::vector<engine::Share> shares = of->shares;
  for (engine::Share& share : shares) share.right = engine::Right::kRead;
  return shares;
}

std::string Cluster::WholeOf(const engine::NameKey& key) const {
  const std::optional<ShardName> shard = ParseShardName(key.second);
  if (!shard.has_value()) return {};
  const MutexLock lock(mutex_);
  return known_.matrices.WholeOf(key.first, shard->upload);
}

void Cluster::RetireLocked(const MatrixRecord& before) {
  if (before.in_shards()) retired_.insert(UploadOf(before));
}

bool Cluster::IsRetired(const engine::NameKey& key) const {
  const std::optional<ShardName> shard = ParseShardName(key.second);
  if (!shard.has_value()) return false;
  {
    const MutexLock lock(mutex_);
    if (!retired_.contains({key.first, shard->upload})) return false;
  }
  // It may have another name.
  return WholeOf(key).empty();
}

void Cluster::DropStrays() {
  std::set<engine::NameKey> present, lost;
  std::vector<engine::NameKey> strays;
  const std::chrono::nanoseconds today = std::chrono::system_clock::now().time_since_epoch();
  const auto now = std::chrono::steady_clock::now();
  {
    // Records as they are now, and not a moment before something was retired.
    const MutexLock lock(mutex_);
    const MatrixRecords& records = known_.matrices;
    const auto is_live = [&records](const engine::NameKey& upload) {
      return !records.WholeOf(upload.first, upload.second).empty();
    };
    for (const auto& [key, record] : records) {
      const std::optional<ShardName> shard = ParseShardName(key.second);
      if (!shard.has_value() || record.deleted) continue;
      const engine::NameKey upload(key.first, shard->upload);
      present.insert(upload);
      if (!IsMine(record) || is_live(upload)) continue;
      // However old they are: a directory that was lost, and is there again, may come to know
      // their matrix again.
      const auto [stray, is_new] = strays_since_.try_emplace(upload, now);
      if (retired_.contains(upload) || now - stray->second > options_.stray_patience) {
        strays.push_back(key);
        continue;
      }
      const std::chrono::nanoseconds made(record.copies.front().identity.created_unix_ns);
      if (is_new && today - made > options_.stray_patience) lost.insert(upload);
    }
    std::erase_if(strays_since_, [&](const auto& stray) {
      return !present.contains(stray.first) || is_live(stray.first);
    });
    // Those of a matrix that was renamed are some matrix's still.
    std::erase_if(retired_, [&](const engine::NameKey& upload) {
      return !present.contains(upload) || is_live(upload);
    });
  }
  for (const auto& [tenant, upload] : lost) {
    Log(LogLevel::kError, "the directory has no matrix that these shards are of, and they go",
        {{"tenant", tenant},
         {"upload", upload},
         {"after_seconds",
          std::chrono::duration_cast<std::chrono::seconds>(options_.stray_patience).count()}});
  }
  if (strays.empty()) return;
  // What is known here may be old.
  const auto contents = directory_->Read(std::string(kMatricesPrefix));
  if (!contents.ok()) return LookSoon();
  std::vector<MatrixRecord> read;
  std::vector<std::string_view> unread;
  for (const Directory::Entry& entry : contents->entries) {
    if (auto record = ParseMatrixRecord(entry.value); record.ok()) {
      read.push_back(*std::move(record));
    } else {
      unread.push_back(entry.key);
    }
  }
  const std::set<engine::NameKey> still = LiveUploads(read);
  bool again = false;
  for (const engine::NameKey& key : strays) {
    if (still.contains({key.first, ParseShardName(key.second)->upload})) continue;
    // What this node cannot read, as a newer one wrote it, may be what these are shards of.
    const std::string of_tenant = DirectoryKey({key.first, ""});
    if (std::ranges::any_of(unread,
                            [&](std::string_view other) { return other.starts_with(of_tenant); })) {
      continue;
    }
    const Busy busy(*this, key, Busy::IfFree());
    again = true;
    if (!busy.held() || !WithdrawBusy(key).ok()) continue;
    const absl::Status status = engine_.catalog().Delete(key.first, key.second);
    DropBuffersOf(key);
    Log(LogLevel::kInfo, "dropped a shard of no matrix",
        {{"matrix", key.second}, {"status", std::string(status.message())}});
    on_changed_(key.first, key.second);
    const MutexLock lock(mutex_);
    if (status.ok()) ++counts_.shards_dropped;
  }
  if (again) LookSoon();  // records still name this node
}

}  // namespace sparsed::server
