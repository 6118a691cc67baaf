// How a cluster's matrices change: what is written into the directory, and who copies what.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "server/cluster/busy.h"
#include "server/cluster/cluster.h"
#include "server/cluster/placement.h"
#include "server/cluster/shards.h"
#include "server/log/log.h"

namespace sparsed::server {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kSettleInterval(300);
/// All is looked at so often, though nothing was told to have changed.
constexpr std::chrono::seconds kLookInterval(5);
/// In which an owner puts a copy that arrived into the record.
constexpr std::chrono::seconds kRecordPatience(60);
constexpr std::chrono::seconds kBusyPatience(5);
constexpr int kAttempts = 5;

absl::Status ChangedElsewhere() {
  return absl::AbortedError("other nodes change the matrix at the same time");
}

/// Others own what was changed by now: they may have the change, or not.
absl::Status Unsure(const absl::Status& status) {
  if (!absl::IsAborted(status)) return status;
  return absl::UnavailableError(
      fmt::format("{}: whether the change is kept is not known", std::string(status.message())));
}

absl::Status IsThere(const std::string& node) {
  return absl::FailedPreconditionError(
      fmt::format("the node {} is there: drain it and end it first", node));
}

absl::Status ShutsDown() { return absl::UnavailableError("the server is shutting down"); }

std::string Shown(const engine::NameKey& key) {
  return fmt::format("{}{}{}", key.first, engine::kOwnerMark, key.second);
}

absl::Status TakenBy(const MatrixRecord& record, const std::string& name) {
  return absl::AbortedError(
      record.in_shards()
          ? fmt::format("there is a matrix in shards called \"{}\" by now", name)
          : fmt::format("the node {} has a matrix called \"{}\" by now", record.owner(), name));
}

/// No other node has what the record says. Of a matrix in shards no node has anything.
bool IsAlone(const MatrixRecord& record, const std::string& node) {
  if (record.in_shards()) return false;
  const auto is_node = [&](const MatrixCopy& copy) { return copy.node == node; };
  return std::ranges::all_of(record.copies, is_node) &&
         std::ranges::all_of(record.previous, is_node);
}

/// In CSR, about what a node needs to have it.
int64_t BytesOf(const MatrixRecord& record) {
  const int64_t value_bytes = record.type == "f64" ? 8 : record.type == "f32" ? 4 : 2;
  return 8 * (record.rows + 1) + (4 + value_bytes) * record.nnz;
}

bool IsFormer(const MatrixRecord& record, const std::string& node) {
  return std::ranges::find(record.former, node) != record.former.end();
}

}  // namespace

size_t Cluster::WantedCopies(const MatrixRecord& record) const {
  const MutexLock lock(mutex_);
  size_t able = 0;
  for (const auto& [name, node] : known_.nodes) {
    if (!known_.draining.contains(name)) ++able;
  }
  return std::max<size_t>(1, std::min(static_cast<size_t>(ReplicasOfLocked(record)), able));
}

absl::Status Cluster::Write(MatrixRecord& record) {
  ++record.epoch;
  const absl::StatusOr<int64_t> revision = directory_->Apply(
      {{.key = DirectoryKey(record.key), .value = ToJson(record), .if_revision = record.revision}});
  Note(revision.status());
  if (!revision.ok()) return revision.status();
  record.revision = *revision;
  const MutexLock lock(mutex_);
  SawLocked(*revision);
  const auto known = known_.matrices.find(record.key);
  if (known == known_.matrices.end() || known->second.revision < record.revision) {
    if (known != known_.matrices.end()) RetireLocked(known->second);
    known_.matrices.Set(record);
  }
  if (!IsMine(record)) {
    owned_.erase(record.key);
    expired_.erase(record.key);
    wishes_.erase(record.key);
  }
  unsettled_ = true;
  changed_.NotifyAll();
  return absl::OkStatus();
}

absl::Status Cluster::Erase(const MatrixRecord& record) {
  const auto revision = directory_->Apply(
      {{.key = DirectoryKey(record.key), .value = {}, .if_revision = record.revision}});
  Note(revision.status());
  if (!revision.ok()) return revision.status();
  const MutexLock lock(mutex_);
  SawLocked(*revision);
  const auto known = known_.matrices.find(record.key);
  if (known != known_.matrices.end() && known->second.revision == record.revision) {
    RetireLocked(known->second);
    known_.matrices.Erase(record.key);
  }
  owned_.erase(record.key);
  expired_.erase(record.key);
  return absl::OkStatus();
}

absl::Status Cluster::MayChange(const engine::NameKey& key) {
  if (const std::string problem = Problem(); !problem.empty()) {
    return absl::UnavailableError(problem);
  }
  // A copy that was replaced or deleted elsewhere, with all that was shared.
  if (IsDropped(key)) {
    DropHere(key);
    if (IsDropped(key) && engine_.catalog().Look(key.first, key.second) != nullptr) {
      return absl::UnavailableError(fmt::format(
          "an older \"{}\" of the node {} could not be dropped", key.second, options_.self.name));
    }
  }
  std::optional<MatrixRecord> record = RecordOf(key);
  if (!record.has_value()) {
    // A name may have been another's, and its versions used: the directory's revision is above
    // them.
    if (absl::Status known = Reload(key); !known.ok()) return known;
    record = RecordOf(key);
  }
  {
    // Each version was in a record before anybody saw it, so that none is above the revision.
    const MutexLock lock(mutex_);
    engine_.catalog().RaiseVersions(static_cast<uint64_t>(highest_revision_));
  }
  if (!record.has_value() || record->deleted) return absl::OkStatus();
  if (record->in_shards()) return engine::NameIsTaken(key.second);
  if (IsMine(*record)) return Own(*record);
  // It is about to take over.
  if (record->CopyAt(options_.self.name) != nullptr && !IsAlive(record->owner()) &&
      IsCurrentHere(*record)) {
    return TakeShares(key, record->shares);
  }
  return absl::AbortedError(
      fmt::format("the node {} owns \"{}\" by now", record->owner(), key.second));
}

