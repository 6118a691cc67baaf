// How a cluster's matrices change: what is written into the directory, and who copies what.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "server/cluster/cluster.h"
#include "server/cluster/placement.h"
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

}  // namespace

/// Holds a matrix while it exists.
class Cluster::Busy {
 public:
  struct IfFree {};
  /// Waits for it.
  Busy(Cluster& cluster, engine::NameKey key) : cluster_(cluster), key_(std::move(key)) {
    const MutexLock lock(cluster_.mutex_);
    while (!cluster_.busy_.insert(key_).second) cluster_.changed_.Wait(cluster_.mutex_);
    held_ = true;
  }
  /// Does not: see held().
  Busy(Cluster& cluster, engine::NameKey key, IfFree) : cluster_(cluster), key_(std::move(key)) {
    const MutexLock lock(cluster_.mutex_);
    held_ = cluster_.busy_.insert(key_).second;
  }
  ~Busy() {
    if (!held_) return;
    const MutexLock lock(cluster_.mutex_);
    cluster_.busy_.erase(key_);
    cluster_.changed_.NotifyAll();
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;
  bool held() const { return held_; }

 private:
  Cluster& cluster_;
  const engine::NameKey key_;
  bool held_ = false;
};

size_t Cluster::WantedCopies() const {
  const MutexLock lock(mutex_);
  size_t able = 0;
  for (const auto& [name, record] : known_.nodes) {
    if (!known_.draining.contains(name)) ++able;
  }
  return std::max<size_t>(1, std::min(static_cast<size_t>(options_.replicas), able));
}

absl::Status Cluster::Write(MatrixRecord& record) {
  ++record.epoch;
  const absl::StatusOr<int64_t> revision = directory_->Apply(
      {{.key = DirectoryKey(record.key), .value = ToJson(record), .if_revision = record.revision}});
  Note(revision.status());
  if (!revision.ok()) return revision.status();
  record.revision = *revision;
  const MutexLock lock(mutex_);
  MatrixRecord& known = known_.matrices[record.key];
  if (known.revision < record.revision) known = record;
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
  const auto known = known_.matrices.find(record.key);
  if (known != known_.matrices.end() && known->second.revision == record.revision) {
    known_.matrices.erase(known);
  }
  return absl::OkStatus();
}

absl::Status Cluster::Publish(const std::string& tenant, const std::string& name) {
  const engine::NameKey key(tenant, name);
  const Busy busy(*this, key);
  if (absl::Status status = PublishBusy(key); !status.ok()) return status;
  return Replicate(key, /*background=*/false);
}

absl::Status Cluster::PublishBusy(const engine::NameKey& key) {
  absl::Status status;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const engine::MatrixLease here = engine_.catalog().Look(key.first, key.second);
    if (here == nullptr) return absl::OkStatus();  // deleted meanwhile, which is told by itself
    const std::string& self = options_.self.name;
    MatrixRecord record = RecordOf(key).value_or(MatrixRecord());
    if (record.revision != 0 && !record.deleted && !IsMine(record) && IsAlive(record.owner())) {
      return absl::AbortedError(
          fmt::format("the node {} has a matrix called \"{}\" by now", record.owner(), key.second));
    }
    const MatrixCopy* const mine = record.CopyAt(self);
    const CopyIdentity identity = IdentityOf(*here);
    std::vector<engine::Share> shares = engine_.catalog().SharesOf(*here);
    const auto same = [](const engine::Share& a, const engine::Share& b) {
      return a.with == b.with && a.right == b.right;
    };
    const bool same_version = !record.deleted && mine != nullptr && mine->identity == identity;
    if (same_version && std::ranges::equal(shares, record.shares, same)) return absl::OkStatus();
    if (!same_version) {
      std::vector<std::string> others;
      for (const MatrixCopy& copy : record.copies) others.push_back(copy.node);
      for (const std::string& other : others) record.MoveToFormer(other);
      record.copies = {{self, identity}};
      // Before they have anything of it: whatever becomes of this node, they drop what they have.
      for (const std::string& node : TargetsFor(here->pattern()->hash())) record.MoveToFormer(node);
      std::erase(record.former, self);
    }
    record.key = key;
    record.deleted = false;
    record.rows = here->pattern()->rows();
    record.cols = here->pattern()->cols();
    record.nnz = here->pattern()->nnz();
    record.type = std::string(Name(here->type()));
    record.pattern_hash = here->pattern()->hash();
    record.shares = std::move(shares);
    status = Write(record);
    if (!absl::IsAborted(status)) return status;
    if (status = Reload(key); !status.ok()) return status;
    status = absl::AbortedError("other nodes change the matrix at the same time");
  }
  return status;
}