absl::Status Cluster::Own(MatrixRecord record) {
  {
    const MutexLock lock(mutex_);
    if (owned_.contains(record.key)) return absl::OkStatus();
  }
  const engine::MatrixLease here = engine_.catalog().Look(record.key.first, record.key.second);
  if (here == nullptr || IdentityOf(*here) != record.copies.front().identity) {
    // What is newer here is a change that could not be told: where nobody who has the acknowledged
    // version is there, it is not given away to them, who may never come back.
    const std::vector<MatrixCopy>& acknowledged = record.acknowledged();
    const bool newer = here != nullptr &&
                       here->version() > record.copies.front().identity.version &&
                       std::ranges::none_of(acknowledged, [this](const MatrixCopy& copy) {
                         return copy.node != options_.self.name && IsAlive(copy.node);
                       });
    // Else the data directory is an older one, or another.
    if (!newer && GiveUp(record)) {
      absl::Status given = Write(record);
      if (absl::IsAborted(given)) Reload(record.key).IgnoreError();
      if (given.ok()) {
        Log(LogLevel::kWarn, "this node has not got what is current: another one owns it",
            {{"matrix", Shown(record.key)}, {"node", record.owner()}});
      }
      return absl::UnavailableError(
          fmt::format("the node {} has not got what is current of \"{}\": another one owns it soon",
                      options_.self.name, record.key.second));
    }
    // Nobody else has any: what comes now is the first.
    if (here == nullptr) return absl::OkStatus();
  }
  if (absl::Status status = TakeShares(record.key, SharesOf(record)); !status.ok()) return status;
  const MutexLock lock(mutex_);
  owned_.insert(record.key);
  return absl::OkStatus();
}

bool Cluster::GiveUp(MatrixRecord& record) const {
  const std::string& self = options_.self.name;
  record.MoveToFormer(self);
  if (engine_.catalog().Look(record.key.first, record.key.second) == nullptr) {
    std::erase(record.former, self);
  }
  std::erase_if(record.previous, [&](const MatrixCopy& copy) { return copy.node == self; });
  if (record.copies.empty()) record.copies = std::exchange(record.previous, {});
  for (const MatrixCopy& copy : record.copies) std::erase(record.former, copy.node);
  // One that is there, if there is one.
  std::stable_partition(record.copies.begin(), record.copies.end(),
                        [this](const MatrixCopy& copy) { return IsAlive(copy.node); });
  return !record.copies.empty();
}

absl::Status Cluster::IfMoved(const engine::NameKey& key) {
  const std::optional<MatrixRecord> record = RecordOf(key);
  if (!record.has_value() || record->deleted || record->in_shards() || IsMine(*record) ||
      !IsAlive(record->owner())) {
    return absl::OkStatus();
  }
  return Redirect(key.second, {record->owner()}, record->epoch);
}

absl::StatusOr<engine::MatrixLease> Cluster::Change(const engine::NameKey& key,
                                                    const LocalChange& change,
                                                    const Wishes& wishes) {
  Busy busy(*this, key);
  if (!busy.held()) return ShutsDown();
  if (absl::Status moved = IfMoved(key); !moved.ok()) return moved;
  return ChangeBusy(busy, key, change, wishes);
}

absl::StatusOr<engine::MatrixLease> Cluster::Copy(const engine::NameKey& from,
                                                  const engine::NameKey& to,
                                                  const LocalChange& change) {
  // Everybody waits for the lower one first.
  Busy first(*this, std::min(from, to));
  std::optional<Busy> second;
  if (from != to) second.emplace(*this, std::max(from, to));
  if (!first.held() || (second.has_value() && !second->held())) return ShutsDown();
  if (absl::Status moved = IfMoved(from); !moved.ok()) return moved;
  const auto record = RecordOf(from);
  const bool known = record.has_value() && !record->deleted;
  if (known && !IsCurrentHere(*record)) {
    return absl::UnavailableError(
        fmt::format("\"{}\" is being changed, and what the node {} has of it may yet be taken back",
                    from.second, options_.self.name));
  }
  const Wishes wishes{.replicas = known ? record->replicas : 0,
                      .placed_by = known ? record->placed_by : ""};
  return ChangeBusy(from < to ? *second : first, to, change, wishes);
}

absl::StatusOr<engine::MatrixLease> Cluster::ChangeBusy(Busy& busy, const engine::NameKey& key,
                                                        const LocalChange& change,
                                                        const Wishes& wishes) {
  if (absl::Status may = MayChange(key); !may.ok()) return may;
  const std::optional<MatrixRecord> record = RecordOf(key);
  const bool is_new = !record.has_value() || record->deleted;
  if (is_new) {
    if (absl::Status reserved = Reserve(key, key); !reserved.ok()) return reserved;
    // Others may have made and deleted it until then.
    const MutexLock lock(mutex_);
    engine_.catalog().RaiseVersions(static_cast<uint64_t>(highest_revision_));
  }
  busy.Hide();
  absl::StatusOr<engine::MatrixLease> made = change();
  if (!made.ok()) {
    if (is_new) Unreserve(key);
    return made.status();
  }
  if (is_new || wishes.replicas.has_value()) {
    const MutexLock lock(mutex_);
    wishes_[key] = wishes;
  }
  if (absl::Status told = TellBusy(key); !told.ok()) return told;
  return made;
}

absl::Status Cluster::TellBusy(const engine::NameKey& key) {
  absl::Status status = PublishBusy(key);
  if (absl::IsAborted(status)) {
    DropLoser(key);
    // It is told later.
    if (const auto left = RecordOf(key); left.has_value() && IsMine(*left)) status = Unsure(status);
  }
  if (!status.ok()) {
    LookSoon();
    return status;
  }
  return Unsure(Replicate(key, /*background=*/false));
}

absl::Status Cluster::Enter(const engine::NameKey& key) {
  const Busy busy(*this, key);
  if (!busy.held()) return ShutsDown();
  if (const std::string problem = Problem(); !problem.empty()) {
    return absl::UnavailableError(fmt::format(
        "{}: \"{}\" is here, and whether it is kept is not known", problem, key.second));
  }
  if (!RecordOf(key).has_value()) {
    if (absl::Status known = Reload(key); !known.ok()) return known;
  }
  return TellBusy(key);
}

absl::StatusOr<engine::MatrixLease> Cluster::Rename(const engine::NameKey& from,
                                                    const engine::NameKey& to,
                                                    const LocalChange& change) {
  // Everybody waits for the lower one first.
  const Busy first(*this, std::min(from, to));
  std::optional<Busy> second;
  if (from != to) second.emplace(*this, std::max(from, to));
  if (!first.held() || (second.has_value() && !second->held())) return ShutsDown();
  if (absl::Status moved = IfMoved(from); !moved.ok()) return moved;
  for (const engine::NameKey& key : {from, to}) {
    if (absl::Status may = MayChange(key); !may.ok()) return may;
  }
  if (from == to) return change();
  // What the directory does not know yet could not be found again.
  if (!RecordOf(from).has_value()) {
    const absl::Status known = PublishBusy(from);
    if (absl::IsNotFound(known)) return change();  // which says so
    if (!known.ok()) return known;
  }
  if (absl::Status reserved = Reserve(from, to); !reserved.ok()) return reserved;
  absl::StatusOr<engine::MatrixLease> made = change();
  if (!made.ok()) {
    Unreserve(to);
    return made;
  }
  absl::Status status = PublishRenamed(from, to, **made);
  if (absl::IsAborted(status)) {
    // It was not told, and is not done.
    const absl::Status back =
        engine_.catalog().Rename(to.first, to.second, from.second, options_.threads).status();
    if (!back.ok()) {
      Log(LogLevel::kError, "a matrix has a name here that the cluster does not know",
          {{"matrix", Shown(to)}, {"message", std::string(back.message())}});
    }
    Unreserve(to);
    on_changed_(to.first, to.second);
  }
  // If it is not known what the directory has, that is looked at when it answers: SettleDeleted.
  if (!status.ok()) return status;
  status = Replicate(to, /*background=*/false);
  if (!status.ok()) return Unsure(status);
  return made;
}