std::vector<std::string> Cluster::TargetsFor(std::string_view pattern_hash) const {
  const size_t others = WantedCopies() - 1;
  const MutexLock lock(mutex_);
  std::vector<std::string> nodes = PlacementLocked(pattern_hash);
  std::erase(nodes, options_.self.name);
  nodes.resize(std::min(nodes.size(), others));
  return nodes;
}

absl::Status Cluster::Expired(const std::string& tenant, const std::string& name) {
  const std::optional<MatrixRecord> record = RecordOf({tenant, name});
  // That of a copy says nothing: its owner is asked, too.
  if (!record.has_value() || !IsMine(*record)) return absl::OkStatus();
  return Withdraw(tenant, name);
}

absl::Status Cluster::Withdraw(const std::string& tenant, const std::string& name) {
  const engine::NameKey key(tenant, name);
  const Busy busy(*this, key);
  absl::Status status;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::optional<MatrixRecord> record = RecordOf(key);
    if (!record.has_value() || record->deleted) return absl::OkStatus();
    std::vector<std::string> nodes;
    for (const MatrixCopy& copy : record->copies) nodes.push_back(copy.node);
    for (const std::string& node : nodes) record->MoveToFormer(node);
    std::erase(record->former, options_.self.name);
    record->deleted = true;
    status = record->former.empty() ? Erase(*record) : Write(*record);
    if (!absl::IsAborted(status)) return status;
    if (status = Reload(key); !status.ok()) return status;
    status = absl::AbortedError("other nodes change the matrix at the same time");
  }
  return status;
}

absl::Status Cluster::Replicate(const engine::NameKey& key, bool background) {
  std::set<std::string> failed;
  absl::Status last;
  while (!stopping_) {
    std::optional<MatrixRecord> record = RecordOf(key);
    if (!record.has_value() || !IsMine(*record)) return absl::OkStatus();
    std::string target, address;
    {
      const size_t wanted = WantedCopies();
      const MutexLock lock(mutex_);
      // What a node that is drained has does not count: another is to have it before it goes.
      size_t have = 0;
      for (const MatrixCopy& copy : record->copies) {
        if (IsAliveLocked(copy.node) && !known_.draining.contains(copy.node)) ++have;
      }
      if (have >= wanted) return absl::OkStatus();
      for (const std::string& node : PlacementLocked(record->pattern_hash)) {
        if (record->CopyAt(node) != nullptr || failed.contains(node)) continue;
        target = node;
        address = known_.nodes.at(node).address;
        break;
      }
    }
    if (target.empty()) {
      if (last.ok()) return last;  // there are no more nodes
      return absl::UnavailableError(fmt::format(
          "\"{}\" is kept by {} of {} nodes, and will be copied to others later: {}", key.second,
          record->copies.size(), WantedCopies(), std::string(last.message())));
    }
    if (std::ranges::find(record->former, target) == record->former.end()) {
      record->former.push_back(target);
      if (last = Write(*record); absl::IsAborted(last)) last = Reload(key);
      if (!last.ok()) return last;
      continue;
    }
    v1::CopyHereRequest request;
    request.set_tenant(key.first);
    request.set_name(key.second);
    request.set_from(options_.self.address);
    request.set_pattern_hash(record->pattern_hash);
    if (background) request.set_bytes_per_second(options_.copy_bytes_per_second);
    const auto begun = steady_clock::now();
    const absl::StatusOr<v1::CopyHereReply> reply = peers_.CopyHere(address, request);
    const std::chrono::duration<double> took = steady_clock::now() - begun;
    const bool current =
        reply.ok() && record->copies.front().identity ==
                          CopyIdentity{reply->source_created_unix_ns(), reply->source_version()};
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
        if (!record.has_value() || !IsMine(*record)) return absl::OkStatus();
        std::erase_if(record->copies, [&](const MatrixCopy& copy) { return copy.node == target; });
        std::erase(record->former, target);
        record->copies.push_back({target, {reply->created_unix_ns(), reply->version()}});
        // In the place of one that is gone, if there was one.
        for (const MatrixCopy& copy : std::vector(record->copies)) {
          if (!IsAlive(copy.node)) record->MoveToFormer(copy.node);
        }
        last = Write(*record);
        if (!absl::IsAborted(last)) break;
        if (last = Reload(key); !last.ok()) break;
      }
    }
    if (!last.ok()) {
      failed.insert(target);
      Log(LogLevel::kWarn, "a copy was not made",
          {{"matrix", fmt::format("{}{}{}", key.first, engine::kOwnerMark, key.second)},
           {"node", target},
           {"message", std::string(last.message())}});
    }
  }
  return absl::UnavailableError("the server is shutting down");
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
  {
    const MutexLock lock(mutex_);
    arrived_[key] = steady_clock::now();
  }
  auto reply = peers_.Fetch(request, engine_, options_.threads, stopping_);
  {
    const MutexLock lock(mutex_);
    arrived_[key] = steady_clock::now();
  }
  if (reply.ok()) on_changed_(key.first, key.second);
  return reply;
}

// What has to be done though nobody asks.

void Cluster::LookSoon() {
  const MutexLock lock(mutex_);
  unsettled_ = true;
}

void Cluster::Settle(const std::stop_token& stop) {
  auto looked = steady_clock::time_point();
  while (Sleep(stop, kSettleInterval)) {
    std::vector<MatrixRecord> records;
    {
      const MutexLock lock(mutex_);
      if (!unsettled_ && steady_clock::now() - looked < kLookInterval) continue;
      unsettled_ = false;
      for (const auto& [key, record] : known_.matrices) records.push_back(record);
      std::erase_if(arrived_, [](const auto& arrival) {
        return steady_clock::now() - arrival.second > kRecordPatience;
      });
    }
    looked = steady_clock::now();
    if (!Problem().empty()) continue;
    for (const MatrixRecord& record : records) {
      if (stop.stop_requested()) return;
      SettleMatrix(record);
    }
    // What was here before there was a cluster, and what products made.
    for (const engine::MatrixLease& matrix : engine_.catalog().All()) {
      if (stop.stop_requested()) return;
      engine::NameKey key(matrix->tenant(), matrix->name());
      if (RecordOf(key).has_value()) continue;
      const Busy busy(*this, key, Busy::IfFree());
      bool arrived = false;
      {
        const MutexLock lock(mutex_);
        arrived = arrived_.contains(key);
      }
      if (busy.held() && !arrived && PublishBusy(key).ok()) LookSoon();
    }
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
  // Its owner is gone: the first of the others that is there takes its place.
  if (!IsAlive(record->owner())) {
    const auto next = std::ranges::find_if(
        record->copies, [this](const MatrixCopy& copy) { return IsAlive(copy.node); });
    if (next == record->copies.end() || next->node != self || !IsCurrentHere(*record)) return;
    const std::string gone = record->owner();
    while (record->copies.front().node != self) record->MoveToFormer(std::string(record->owner()));
    if (!Write(*record).ok()) return LookSoon();
    {
      const MutexLock lock(mutex_);
      ++counts_.takeovers;
    }
    Log(LogLevel::kInfo, "took a matrix over",
        {{"matrix",
          fmt::format("{}{}{}", record->key.first, engine::kOwnerMark, record->key.second)},
         {"from", gone}});
    return;
  }
  bool arriving = false;
  {
    const MutexLock lock(mutex_);
    arriving = arrived_.contains(record->key);
  }
  if (record->CopyAt(self) != nullptr && !IsCurrentHere(*record)) {
    // Not what the record says: its owner is to copy it again.
    if (arriving) return;
    record->MoveToFormer(self);
    Write(*record).IgnoreError();
    return;
  }
  if (record->CopyAt(self) != nullptr) {
    TakeShares(*record);
    if (IsSpare(*record)) {
      record->MoveToFormer(self);
      Write(*record).IgnoreError();
    }
    return;
  }
  // Its owner is about to copy it again, perhaps here.
  if (arriving || record->copies.size() < WantedCopies()) return;
  // What never was the cluster's is the operator's to rename or delete.
  if (std::ranges::find(record->former, self) == record->former.end()) return;
  if (engine_.catalog().Look(record->key.first, record->key.second) != nullptr) {
    DropHere(record->key);
  }
  std::erase(record->former, self);
  Write(*record).IgnoreError();
}

bool Cluster::IsSpare(const MatrixRecord& record) const {
  const size_t wanted = WantedCopies();
  const MutexLock lock(mutex_);
  if (!known_.draining.contains(options_.self.name)) return false;
  size_t elsewhere = 0;
  for (const MatrixCopy& copy : record.copies) {
    if (IsAliveLocked(copy.node) && !known_.draining.contains(copy.node)) ++elsewhere;
  }
  return elsewhere >= wanted;
}

void Cluster::SettleMine(MatrixRecord record) {
  const engine::MatrixLease here = engine_.catalog().Look(record.key.first, record.key.second);
  if (here == nullptr) {
    // It expired, or the data directory is another one.
    record.MoveToFormer(options_.self.name);
    std::erase(record.former, options_.self.name);
    const bool elsewhere = std::ranges::any_of(
        record.copies, [this](const MatrixCopy& copy) { return IsAlive(copy.node); });
    if (elsewhere) {
      Write(record).IgnoreError();
    } else {
      for (const MatrixCopy& copy : std::vector(record.copies)) record.MoveToFormer(copy.node);
      record.deleted = true;
      (record.former.empty() ? Erase(record) : Write(record)).IgnoreError();
    }
    return;
  }
  // What was changed here and could not be told.
  if (!PublishBusy(record.key).ok()) return;
  std::optional<MatrixRecord> present = RecordOf(record.key);
  if (!present.has_value() || !IsMine(*present)) return;
  bool draining = false, others_need = false;
  {
    const size_t wanted = WantedCopies();
    const MutexLock lock(mutex_);
    draining = known_.draining.contains(options_.self.name);
    size_t have = 0;
    for (const MatrixCopy& copy : present->copies) {
      if (IsAliveLocked(copy.node) && !known_.draining.contains(copy.node)) ++have;
    }
    bool anywhere = false;
    for (const auto& [name, node] : known_.nodes) {
      anywhere = anywhere || !known_.draining.contains(name);
    }
    others_need = have < wanted && anywhere;
    if (others_need && std::ranges::find(incomplete_, record.key) == incomplete_.end()) {
      incomplete_.push_back(record.key);
      changed_.NotifyAll();
    }
  }
  if (draining && !others_need) HandOver(*std::move(present));
}

void Cluster::HandOver(MatrixRecord record) {
  const auto next = std::ranges::find_if(record.copies, [this](const MatrixCopy& copy) {
    const MutexLock lock(mutex_);
    return IsAliveLocked(copy.node) && !known_.draining.contains(copy.node);
  });
  if (next == record.copies.end()) return;
  std::rotate(record.copies.begin(), next, std::next(next));
  record.MoveToFormer(options_.self.name);
  Write(record).IgnoreError();
}

void Cluster::SettleDeleted(MatrixRecord record) {
  if (std::ranges::find(record.former, options_.self.name) == record.former.end()) return;
  if (engine_.catalog().Look(record.key.first, record.key.second) != nullptr) DropHere(record.key);
  if (engine_.catalog().Look(record.key.first, record.key.second) != nullptr) return;
  std::erase(record.former, options_.self.name);
  (record.former.empty() ? Erase(record) : Write(record)).IgnoreError();
}

void Cluster::DropHere(const engine::NameKey& key) {
  const absl::Status status = engine_.catalog().Delete(key.first, key.second);
  Log(LogLevel::kInfo, "dropped a copy that is not current any more",
      {{"matrix", fmt::format("{}{}{}", key.first, engine::kOwnerMark, key.second)},
       {"status", std::string(status.message())}});
  on_changed_(key.first, key.second);
}

void Cluster::TakeShares(const MatrixRecord& record) {
  const engine::MatrixLease here = engine_.catalog().Look(record.key.first, record.key.second);
  if (here == nullptr) return;
  const auto has = [](const std::vector<engine::Share>& shares, const engine::Share& share) {
    return std::ranges::any_of(shares, [&](const engine::Share& other) {
      return other.with == share.with && other.right == share.right;
    });
  };
  const std::vector<engine::Share> present = engine_.catalog().SharesOf(*here);
  engine::Catalog& catalog = engine_.catalog();
  for (const engine::Share& share : present) {
    if (has(record.shares, share)) continue;
    catalog.Unshare(record.key.first, record.key.second, share.with).IgnoreError();
    on_changed_(record.key.first, record.key.second);
  }
  for (const engine::Share& share : record.shares) {
    if (has(present, share)) continue;
    catalog.Share(record.key.first, record.key.second, share).IgnoreError();
  }
}

void Cluster::CopyInBackground(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    engine::NameKey key;
    {
      const MutexLock lock(mutex_);
      if (incomplete_.empty()) {
        changed_.WaitFor(mutex_, std::chrono::seconds(1));
        continue;
      }
      key = incomplete_.front();
    }
    absl::Status status;
    {
      const Busy busy(*this, key);
      status = Replicate(key, /*background=*/true);
    }
    {
      const MutexLock lock(mutex_);
      std::erase(incomplete_, key);
    }
    // Who failed is asked again later.
    if (!status.ok() && !Sleep(stop, std::chrono::seconds(1))) return;
    LookSoon();
  }
}

}  // namespace sparsed::server