// What a node made and could not tell, or was killed before it could, is dropped when it has heard
// of the directory again: it would come back later, with an older version than others have made
// meanwhile.
absl::Status Cluster::Reserve(const engine::NameKey& from, const engine::NameKey& to) {
  absl::Status status;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    MatrixRecord record = RecordOf(to).value_or(MatrixRecord());
    if (record.revision != 0 && !record.deleted) {
      return TakenBy(record, to.second);
    }
    record.key = to;
    record.deleted = true;
    record.renamed_from = from == to ? "" : from.second;
    if (!IsFormer(record, options_.self.name)) record.former.push_back(options_.self.name);
    status = Write(record);
    if (!absl::IsAborted(status)) return status;
    if (status = Reload(to); !status.ok()) return status;
    status = ChangedElsewhere();
  }
  return status;
}

void Cluster::Unreserve(const engine::NameKey& to) {
  std::optional<MatrixRecord> record = RecordOf(to);
  if (!record.has_value() || !record->deleted ||
      engine_.catalog().Look(to.first, to.second) != nullptr) {
    return;
  }
  record->renamed_from.clear();
  std::erase(record->former, options_.self.name);
  (record->former.empty() ? Erase(*record) : Write(*record)).IgnoreError();
}

absl::Status Cluster::PublishRenamed(const engine::NameKey& from, const engine::NameKey& to,
                                     const engine::Matrix& made) {
  absl::Status status;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    MatrixRecord record = RecordOf(to).value_or(MatrixRecord());
    // It was written, though nobody said so.
    if (record.revision != 0 && IsMine(record) &&
        record.copies.front().identity == IdentityOf(made)) {
      status = absl::OkStatus();
      break;
    }
    std::optional<MatrixRecord> old = RecordOf(from);
    if (!record.deleted || record.renamed_from != from.second ||
        (old.has_value() && !IsMine(*old))) {
      return ChangedElsewhere();
    }
    if (old.has_value()) {
      // What was wished of it, if that was not told yet.
      const MutexLock lock(mutex_);
      const auto untold = wishes_.find(from);
      wishes_[to] = {.replicas = untold != wishes_.end() && untold->second.replicas.has_value()
                                     ? untold->second.replicas
                                     : old->replicas,
                     .placed_by = old->placed_by};
    }
    Describe(made, record);
    ++record.epoch;
    std::vector<Directory::Change> changes = {
        {.key = DirectoryKey(to), .value = ToJson(record), .if_revision = record.revision}};
    // One that the directory does not know needs no more.
    if (old.has_value()) {
      Directory::Change gone{.key = DirectoryKey(from), .value = {}, .if_revision = old->revision};
      MarkDeleted(*old);
      ++old->epoch;
      if (!old->former.empty()) gone.value = ToJson(*old);
      changes.push_back(std::move(gone));
    }
    status = directory_->Apply(changes).status();
    Note(status);
    // What was written, or who was faster.
    absl::Status reloaded = Reload(from);
    if (reloaded.ok()) reloaded = Reload(to);
    if (!reloaded.ok()) return reloaded;
    if (!absl::IsAborted(status)) break;
  }
  if (!status.ok()) return status;
  const MutexLock lock(mutex_);
  owned_.insert(to);
  wishes_.erase(from);
  wishes_.erase(to);
  unsettled_ = true;
  return absl::OkStatus();
}

absl::Status Cluster::Delete(const engine::NameKey& key) {
  const Busy busy(*this, key);
  if (!busy.held()) return ShutsDown();
  if (const std::string problem = Problem(); !problem.empty()) {
    return absl::UnavailableError(problem);
  }
  const std::optional<MatrixRecord> record = RecordOf(key);
  const bool known = record.has_value() && !record->deleted;
  if (known && record->in_shards()) {
    absl::Status gone = WithdrawBusy(key);
    LookSoon();  // its shards are to go
    return gone;
  }
  if (const std::string whole = WholeOf(key); !whole.empty()) {
    return absl::FailedPreconditionError(
        fmt::format("\"{}\" is a shard of \"{}\": delete that", key.second, whole));
  }
  if (absl::Status moved = IfMoved(key); !moved.ok()) return moved;
  if (known && !IsMine(*record)) {
    return absl::AbortedError(
        fmt::format("the node {} owns \"{}\" by now", record->owner(), key.second));
  }
  if (absl::Status withdrawn = WithdrawBusy(key); !withdrawn.ok()) return withdrawn;
  absl::Status status = engine_.catalog().Delete(key.first, key.second);
  {
    const MutexLock lock(mutex_);
    wishes_.erase(key);
  }
  LookSoon();  // the record still names this node
  // The record was all that there was.
  if (known && absl::IsNotFound(status)) return absl::OkStatus();
  return status;
}

void Cluster::DropLoser(const engine::NameKey& key) {
  const std::optional<MatrixRecord> record = RecordOf(key);
  if (!record.has_value() || record->deleted || record->CopyAt(options_.self.name) != nullptr ||
      record->PreviousAt(options_.self.name) != nullptr) {
    return;
  }
  {
    const MutexLock lock(mutex_);
    wishes_.erase(key);
  }
  const absl::Status status = engine_.catalog().Delete(key.first, key.second);
  Log(LogLevel::kInfo, "dropped what another node was faster to make",
      {{"matrix", Shown(key)}, {"status", std::string(status.message())}});
  on_changed_(key.first, key.second);
}

absl::Status Cluster::PublishBusy(const engine::NameKey& key) {
  absl::Status status;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    status = absl::OkStatus();
    const engine::MatrixLease here = engine_.catalog().Look(key.first, key.second);
    if (here == nullptr) {
      return absl::NotFoundError(fmt::format("\"{}\" was deleted meanwhile", key.second));
    }
    const std::string& self = options_.self.name;
    MatrixRecord record = RecordOf(key).value_or(MatrixRecord());
    if (record.revision != 0 && !record.deleted && !IsMine(record) &&
        (IsAlive(record.owner()) || record.CopyAt(self) == nullptr)) {
      return TakenBy(record, key.second);
    }
    const MatrixCopy* const mine = record.CopyAt(self);
    const CopyIdentity identity = IdentityOf(*here);
    std::vector<engine::Share> shares = engine_.catalog().SharesOf(*here);
    const auto same = [](const engine::Share& a, const engine::Share& b) {
      return a.with == b.with && a.right == b.right;
    };
    const bool same_version = !record.deleted && mine != nullptr && mine->identity == identity;
    if (!same_version || !std::ranges::equal(shares, record.shares, same)) {
      record.key = key;
      if (same_version) {
        record.shares = std::move(shares);
      } else {
        Describe(*here, record);
      }
      status = Write(record);
    }
    if (status.ok() && IsMine(record)) {
      const MutexLock lock(mutex_);
      owned_.insert(key);
      expired_.erase(key);
      wishes_.erase(key);
    }
    if (!absl::IsAborted(status)) return status;
    if (status = Reload(key); !status.ok()) return status;
    status = ChangedElsewhere();
  }
  return status;
}

void Cluster::Describe(const engine::Matrix& here, MatrixRecord& record) const {
  const std::string& self = options_.self.name;
  const bool is_new = record.deleted;
  if (is_new) {
    record.previous.clear();
    // Another one's.
    record.replicas = 0;
    record.placed_by.clear();
  }
  // Those of a version between that never was acknowledged do not count.
  if (record.previous.empty() && !record.deleted) record.previous = record.copies;
  std::erase_if(record.previous, [&](const MatrixCopy& copy) { return copy.node == self; });
  for (const MatrixCopy& copy : std::vector(record.copies)) record.MoveToFormer(copy.node);
  record.copies = {{self, IdentityOf(here)}};
  record.deleted = false;
  record.renamed_from.clear();
  record.rows = here.pattern()->rows();
  record.cols = here.pattern()->cols();
  record.nnz = here.pattern()->nnz();
  record.type = std::string(Name(here.type()));
  record.pattern_hash = here.pattern()->hash();
  {
    const MutexLock lock(mutex_);
    if (const auto found = wishes_.find(record.key); found != wishes_.end()) {
      record.replicas = found->second.replicas.value_or(record.replicas);
      if (is_new) record.placed_by = found->second.placed_by;
    }
  }
  // Before they have anything of it: whatever becomes of this node, they drop what they have.
  for (const std::string& node : TargetsFor(record)) record.MoveToFormer(node);
  std::erase(record.former, self);
  record.shares = engine_.catalog().SharesOf(here);
}

std::vector<std::string> Cluster::TargetsFor(const MatrixRecord& record) const {
  const size_t others = WantedCopies(record) - 1;
  const MutexLock lock(mutex_);
  std::vector<std::string> nodes = PlacementLocked(record);
  std::erase(nodes, options_.self.name);
  nodes.resize(std::min(nodes.size(), others));
  return nodes;
}

void Cluster::Expired(const std::string& tenant, const std::string& name) {
  const engine::NameKey key(tenant, name);
  const std::optional<MatrixRecord> record = RecordOf(key);
  // That of a copy says nothing: its owner is asked, too.
  if (!record.has_value() || !IsMine(*record)) return;
  const MutexLock lock(mutex_);
  expired_.insert(key);
  unsettled_ = true;
}

absl::Status Cluster::WithdrawBusy(const engine::NameKey& key) {
  absl::Status status;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::optional<MatrixRecord> record = RecordOf(key);
    if (!record.has_value() || record->deleted) return absl::OkStatus();
    if (!IsMine(*record) && !record->in_shards()) return ChangedElsewhere();
    MarkDeleted(*record);
    status = record->former.empty() ? Erase(*record) : Write(*record);
    if (!absl::IsAborted(status)) return status;
    if (status = Reload(key); !status.ok()) return status;
    status = ChangedElsewhere();
  }
  return status;
}

void Cluster::MarkDeleted(MatrixRecord& record) const {
  for (const MatrixCopy& copy : std::vector(record.copies)) record.MoveToFormer(copy.node);
  for (const MatrixCopy& copy : std::exchange(record.previous, {})) record.MoveToFormer(copy.node);
  // As long as its disk has it, this node is one of those: it may be killed before that is gone.
  if (engine_.catalog().Look(record.key.first, record.key.second) == nullptr) {
    std::erase(record.former, options_.self.name);
  }
  record.deleted = true;
  record.shards.clear();
}

absl::Status Cluster::Replicate(const engine::NameKey& key, bool background,
                                const std::string& to) {
  std::set<std::string> failed;
  absl::Status last;
  while (!stopping_) {
    std::optional<MatrixRecord> record = RecordOf(key);
    if (!record.has_value() || !IsMine(*record)) return ChangedElsewhere();
    // Others may own it by now.
    if (const std::string problem = Problem(); !problem.empty()) {
      return absl::UnavailableError(problem);
    }
    bool enough = false;
    std::string target, address;
    {
      const size_t wanted = WantedCopies(*record);
      const MutexLock lock(mutex_);
      enough = to.empty() ? LastingCopiesLocked(*record) >= wanted
                          : record->CopyAt(to) != nullptr || !StaysLocked(to);
      for (const std::string& node :
           to.empty() ? PlacementLocked(*record) : std::vector<std::string>{to}) {
        if (enough) break;
        if (record->CopyAt(node) != nullptr || failed.contains(node)) continue;
        target = node;
        address = known_.nodes.at(node).address;
        break;
      }
    }
    // Or there are no more nodes.
    if (enough || (target.empty() && last.ok())) {
      if (record->previous.empty()) return absl::OkStatus();
      // From here on it counts as acknowledged.
      record->previous.clear();
      if (last = Write(*record); absl::IsAborted(last)) last = Reload(key);
      if (!last.ok()) return last;
      continue;
    }
    if (target.empty()) {
      return absl::UnavailableError(fmt::format(
          "\"{}\" is kept by {} of {} nodes, and will be copied to others later: {}", key.second,
          record->copies.size(), WantedCopies(*record), std::string(last.message())));
    }
    if (!IsFormer(*record, target)) {
      record->former.push_back(target);
      if (last = Write(*record); absl::IsAborted(last)) last = Reload(key);
      if (!last.ok()) return last;
      continue;
    }
    v1::CopyHereRequest request;
    request.set_tenant(key.first);
    request.set_name(key.second);
    request.set_from(options_.self.address);
    request.set_owner(options_.self.name);
    for (const engine::Share& share : record->shares) {
      v1::MatrixShare& message = *request.add_shares();
      message.set_with(share.with);
      message.set_write(share.right == engine::Right::kWrite);
    }
    request.set_pattern_hash(record->pattern_hash);
    if (background) request.set_bytes_per_second(options_.copy_bytes_per_second);
    const CopyIdentity identity = record->copies.front().identity;
    const auto begun = steady_clock::now();
    const absl::StatusOr<v1::CopyHereReply> reply = peers_->CopyHere(address, request);
    const std::chrono::duration<double> took = steady_clock::now() - begun;
    const bool current = reply.ok() && identity == CopyIdentity{reply->source_created_unix_ns(),
                                                                reply->source_version()};
    {
      const MutexLock lock(mutex_);
      counts_.copy_seconds += took.count();
      ++(current ? counts_.copies_made : counts_.copies_failed);
      if (reply.ok()) counts_.copy_bytes += reply->bytes();
    }
    last = reply.status();
    if (reply.ok() && !current) {
      last = absl::AbortedError("the matrix was changed while it was copied");
    }
    if (current) {
      // Others write into the record, too: what they changed stays.
      for (int attempt = 0; attempt < kAttempts; ++attempt) {
        record = RecordOf(key);
        if (!record.has_value() || !IsMine(*record) ||
            record->copies.front().identity != identity) {
          return ChangedElsewhere();
        }
        std::erase_if(record->copies, [&](const MatrixCopy& copy) { return copy.node == target; });
        std::erase(record->former, target);
        std::erase_if(record->previous,
                      [&](const MatrixCopy& copy) { return copy.node == target; });
        record->copies.push_back({target, {reply->created_unix_ns(), reply->version()}});
        // In the place of one that is gone, if there was one.
        for (const MatrixCopy& copy : std::vector(record->copies)) {
          // This node itself may have been out of the registry for a moment.
          if (copy.node != options_.self.name && !IsAlive(copy.node)) {
            record->MoveToFormer(copy.node);
          }
        }
        last = Write(*record);
        if (!absl::IsAborted(last)) break;
        if (last = Reload(key); !last.ok()) break;
      }
    }
    if (!last.ok()) {
      failed.insert(target);
      Log(LogLevel::kWarn, "a copy was not made",
          {{"matrix", Shown(key)}, {"node", target}, {"message", std::string(last.message())}});
    }
  }
  return ShutsDown();
}

absl::StatusOr<v1::CopyHereReply> Cluster::CopyHere(const v1::CopyHereRequest& request) {
  const engine::NameKey key(request.tenant(), request.name());
  // Two nodes that both think they own it must not wait for each other.
  std::optional<Busy> busy;
  const auto patience = steady_clock::now() + kBusyPatience;
  while (true) {
    busy.emplace(*this, key, Busy::IfFree());
    if (busy->held()) break;
    if (stopping_ || steady_clock::now() > patience) {
      return absl::AbortedError(
          fmt::format("the node {} changes \"{}\" itself", options_.self.name, key.second));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  // Who asks may have lost it to another node, though he does not know yet; so may this one's view.
  if (absl::Status known = Reload(key); !known.ok()) return known;
  const std::optional<MatrixRecord> record = RecordOf(key);
  if (!record.has_value() || record->deleted || IsMine(*record) ||
      record->owner() != request.owner()) {
    return absl::AbortedError(fmt::format("the node at {} does not own \"{}\", says the directory",
                                          request.from(), key.second));
  }
  {
    const MutexLock lock(mutex_);
    arrived_[key] = {steady_clock::now(), {}, {}};
  }
  // It may have been away while nothing changed.
  const engine::MatrixLease here = engine_.catalog().Look(key.first, key.second);
  const CopyIdentity identity = record->copies.front().identity;
  absl::StatusOr<v1::CopyHereReply> reply = v1::CopyHereReply();
  if (here != nullptr && here->durable() && IdentityOf(*here) == identity) {
    reply->set_created_unix_ns(identity.created_unix_ns);
    reply->set_version(identity.version);
    reply->set_source_created_unix_ns(identity.created_unix_ns);
    reply->set_source_version(identity.version);
  } else {
    reply = peers_->Fetch(request, engine_, options_.threads, stopping_);
  }
  absl::Status shared;
  if (reply.ok()) {
    std::vector<engine::Share> shares;
    for (const v1::MatrixShare& share : request.shares()) {
      shares.push_back(
          {share.with(), share.write() ? engine::Right::kWrite : engine::Right::kRead});
    }
    shared = TakeShares(key, shares);
  }
  {
    const MutexLock lock(mutex_);
    Arrival& arrival = arrived_[key];
    arrival.time = steady_clock::now();
    if (reply.ok()) {
      arrival.source = {reply->source_created_unix_ns(), reply->source_version()};
      arrival.here = {reply->created_unix_ns(), reply->version()};
    }
  }
  if (reply.ok()) on_changed_(key.first, key.second);
  if (!shared.ok()) return shared;
  return reply;
}

absl::StatusOr<Cluster::Forgotten> Cluster::Forget(const std::string& node, bool lose) {
  if (const std::string problem = Problem(); !problem.empty()) {
    return absl::UnavailableError(problem);
  }
  std::vector<MatrixRecord> records, alone;
  bool draining = false;
  {
    const MutexLock lock(mutex_);
    if (IsAliveLocked(node)) {
      return IsThere(node);
    }
    draining = known_.draining.contains(node);
    for (const auto& [key, record] : known_.matrices) {
      if (!record.Knows(node)) continue;
      records.push_back(record);
      if (!record.deleted && IsAlone(record, node)) alone.push_back(record);
    }
  }
  if (records.empty() && !draining) {
    return absl::NotFoundError(fmt::format("nothing is known of a node called \"{}\"", node));
  }
  if (!alone.empty() && !lose) {
    return absl::FailedPreconditionError(fmt::format(
        "the node {} alone has {} of the cluster's matrices, \"{}\" among them: start it again, or "
        "let them be lost with it (sparsectl cluster forget {} --lose-matrices)",
        node, alone.size(), alone.front().key.second, node));
  }
  // First of all: from here on it does not come back with what it has.
  const absl::Status marked =
      directory_
          ->Apply({{.key = fmt::format("{}{}", kForgottenPrefix, node),
                    .value = "true",
                    .if_revision = {}},
                   {.key = fmt::format("{}{}", kDrainPrefix, node), .value = {}, .if_revision = {}},
                   {.key = fmt::format("{}{}", kNodesPrefix, node), .value = {}, .if_revision = 0}})
          .status();
  Note(marked);
  if (absl::IsAborted(marked)) return IsThere(node);
  if (!marked.ok()) return marked;
  Forgotten forgotten;
  for (const MatrixRecord& one : records) {
    absl::Status status;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      std::optional<MatrixRecord> record = RecordOf(one.key);
      if (!record.has_value() || !record->Knows(node)) break;
      // One that came to be so meanwhile waits for the next time.
      const bool lost = !record->deleted && IsAlone(*record, node);
      if (lost && !lose) break;
      std::erase_if(record->copies, [&](const MatrixCopy& copy) { return copy.node == node; });
      std::erase_if(record->previous, [&](const MatrixCopy& copy) { return copy.node == node; });
      std::erase(record->former, node);
      if (record->copies.empty()) record->copies = std::exchange(record->previous, {});
      for (const MatrixCopy& copy : record->copies) std::erase(record->former, copy.node);
      record->deleted = record->copies.empty() && !record->in_shards();
      status = record->deleted && record->former.empty() ? Erase(*record) : Write(*record);
      if (status.ok()) {
        ++forgotten.records;
        if (lost) ++forgotten.lost;
      }
      if (!absl::IsAborted(status)) break;
      if (status = Reload(one.key); !status.ok()) break;
      status = ChangedElsewhere();
    }
    if (!status.ok()) return status;
  }
  LookSoon();
  return forgotten;
}

// What has to be done though nobody asks.

void Cluster::LookSoon() {
  const MutexLock lock(mutex_);
  unsettled_ = true;
}

void Cluster::Settle(const std::stop_token& stop) {
  auto looked = steady_clock::time_point();
  while (Sleep(stop, kSettleInterval)) {
    // What could not be told is told as soon as it can be. Who is not in the registry would take
    // itself for one of those that are gone.
    if (!Problem().empty() || !IsAlive(options_.self.name)) {
      LookSoon();
      continue;
    }
    std::vector<MatrixRecord> records;
    {
      const MutexLock lock(mutex_);
      if (!unsettled_ && steady_clock::now() - looked < kLookInterval) continue;
      unsettled_ = false;
      somebody_gone_ = false;
      for (const auto& [key, record] : known_.matrices) {
        records.push_back(record);
        for (const MatrixCopy& copy : record.copies) {
          somebody_gone_ = somebody_gone_ || !IsAliveLocked(copy.node);
        }
      }
      std::erase_if(arrived_, [](const auto& arrival) {
        return steady_clock::now() - arrival.second.time > kRecordPatience;
      });
      std::erase_if(unmoved_, [this](const auto& failed) {
        return steady_clock::now() - failed.second >= options_.settle;
      });
    }
    looked = steady_clock::now();
    for (const MatrixRecord& record : records) {
      if (stop.stop_requested()) return;
      SettleMatrix(record);
    }
    // What was here before there was a cluster, and what products made.
    for (const engine::MatrixLease& matrix : engine_.catalog().All()) {
      if (stop.stop_requested()) return;
      engine::NameKey key(matrix->tenant(), matrix->name());
      const std::optional<MatrixRecord> record = RecordOf(key);
      if (record.has_value() && (!record->deleted || IsFormer(*record, options_.self.name))) {
        continue;
      }
      const Busy busy(*this, key, Busy::IfFree());
      bool arrived = false;
      {
        const MutexLock lock(mutex_);
        arrived = arrived_.contains(key);
      }
      if (busy.held() && !arrived && PublishBusy(key).ok()) LookSoon();
    }
    DropStrays();
  }
}

void Cluster::SettleMatrix(const MatrixRecord& seen) {
  const Busy busy(*this, seen.key, Busy::IfFree());
  if (!busy.held()) return LookSoon();
  std::optional<MatrixRecord> record = RecordOf(seen.key);
  if (!record.has_value()) return;
  const std::string& self = options_.self.name;
  if (record->deleted) return SettleDeleted(*std::move(record));
  if (IsMine(*record)) return SettleMine(*std::move(record));
  if (!record->in_shards() && !IsAlive(record->owner())) return TakeOver(*std::move(record));
  bool arriving = false;
  {
    const MutexLock lock(mutex_);
    const auto found = arrived_.find(record->key);
    // One of a version that is current no more is not waited for.
    arriving = found != arrived_.end() &&
               (found->second.source.version == 0 || record->copies.empty() ||
                found->second.source.version >= record->copies.front().identity.version);
  }
  if (record->CopyAt(self) != nullptr && !IsCurrentHere(*record)) {
    // Not what the record says: its owner is to copy it again.
    if (arriving) return;
    record->MoveToFormer(self);
    Write(*record).IgnoreError();
    return;
  }
  if (record->CopyAt(self) != nullptr) {
    TakeShares(record->key, SharesOf(*record)).IgnoreError();  // it is tried again
    if (IsSpare(*record)) {
      record->MoveToFormer(self);
      Write(*record).IgnoreError();
    }
    return;
  }
  // Its owner is about to copy it again, perhaps here.
  if (arriving || (!record->in_shards() && record->copies.size() < WantedCopies(*record))) {
    return;
  }
  // What never was the cluster's is the operator's to rename or delete; what was acknowledged last
  // stays until there is something newer.
  if (!IsDropped(record->key)) return;
  DropHere(record->key);
  record = RecordOf(seen.key);
  if (!record.has_value() || !IsDropped(record->key) ||
      engine_.catalog().Look(record->key.first, record->key.second) != nullptr) {
    return;
  }
  std::erase(record->former, self);
  Write(*record).IgnoreError();
}

void Cluster::TakeOver(MatrixRecord record) {
  const std::string& self = options_.self.name;
  const std::string gone = record.owner();
  const auto is_there = [this](const MatrixCopy& copy) { return IsAlive(copy.node); };
  const engine::MatrixLease here = engine_.catalog().Look(record.key.first, record.key.second);
  const CopyIdentity identity = here == nullptr ? CopyIdentity() : IdentityOf(*here);
  const auto next = std::ranges::find_if(record.copies, is_there);
  if (next != record.copies.end()) {
    // The first of the others that is there.
    if (next->node != self) return;
    if (identity != next->identity) {
      // This one has not got it, after all: the next one's turn.
      record.MoveToFormer(self);
      Write(record).IgnoreError();
      return;
    }
    while (record.copies.front().node != self) record.MoveToFormer(std::string(record.owner()));
  } else {
    // A version is the same everywhere.
    const bool arrived = here != nullptr && identity == record.copies.front().identity;
    if (arrived) {
      // Its copy of what is current came here before its owner could say so.
      for (const MatrixCopy& copy : std::vector(record.copies)) record.MoveToFormer(copy.node);
      std::erase_if(record.previous, [&](const MatrixCopy& copy) { return copy.node == self; });
      record.copies = {{self, identity}};
    } else {
      // What was acknowledged last: the change after it never was.
      const auto before = std::ranges::find_if(record.previous, is_there);
      const MatrixCopy* const mine = record.PreviousAt(self);
      if (mine == nullptr) return;
      // Or a change after it that came here, and whose client was told that nobody knows.
      const bool newer = identity.version > mine->identity.version;
      if (here == nullptr || (mine->identity != identity && !newer)) {
        std::erase_if(record.previous, [&](const MatrixCopy& copy) { return copy.node == self; });
        Write(record).IgnoreError();
        return;
      }
      // This node itself may have been out of the registry for a moment.
      if (before == record.previous.end() || before->node != self) return;
      for (const MatrixCopy& copy : std::vector(record.copies)) record.MoveToFormer(copy.node);
      if (newer) {
        // What others have stays the acknowledged one until they have this.
        record.previous.erase(before);
        record.copies = {{self, identity}};
      } else {
        std::rotate(record.previous.begin(), before, std::next(before));
        record.copies = std::exchange(record.previous, {});
      }
      for (const MatrixCopy& copy : record.copies) std::erase(record.former, copy.node);
      record.rows = here->pattern()->rows();
      record.cols = here->pattern()->cols();
      record.nnz = here->pattern()->nnz();
      record.type = std::string(Name(here->type()));
      record.pattern_hash = here->pattern()->hash();
    }
    std::erase(record.former, self);
  }
  if (!Write(record).ok()) return LookSoon();
  {
    const MutexLock lock(mutex_);
    ++counts_.takeovers;
  }
  Log(LogLevel::kInfo, "took a matrix over", {{"matrix", Shown(record.key)}, {"from", gone}});
}

// What a node that is drained has does not count: another is to have it before it goes.
size_t Cluster::LastingCopiesLocked(const MatrixRecord& record) const {
  size_t lasting = 0;
  for (const MatrixCopy& copy : record.copies) {
    if (StaysLocked(copy.node)) ++lasting;
  }
  return lasting;
}

bool Cluster::IsSpare(const MatrixRecord& record) const {
  const size_t wanted = WantedCopies(record);
  const MutexLock lock(mutex_);
  return known_.draining.contains(options_.self.name) && LastingCopiesLocked(record) >= wanted;
}

void Cluster::SettleMine(MatrixRecord record) {
  const engine::MatrixLease here = engine_.catalog().Look(record.key.first, record.key.second);
  bool expired = false;
  {
    const MutexLock lock(mutex_);
    expired = expired_.contains(record.key);
    if (here != nullptr) expired_.erase(record.key);
  }
  if (here == nullptr && expired) {
    if (!WithdrawBusy(record.key).ok()) return;
    const MutexLock lock(mutex_);
    expired_.erase(record.key);
    return;
  }
  if (here == nullptr) {
    const MutexLock lock(mutex_);
    owned_.erase(record.key);
  }
  if (!Own(record).ok() || here == nullptr) return;
  if (ParseShardName(record.key.second).has_value()) {
    TakeShares(record.key, SharesOf(record)).IgnoreError();
  }
  // What was changed here and could not be told.
  if (!PublishBusy(record.key).ok()) return;
  std::optional<MatrixRecord> present = RecordOf(record.key);
  if (!present.has_value() || !IsMine(*present)) return;
  bool draining = false, others_need = false;
  {
    const size_t wanted = WantedCopies(*present);
    const MutexLock lock(mutex_);
    draining = known_.draining.contains(options_.self.name);
    bool anywhere = false;
    for (const auto& [name, node] : known_.nodes) {
      anywhere = anywhere || !known_.draining.contains(name);
    }
    // Also what has enough and was not acknowledged yet.
    others_need =
        (LastingCopiesLocked(*present) < wanted && anywhere) || !present->previous.empty();
    if (others_need && std::ranges::find(incomplete_, record.key) == incomplete_.end()) {
      incomplete_.push_back(record.key);
      changed_.NotifyAll();
    }
  }
  if (others_need) return;
  if (draining) {
    HandOver(*std::move(present)).IgnoreError();
  } else if (MoveOf(*present).has_value()) {
    const MutexLock lock(mutex_);
    if (std::ranges::find(moves_, record.key) != moves_.end()) return;
    moves_.push_back(record.key);
    changed_.NotifyAll();
  }
}

absl::Status Cluster::HandOver(MatrixRecord record) {
  std::string next;
  {
    const MutexLock lock(mutex_);
    for (const std::string& node : PlacementLocked(record)) {
      if (node == options_.self.name || record.CopyAt(node) == nullptr) continue;
      next = node;
      break;
    }
  }
  const auto copy = std::ranges::find(record.copies, next, &MatrixCopy::node);
  if (copy == record.copies.end()) return ChangedElsewhere();
  std::rotate(record.copies.begin(), copy, std::next(copy));
  record.MoveToFormer(options_.self.name);
  return Write(record);
}

// What placement names another node for, since that is there.

std::optional<Cluster::Move> Cluster::MoveOf(const MatrixRecord& record) const {
  if (options_.settle.count() <= 0 || !IsMine(record) || !record.previous.empty() ||
      !Problem().empty()) {
    return std::nullopt;
  }
  {
    const MutexLock lock(mutex_);
    const auto now = steady_clock::now();
    if (somebody_gone_ || now - quiet_since_ < options_.settle) return std::nullopt;
    const auto failed = unmoved_.find(record.key);
    if (failed != unmoved_.end() && now - failed->second < options_.settle) return std::nullopt;
  }
  // Its tenant's buffers stay, and are multiplied with what is on their node alone.
  if (!engine_.dense().List(record.key.first, "").empty()) return std::nullopt;
  const size_t wanted = WantedCopies(record);
  const MutexLock lock(mutex_);
  // None of them is draining or gone, and none is missing: that is seen to before.
  const size_t lasting = LastingCopiesLocked(record);
  if (lasting < wanted || lasting != record.copies.size()) return std::nullopt;
  std::vector<std::string> nodes;
  if (record.placed_by.empty()) {
    for (const MatrixCopy& copy : record.copies) nodes.push_back(copy.node);
  } else {
    nodes = PlacementLocked(record);
  }
  nodes.resize(std::min(nodes.size(), wanted));
  for (const std::string& node : nodes) {
    if (record.CopyAt(node) != nullptr) continue;
    const auto known = known_.nodes.find(node);
    if (known == known_.nodes.end() || known->second.free_memory_bytes < BytesOf(record)) {
      return std::nullopt;
    }
    return Move{.to = node, .from = {}};
  }
  for (const MatrixCopy& copy : record.copies) {
    if (std::ranges::find(nodes, copy.node) == nodes.end())
      return Move{.to = {}, .from = copy.node};
  }
  return std::nullopt;
}

absl::Status Cluster::MoveBusy(const engine::NameKey& key) {
  bool made = false;
  for (int step = 0; step <= kMostReplicas; ++step) {
    std::optional<MatrixRecord> record = RecordOf(key);
    // Nodes may have come or gone meanwhile: what there is too much of is dropped another time.
    const std::optional<Move> move = record.has_value() ? MoveOf(*record) : std::nullopt;
    if (!move.has_value()) return absl::OkStatus();
    if (!move->to.empty()) {
      absl::Status copied = Replicate(key, /*background=*/true, move->to);
      if (!copied.ok()) {
        // Not at once again.
        const MutexLock lock(mutex_);
        unmoved_[key] = steady_clock::now();
        return copied;
      }
      record = RecordOf(key);
      // It may have gone or be drained by now.
      if (!record.has_value() || record->CopyAt(move->to) == nullptr) return absl::OkStatus();
      made = true;
      const MutexLock lock(mutex_);
      ++counts_.moves;
      continue;
    }
    absl::Status dropped;
    if (move->from == options_.self.name) {
      dropped = HandOver(*record);
    } else {
      record->MoveToFormer(move->from);
      dropped = Write(*record);
    }
    if (!dropped.ok() || !made) return dropped;
    Log(LogLevel::kInfo, "moved a matrix to the node that placement names",
        {{"matrix", Shown(key)}, {"from", move->from}});
    return absl::OkStatus();
  }
  return absl::OkStatus();
}

void Cluster::SettleDeleted(MatrixRecord record) {
  if (!IsFormer(record, options_.self.name)) return;
  // The owner of the old name is who renames it; another's rename is nothing to others.
  bool renames = false;
  if (!record.renamed_from.empty()) {
    const engine::NameKey from(record.key.first, record.renamed_from);
    const Busy busy(*this, from, Busy::IfFree());
    if (!busy.held()) return LookSoon();
    const engine::MatrixLease made = engine_.catalog().Look(record.key.first, record.key.second);
    const std::optional<MatrixRecord> old = RecordOf(from);
    renames = old.has_value() && IsMine(*old);
    // Where its disk has the new name alone, it goes on from there.
    if (renames && made != nullptr && engine_.catalog().Look(from.first, from.second) == nullptr) {
      if (PublishRenamed(from, record.key, *made).ok()) {
        Log(LogLevel::kInfo, "a matrix was being renamed: it has its new name",
            {{"matrix", Shown(record.key)}});
      }
      return LookSoon();
    }
  }
  DropHere(record.key);
  record = RecordOf(record.key).value_or(MatrixRecord());
  if (!record.deleted || !IsFormer(record, options_.self.name)) return;
  if (engine_.catalog().Look(record.key.first, record.key.second) != nullptr) return;
  std::erase(record.former, options_.self.name);
  if (renames) record.renamed_from.clear();
  (record.former.empty() ? Erase(record) : Write(record)).IgnoreError();
}

void Cluster::DropHere(const engine::NameKey& key) {
  if (engine_.catalog().Look(key.first, key.second) == nullptr) return;
  // What is known here may be old.
  if (!Reload(key).ok() || !IsDropped(key)) return;
  {
    const MutexLock lock(mutex_);
    wishes_.erase(key);
  }
  const absl::Status status = engine_.catalog().Delete(key.first, key.second);
  DropBuffersOf(key);
  Log(LogLevel::kInfo, "dropped a copy that is not current any more",
      {{"matrix", Shown(key)}, {"status", std::string(status.message())}});
  on_changed_(key.first, key.second);
}

absl::Status Cluster::TakeShares(const engine::NameKey& key,
                                 const std::vector<engine::Share>& shares) {
  engine::Catalog& catalog = engine_.catalog();
  const engine::MatrixLease here = catalog.Look(key.first, key.second);
  if (here == nullptr) return absl::OkStatus();
  const auto has = [](const std::vector<engine::Share>& in, const engine::Share& share) {
    return std::ranges::any_of(in, [&](const engine::Share& other) {
      return other.with == share.with && other.right == share.right;
    });
  };
  const std::vector<engine::Share> present = catalog.SharesOf(*here);
  for (const engine::Share& share : present) {
    if (has(shares, share)) continue;
    absl::Status taken = catalog.Unshare(key.first, key.second, share.with);
    if (!taken.ok()) return taken;
    on_changed_(key.first, key.second);
  }
  for (const engine::Share& share : shares) {
    if (has(present, share)) continue;
    if (absl::Status given = catalog.Share(key.first, key.second, share); !given.ok()) return given;
  }
  return absl::OkStatus();
}

void Cluster::TakeSharesOfNew(const engine::NameKey& key) {
  const auto owned = [&] {
    const MutexLock lock(mutex_);
    return owned_.contains(key);
  };
  if (owned()) return;
  const Busy busy(*this, key, Busy::IfFree());
  // Whoever holds it takes them, or changes them.
  if (!busy.held() || owned()) return;
  const std::optional<MatrixRecord> record = RecordOf(key);
  if (!record.has_value() || !IsMine(*record) || !IsCurrentHere(*record)) return;
  TakeShares(key, SharesOf(*record)).IgnoreError();  // it is tried again
}

void Cluster::CopyInBackground(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    engine::NameKey key;
    bool moves = false;
    {
      const MutexLock lock(mutex_);
      if (incomplete_.empty() && moves_.empty()) {
        changed_.WaitFor(mutex_, std::chrono::seconds(1));
        continue;
      }
      moves = incomplete_.empty();
      key = moves ? moves_.front() : incomplete_.front();
    }
    absl::Status status;
    {
      const Busy busy(*this, key);
      if (!busy.held()) return;
      status = moves ? MoveBusy(key) : Replicate(key, /*background=*/true);
    }
    {
      const MutexLock lock(mutex_);
      std::erase(moves ? moves_ : incomplete_, key);
    }
    // Who failed is asked again later. One that was deleted, or is another's by now, is nobody's
    // failure.
    if (!status.ok() && !absl::IsAborted(status) && !Sleep(stop, std::chrono::seconds(1))) return;
    LookSoon();
  }
}

}  // namespace sparsed::server
