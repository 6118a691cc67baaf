#include "server/cluster/cluster.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <random>
#include <utility>

#include "engine/retry.h"
#include "server/cluster/placement.h"
#include "server/cluster/shards.h"
#include "server/log/log.h"
#include "sparsed/v1/types.pb.h"

namespace sparsed::server {
namespace {

using std::chrono::steady_clock;

/// Of a node's lease: so long others wait before they take its matrices.
constexpr int64_t kLeaseSeconds = 3;
constexpr std::chrono::milliseconds kBeat(800);
/// Without an answer for so long the lease may have ended: others may own what was here.
constexpr std::chrono::duration<double> kTrustedSilence(2.6);
/// What is known of the directory is older only where it does not answer: else it is read again.
constexpr std::chrono::duration<double> kTrustedView(3);
/// After which to ask again for what is on no node that is there.
constexpr std::chrono::seconds kAwayPause(2);
/// More are never on their way.
constexpr size_t kMostBeats = 64;

std::string KeyOfNode(std::string_view name) { return fmt::format("{}{}", kNodesPrefix, name); }

/// The tenant and the name of "TENANT~NAME".
std::optional<engine::NameKey> NameKeyOf(std::string_view key) {
  const size_t mark = key.find(engine::kOwnerMark);
  if (mark == std::string_view::npos) return std::nullopt;
  return engine::NameKey(key.substr(0, mark), key.substr(mark + 1));
}

std::string NewRun() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

}  // namespace

Cluster::Cluster(Options options, std::unique_ptr<Directory> directory, engine::Engine& engine,
                 std::function<void(const std::string&, const std::string&)> on_changed)
    : options_(std::move(options)),
      directory_(std::move(directory)),
      engine_(engine),
      on_changed_(std::move(on_changed)),
      peers_(std::make_shared<Peers>(options_.peers)),
      transport_(GrpcTransport(peers_)),
      viewed_(steady_clock::now()),
      quiet_since_(viewed_),
      answered_(steady_clock::now()) {}

absl::StatusOr<std::unique_ptr<Cluster>> Cluster::Join(
    Options options, std::unique_ptr<Directory> directory, engine::Engine& engine,
    std::function<void(const std::string&, const std::string&)> on_changed) {
  options.self.run = NewRun();
  std::unique_ptr<Cluster> cluster(
      new Cluster(std::move(options), std::move(directory), engine, std::move(on_changed)));
  if (absl::Status status = cluster->Register(/*first=*/true); !status.ok()) return status;
  if (absl::Status status = cluster->Load(); !status.ok()) return status;
  Cluster* const raw = cluster.get();
  const auto run = [raw](void (Cluster::*work)(const std::stop_token&)) {
    raw->threads_.emplace_back([raw, work](const std::stop_token& stop) { (raw->*work)(stop); });
  };
  run(&Cluster::KeepLease);
  run(&Cluster::Follow);
  run(&Cluster::Settle);
  run(&Cluster::CopyInBackground);
  return cluster;
}

Cluster::~Cluster() { Leave(); }

void Cluster::Leave() {
  if (stopping_.exchange(true)) return;
  peers_->Cancel();
  for (std::jthread& thread : threads_) thread.request_stop();
  {
    const MutexLock lock(mutex_);
    changed_.NotifyAll();
  }
  threads_.clear();
  int64_t lease = 0;
  {
    const MutexLock lock(mutex_);
    lease = lease_;
  }
  if (lease != 0) directory_->Revoke(lease).IgnoreError();
}

// The node.

NodeRecord Cluster::Self() const {
  NodeRecord self = options_.self;
  self.free_memory_bytes = self.memory_bytes - engine_.budget().used();
  return self;
}

absl::Status Cluster::Register(bool first) {
  const std::string key = KeyOfNode(options_.self.name);
  const auto present = directory_->Get(key);
  if (!present.ok()) return present.status();
  int64_t revision = 0;
  for (const Directory::Entry& entry : present->entries) {
    revision = entry.revision;
    const auto record = ParseNodeRecord(entry.value);
    if (!record.ok() || record->run == options_.self.run) continue;
    // One at the same address is this one's last run: its socket is this one's now.
    if (first && record->address == options_.self.address) continue;
    return absl::AlreadyExistsError(fmt::format("another node at {} is called {} already (--node)",
                                                record->address, options_.self.name));
  }
  // What such a node has on its disk may be old, and nothing says so any more.
  const std::string forgotten = fmt::format("{}{}", kForgottenPrefix, options_.self.name);
  const auto mark = directory_->Get(forgotten);
  if (!mark.ok()) return mark.status();
  const bool was_forgotten = !mark->entries.empty();
  if (was_forgotten && !engine_.catalog().All().empty()) {
    return absl::FailedPreconditionError(fmt::format(
        "the cluster was told to forget the node {}, and what its data directory has may be old: "
        "start it with an empty one, or with another name (--node)",
        options_.self.name));
  }
  const absl::StatusOr<int64_t> lease = directory_->Grant(kLeaseSeconds);
  if (!lease.ok()) return lease.status();
  // Of two servers of that name that start at once, one is refused; nor is it forgotten meanwhile.
  const auto applied = directory_->Apply(
      {{.key = key, .value = ToJson(Self()), .lease = *lease, .if_revision = revision},
       {.key = forgotten,
        .value = {},
        .if_revision = was_forgotten ? mark->entries.front().revision : 0}});
  if (!applied.ok()) {
    directory_->Revoke(*lease).IgnoreError();
    return applied.status();
  }
  const MutexLock lock(mutex_);
  lease_ = *lease;
  self_revision_ = *applied;
  answered_ = steady_clock::now();
  // What is here is held against the records again: others may have changed it.
  if (!expelled_.empty()) owned_.clear();
  expelled_.clear();
  if (!first) {
    Log(LogLevel::kWarn, "registered in the cluster again: the lease had ended",
        {{"node", options_.self.name}});
  }
  return absl::OkStatus();
}

void Cluster::KeepLease(const std::stop_token& stop) {
  while (Sleep(stop, kBeat)) {
    int64_t lease = 0;
    {
      const MutexLock lock(mutex_);
      lease = lease_;
    }
    absl::Status status = directory_->KeepAlive(lease);
    if (status.ok()) status = Beat();
    // Its lease has ended, or another server is in its place.
    if (absl::IsNotFound(status) || absl::IsAborted(status)) status = Register(/*first=*/false);
    if (!absl::IsFailedPrecondition(status) && !absl::IsAlreadyExists(status)) {
      Note(status);
      continue;
    }
    const MutexLock lock(mutex_);
    answered_ = steady_clock::now();
    if (expelled_.empty()) {
      Log(LogLevel::kError, "this node is no node of the cluster any more, and serves nothing",
          {{"message", std::string(status.message())}});
    }
    expelled_ = std::string(status.message());
  }
}

absl::Status Cluster::Beat() {
  int64_t lease = 0, revision = 0;
  {
    const MutexLock lock(mutex_);
    lease = lease_;
    revision = self_revision_;
  }
  const auto asked = steady_clock::now();
  const auto applied = directory_->Apply({{.key = KeyOfNode(options_.self.name),
                                           .value = ToJson(Self()),
                                           .lease = lease,
                                           .if_revision = revision}});
  if (!applied.ok()) return applied.status();
  const MutexLock lock(mutex_);
  self_revision_ = *applied;
  SawLocked(*applied);
  if (next_revision_ > *applied) {
    viewed_ = std::max(viewed_, asked);
  } else if (beats_.size() < kMostBeats) {
    beats_.push_back({*applied, asked});
  }
  const std::chrono::duration<double> age = steady_clock::now() - viewed_;
  if (age < kTrustedView || watch_.stop_requested()) return absl::OkStatus();
  Log(LogLevel::kWarn, "the watch of the directory says nothing: all is read again",
      {{"seconds", age.count()}});
  watch_.request_stop();
  return absl::OkStatus();
}

void Cluster::Note(const absl::Status& status) {
  const MutexLock lock(mutex_);
  const bool was_silent = IsSilentLocked();
  if (status.ok() || absl::IsAborted(status)) {
    answered_ = steady_clock::now();
    if (was_silent) Log(LogLevel::kInfo, "the directory answers again", {});
    return;
  }
  if (counts_.directory_errors++ == 0 || !was_silent) {
    Log(LogLevel::kWarn, "the directory does not answer",
        {{"message", std::string(status.message())}});
  }
}

bool Cluster::IsSilentLocked() const { return steady_clock::now() - answered_ > kTrustedSilence; }

std::string Cluster::Problem() const {
  const MutexLock lock(mutex_);
  if (!expelled_.empty()) return expelled_;
  const std::chrono::duration<double> silence = steady_clock::now() - answered_;
  if (silence < kTrustedSilence) {
    const std::chrono::duration<double> age = steady_clock::now() - viewed_;
    if (age < 2 * kTrustedView) return {};
    return fmt::format(
        "what this node knows of etcd is {:.0f} s old: products go on, and changes are refused "
        "until it has heard of it again",
        age.count());
  }
  return fmt::format(
      "etcd has not answered for {:.0f} s: products go on, and changes are refused until it does",
      silence.count());
}

void Cluster::Follow(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    int64_t revision = 0;
    std::stop_source watch;
    {
      const MutexLock lock(mutex_);
      revision = next_revision_;
      watch_ = watch;
    }
    const std::stop_callback on_stop(stop, [&watch] { watch.request_stop(); });
    const absl::Status status = directory_->Watch(
        std::string(kDirectoryPrefix), revision,
        [this](const std::vector<Directory::Event>& events) {
          const MutexLock lock(mutex_);
          for (const Directory::Event& event : events) {
            TakeLocked(event);
            next_revision_ = std::max(next_revision_, event.entry.revision + 1);
            SawLocked(event.entry.revision);
          }
          while (!beats_.empty() && beats_.front().revision < next_revision_) {
            viewed_ = std::max(viewed_, beats_.front().asked);
            beats_.pop_front();
          }
          changed_.NotifyAll();
        },
        watch.get_token());
    if (stop.stop_requested()) return;
    if (!watch.stop_requested()) Note(status);
    if (!Sleep(stop, std::chrono::milliseconds(300))) return;
    // What was missed; where the directory is away, the watch goes on from where it was.
    Load().IgnoreError();
  }
}

absl::Status Cluster::Load() {
  const auto asked = steady_clock::now();
  int64_t known_to_have = 0;
  {
    const MutexLock lock(mutex_);
    known_to_have = highest_revision_;
  }
  const auto contents = directory_->Read(std::string(kDirectoryPrefix));
  if (!contents.ok()) return contents.status();
  const MutexLock lock(mutex_);
  const auto quiet_since = quiet_since_;
  Known before = std::exchange(known_, {});
  for (const Directory::Entry& entry : contents->entries) TakeLocked({entry, false});
  // To read it all once more is no change.
  const auto same_run = [](const auto& a, const auto& b) {
    return a.first == b.first && a.second.run == b.second.run;
  };
  if (known_.draining == before.draining &&
      std::ranges::equal(known_.nodes, before.nodes, same_run)) {
    quiet_since_ = quiet_since;
  }
  // What was written here since is newer.
  // A directory that is older than what it was is another one, or from a backup: what is not in it
  // was not deleted.
  const bool older = contents->revision < known_to_have;
  for (const auto& [key, record] : before.matrices) {
    if (!older) RetireLocked(record);
    if (record.revision > contents->revision) known_.matrices.Set(record);
  }
  next_revision_ = contents->revision + 1;
  SawLocked(contents->revision);
  viewed_ = std::max(viewed_, asked);
  changed_.NotifyAll();
  return absl::OkStatus();
}

absl::Status Cluster::Reload(const engine::NameKey& key) {
  const std::string of = DirectoryKey(key);
  const auto contents = directory_->Get(of);
  if (!contents.ok()) return contents.status();
  const MutexLock lock(mutex_);
  SawLocked(contents->revision);
  if (!contents->entries.empty()) {
    TakeLocked({contents->entries.front(), false});
  } else if (const auto known = known_.matrices.find(key);
             known == known_.matrices.end() || known->second.revision <= contents->revision) {
    // What the watch has told since is newer than this answer.
    if (known != known_.matrices.end()) RetireLocked(known->second);
    known_.matrices.Erase(key);
    owned_.erase(key);
    expired_.erase(key);
  }
  return absl::OkStatus();
}

void Cluster::TakeLocked(const Directory::Event& event) {
  const std::string_view key = event.entry.key;
  if (key.starts_with(kNodesPrefix)) {
    const std::string name(key.substr(kNodesPrefix.size()));
    // They write how much memory is free all the time.
    const auto known = known_.nodes.find(name);
    auto record = ParseNodeRecord(event.entry.value);
    if (event.deleted || known == known_.nodes.end()) unsettled_ = true;
    // Also one that was started anew.
    if (event.deleted || known == known_.nodes.end() ||
        (record.ok() && known->second.run != record->run)) {
      quiet_since_ = steady_clock::now();
    }
    if (event.deleted || !record.ok()) {
      if (known_.nodes.erase(name) > 0) {
        Log(LogLevel::kWarn, "a node is gone", {{"node", name}});
      }
    } else {
      record->name = name;
      known_.nodes[name] = *std::move(record);
    }
    return;
  }
  unsettled_ = true;
  if (key.starts_with(kDrainPrefix)) {
    quiet_since_ = steady_clock::now();
    const std::string name(key.substr(kDrainPrefix.size()));
    if (event.deleted) {
      known_.draining.erase(name);
    } else {
      known_.draining.insert(name);
    }
  } else if (key.starts_with(kMatricesPrefix)) {
    const auto name = NameKeyOf(key.substr(kMatricesPrefix.size()));
    if (!name.has_value()) return;
    const auto present = known_.matrices.find(*name);
    const bool known = present != known_.matrices.end();
    if (known && present->second.revision >= event.entry.revision) return;
    if (known) RetireLocked(present->second);
    if (event.deleted) {
      known_.matrices.Erase(*name);
      owned_.erase(*name);
      expired_.erase(*name);
      return;
    }
    auto record = ParseMatrixRecord(event.entry.value);
    if (!record.ok() || record->key != *name) {
      Log(LogLevel::kError, "the directory's record of a matrix makes no sense, and is left out",
          {{"key", std::string(key)}});
      return;
    }
    record->revision = event.entry.revision;
    if (!IsMine(*record)) {
      owned_.erase(*name);
      expired_.erase(*name);
    }
    known_.matrices.Set(*std::move(record));
  }
}

bool Cluster::Sleep(const std::stop_token& stop, std::chrono::milliseconds time) {
  const auto end = steady_clock::now() + time;
  while (!stop.stop_requested()) {
    const MutexLock lock(mutex_);
    if (steady_clock::now() >= end) return true;
    // Changes wake it, too.
    changed_.WaitUntil(mutex_, end);
  }
  return false;
}

// Who serves what.

std::vector<std::string> Cluster::PlacementLocked(std::string_view key) const {
  std::vector<PlacementNode> nodes;
  for (const auto& [name, record] : known_.nodes) {
    if (known_.draining.contains(name)) continue;
    nodes.push_back({name, static_cast<double>(std::max<int64_t>(record.memory_bytes, 1))});
  }
  return Place(key, nodes);
}

std::vector<std::string> Cluster::PlacementLocked(const engine::NameKey& key,
                                                  std::string_view pattern_hash) const {
  if (const std::optional<ShardName> shard = ParseShardName(key.second)) {
    std::vector<std::string> nodes =
        PlacementLocked(fmt::format("{}{}{}", key.first, engine::kOwnerMark, shard->upload));
    if (nodes.empty()) return nodes;
    const auto first = static_cast<size_t>(shard->index) % nodes.size();
    std::rotate(nodes.begin(), nodes.begin() + static_cast<std::ptrdiff_t>(first), nodes.end());
    return nodes;
  }
  if (!pattern_hash.empty()) return PlacementLocked(pattern_hash);
  return PlacementLocked(fmt::format("{}{}{}", key.first, engine::kOwnerMark, key.second));
}

std::vector<std::string> Cluster::PlacementLocked(const MatrixRecord& record) const {
  return record.placed_by.empty() ? PlacementLocked(record.key, record.pattern_hash)
                                  : PlacementLocked(record.placed_by);
}

std::string Cluster::PlacedBy(const std::string& tenant, const std::string& name,
                              const std::string& pattern_hash) const {
  if (ParseShardName(name).has_value()) return {};
  if (pattern_hash.empty()) return fmt::format("{}{}{}", tenant, engine::kOwnerMark, name);
  const MutexLock lock(mutex_);
  // Equal patterns that met stay together.
  for (auto it = known_.matrices.lower_bound({tenant, ""});
       it != known_.matrices.end() && it->first.first == tenant; ++it) {
    if (IsMine(it->second) && it->second.pattern_hash == pattern_hash) return it->second.placed_by;
  }
  return pattern_hash;
}

bool Cluster::IsCurrentHere(const MatrixRecord& record) const {
  if (record.deleted || record.in_shards()) return false;
  const bool alone = IsMine(record) && record.copies.size() == 1 && record.previous.empty();
  {
    const MutexLock lock(mutex_);
    if (changing_.contains(record.key)) return false;
    if (alone && owned_.contains(record.key)) {
      // It may be on its way to another name.
      return engine_.catalog().Look(record.key.first, record.key.second) != nullptr;
    }
  }
  const auto& acknowledged = record.acknowledged();
  const auto copy = std::ranges::find(acknowledged, options_.self.name, &MatrixCopy::node);
  if (copy == acknowledged.end()) return false;
  const engine::MatrixLease here = engine_.catalog().Look(record.key.first, record.key.second);
  return here != nullptr && IdentityOf(*here) == copy->identity;
}

absl::Status Cluster::Redirect(std::string_view reference, std::vector<std::string> nodes,
                               uint64_t epoch) {
  v1::Redirect redirect;
  redirect.set_matrix(std::string(reference));
  redirect.set_epoch(epoch);
  {
    const MutexLock lock(mutex_);
    for (const std::string& node : nodes) {
      const auto found = known_.nodes.find(node);
      if (found != known_.nodes.end()) redirect.add_addresses(found->second.address);
    }
    ++counts_.redirects;
  }
  absl::Status status = absl::FailedPreconditionError(fmt::format(
      "\"{}\" is served by another node of the cluster: {} at {}", reference, nodes.front(),
      redirect.addresses_size() > 0 ? redirect.addresses(0) : "nowhere"));
  status.SetPayload(kRedirectUrl, absl::Cord(redirect.SerializeAsString()));
  return status;
}

absl::Status Cluster::Route(std::string_view tenant, std::string_view reference, Need need) {
  // Also that there is no such matrix may be old: it is read before a change is told so.
  if (need == Need::kChange) {
    if (const std::string problem = Problem(); !problem.empty()) {
      return absl::UnavailableError(problem);
    }
  }
  if (need == Need::kRead) {
    const MutexLock lock(mutex_);
    if (!expelled_.empty()) return absl::UnavailableError(expelled_);
    const std::chrono::duration<double> age = steady_clock::now() - viewed_;
    if (options_.staleness.count() > 0 && age > options_.staleness) {
      return absl::UnavailableError(fmt::format(
          "the node {} has not heard of etcd for {:.1f} s, and serves nothing that may be older "
          "than {:.3g} s (--cluster-staleness)",
          options_.self.name, age.count(), options_.staleness.count()));
    }
  }
  const engine::NameKey key = engine::Named(tenant, reference);
  std::optional<MatrixRecord> record = RecordOf(key);
  if (need == Need::kChange && (!record.has_value() || record->deleted)) {
    if (absl::Status known = Reload(key); !known.ok()) return known;
    record = RecordOf(key);
  }
  if (!record.has_value()) return absl::OkStatus();
  const bool is_own = record->key.first == tenant;
  const std::vector<engine::Share> shares =
      is_own ? std::vector<engine::Share>() : SharesOf(*record);
  const bool shared = std::ranges::any_of(shares, [&](const engine::Share& share) {
    return share.with == tenant || share.with == engine::kEverybody;
  });
  if (record->deleted || (!is_own && !shared)) return engine::NoMatrix(reference);
  if (record->in_shards()) return InShardsError(tenant, reference, *record);
  if (need == Need::kRead && IsRetired(record->key)) return engine::NoMatrix(reference);
  if (IsMine(*record)) {
    const MutexLock lock(mutex_);
    if (expired_.contains(record->key)) return engine::NoMatrix(reference);
  }
  const bool is_shard = ParseShardName(key.second).has_value();
  if (const std::string whole = need == Need::kChange ? WholeOf(key) : ""; !whole.empty()) {
    return absl::FailedPreconditionError(
        fmt::format("\"{}\" is a shard of \"{}\", and changes with that alone", reference, whole));
  }
  bool here = need == Need::kRead ? IsCurrentHere(*record) : IsMine(*record);
  // A shard is shared as soon as its matrix is, which no request of its own is made for.
  if (here && is_shard && !is_own) TakeShares(key, shares).IgnoreError();
  if (here && IsMine(*record)) TakeSharesOfNew(key);
  // A copy is shared with others a moment after its owner has shared it.
  if (here && (is_shard || !IsMine(*record)) && !is_own) {
    here = engine_.catalog().Find(tenant, reference).ok();
  }
  if (here) return absl::OkStatus();
  std::vector<std::string> nodes;
  bool changes = false;
  {
    const MutexLock lock(mutex_);
    for (const MatrixCopy& copy : need == Need::kChange ? record->copies : record->acknowledged()) {
      if (copy.node != options_.self.name && IsAliveLocked(copy.node)) nodes.push_back(copy.node);
      if (need == Need::kChange) break;  // its owner alone
    }
    changes = changing_.contains(record->key) || !record->previous.empty();
  }
  if (nodes.empty() && changes && need == Need::kRead) {
    return absl::UnavailableError(fmt::format(
        "\"{}\" is being changed: who has what it was has what it will be already", reference));
  }
  if (nodes.empty() && IsMine(*record)) {
    return absl::UnavailableError(
        fmt::format("the node {} owns \"{}\" and has not got what the cluster knows of it",
                    options_.self.name, reference));
  }
  if (nodes.empty()) {
    // People know no shard by its name.
    const std::string whole = is_shard ? WholeOf(key) : "";
    const std::string what = fmt::format("{}\"{}\"", whole.empty() ? "" : "a shard of ",
                                         whole.empty() ? reference : whole);
    absl::Status away = absl::UnavailableError(
        need == Need::kChange || record->copies.size() == 1
            ? fmt::format("the node {}, which owns {}, is not there", record->owner(), what)
            : fmt::format("no node that has {} is there", what));
    // Others take over within a moment; one that must come back takes longer.
    const auto there = [this](const MatrixCopy& copy) { return IsAlive(copy.node); };
    return std::ranges::any_of(record->copies, there) ||
                   std::ranges::any_of(record->previous, there)
               ? away
               : engine::RetryLater(std::move(away), kAwayPause);
  }
  std::rotate(nodes.begin(), nodes.begin() + static_cast<std::ptrdiff_t>(turn_++ % nodes.size()),
              nodes.end());
  return Redirect(reference, std::move(nodes), record->epoch);
}

absl::Status Cluster::RouteAll(std::string_view tenant,
                               const std::vector<std::string>& references) {
  if (references.size() == 1) return Route(tenant, references.front(), Need::kRead);
  // A node that has them all: of each, who has it.
  std::vector<std::string> common;
  bool first = true, all_here = true;
  uint64_t epoch = 0;
  for (const std::string& reference : references) {
    const absl::Status one = Route(tenant, reference, Need::kRead);
    if (absl::IsNotFound(one) || absl::IsUnavailable(one)) return one;
    all_here = all_here && one.ok();
    const auto record = RecordOf(engine::Named(tenant, reference));
    if (!record.has_value()) return absl::OkStatus();  // the engine says that it is nowhere
    if (record->in_shards()) {
      return absl::FailedPreconditionError(fmt::format(
          "\"{}\" is in shards: such a matrix meets no other one in a product", reference));
    }
    epoch = std::max(epoch, record->epoch);
    std::vector<std::string> have;
    for (const MatrixCopy& copy : record->acknowledged()) {
      if (IsAlive(copy.node)) have.push_back(copy.node);
    }
    if (first) common = have;
    std::erase_if(common, [&](const std::string& node) {
      return std::ranges::find(have, node) == have.end();
    });
    first = false;
  }
  if (all_here) return absl::OkStatus();
  std::erase(common, options_.self.name);
  if (!common.empty()) return Redirect(references.front(), std::move(common), epoch);
  return absl::FailedPreconditionError(fmt::format(
      "no node has all of {}: upload one of them with the other's pattern hash, or copy "
      "it, so that they meet",
      fmt::join(references, ", ")));
}

absl::Status Cluster::RouteUpload(const std::string& tenant, const std::string& name,
                                  const std::string& pattern_hash) {
  if (const std::string problem = Problem(); !problem.empty()) {
    return absl::UnavailableError(problem);
  }
  const engine::NameKey key(tenant, name);
  if (const std::string whole = WholeOf(key); !whole.empty()) {
    return absl::FailedPreconditionError(
        fmt::format("\"{}\" is a shard of \"{}\", and changes with that alone", name, whole));
  }
  std::vector<std::string> nodes;
  uint64_t epoch = 0;
  {
    const MutexLock lock(mutex_);
    const auto found = known_.matrices.find(key);
    if (found != known_.matrices.end() && found->second.in_shards()) {
      return absl::AlreadyExistsError(
          fmt::format("\"{}\" is a matrix in shards: delete it first", name));
    }
    if (found != known_.matrices.end() && !found->second.deleted) {
      epoch = found->second.epoch;
      for (const MatrixCopy& copy : found->second.copies) {
        if (IsAliveLocked(copy.node)) nodes.push_back(copy.node);
      }
      // What is away is not there to be made anew.
      if (nodes.empty()) {
        return absl::UnavailableError(fmt::format("no node that has \"{}\" is there", name));
      }
      // Who takes over will be the owner.
      nodes.resize(1);
    }
    if (nodes.empty() && !pattern_hash.empty() && !ParseShardName(name).has_value()) {
      for (auto it = known_.matrices.lower_bound({tenant, ""});
           it != known_.matrices.end() && it->first.first == tenant; ++it) {
        const MatrixRecord& other = it->second;
        if (other.deleted || other.pattern_hash != pattern_hash) continue;
        if (!StaysLocked(other.owner())) continue;
        nodes = {other.owner()};
        break;
      }
    }
    if (nodes.empty()) nodes = PlacementLocked(key, pattern_hash);
  }
  if (nodes.empty() || nodes.front() == options_.self.name) return absl::OkStatus();
  nodes.resize(1);
  return Redirect(name, std::move(nodes), epoch);
}

bool Cluster::IsDropped(const engine::NameKey& key) const {
  const std::optional<MatrixRecord> record = RecordOf(key);
  const std::string& self = options_.self.name;
  return record.has_value() && (record->deleted || record->CopyAt(self) == nullptr) &&
         record->PreviousAt(self) == nullptr &&
         std::ranges::find(record->former, self) != record->former.end();
}

absl::Status Cluster::CheckFree(const std::string& tenant, const std::string& name) {
  if (ParseShardName(name).has_value()) {
    return absl::InvalidArgumentError(
        fmt::format("\"{}\" is the name of a shard: choose another", name));
  }
  const std::optional<MatrixRecord> record = RecordOf({tenant, name});
  if (!record.has_value() || record->deleted || IsMine(*record)) {
    const MutexLock lock(mutex_);
    engine_.catalog().RaiseVersions(static_cast<uint64_t>(highest_revision_));
    return absl::OkStatus();
  }
  if (record->in_shards()) {
    return absl::AlreadyExistsError(
        fmt::format("\"{}\" is a matrix in shards: delete it first, or choose another name", name));
  }
  return absl::FailedPreconditionError(fmt::format(
      "another node, {}, has a matrix called \"{}\": delete it first, or choose another "
      "name",
      record->owner(), name));
}

// What is known.

std::optional<MatrixRecord> Cluster::RecordOf(const engine::NameKey& key) const {
  const MutexLock lock(mutex_);
  const auto found = known_.matrices.find(key);
  if (found == known_.matrices.end()) return std::nullopt;
  return found->second;
}

std::vector<MatrixRecord> Cluster::Records(const std::optional<std::string>& tenant) const {
  std::vector<MatrixRecord> records;
  const MutexLock lock(mutex_);
  auto it =
      tenant.has_value() ? known_.matrices.lower_bound({*tenant, ""}) : known_.matrices.begin();
  for (; it != known_.matrices.end() && (!tenant.has_value() || it->first.first == *tenant); ++it) {
    if (!it->second.deleted) records.push_back(it->second);
  }
  return records;
}

std::vector<Cluster::Node> Cluster::Nodes() const {
  std::map<std::string, Node> nodes;
  const MutexLock lock(mutex_);
  for (const auto& [name, record] : known_.nodes) {
    nodes[name].record = record;
    nodes[name].alive = true;
  }
  // This one is, and may have heard that its lease has ended where the directory is away.
  if (Node& self = nodes[options_.self.name]; !self.alive && expelled_.empty()) {
    self.record = Self();
    self.alive = true;
  }
  for (const std::string& name : known_.draining) nodes[name].draining = true;
  for (const auto& [key, record] : known_.matrices) {
    // One that is gone is to be seen, and forgotten, for as long as records name it.
    for (const MatrixCopy& copy : record.previous) nodes[copy.node];
    for (const std::string& node : record.former) nodes[node];
    if (record.deleted) continue;
    for (const MatrixCopy& copy : record.copies) {
      Node& node = nodes[copy.node];
      ++(copy.node == record.owner() ? node.matrices : node.copies);
    }
  }
  std::vector<Node> list;
  for (auto& [name, node] : nodes) {
    node.record.name = name;
    list.push_back(std::move(node));
  }
  return list;
}

std::vector<std::string> Cluster::Addresses() const {
  std::vector<std::string> addresses;
  const MutexLock lock(mutex_);
  for (const auto& [name, record] : known_.nodes) addresses.push_back(record.address);
  return addresses;
}

Cluster::Counts Cluster::counts() const {
  const MutexLock lock(mutex_);
  Counts counts = counts_;
  counts.moves_waiting = static_cast<int64_t>(moves_.size());
  counts.row_bytes_received = rows_.received;
  counts.row_bytes_sent = rows_.sent;
  counts.row_bytes_copied = rows_.copied;
  counts.directory_silence = std::chrono::duration<double>(steady_clock::now() - answered_).count();
  counts.view_age = std::chrono::duration<double>(steady_clock::now() - viewed_).count();
  for (const auto& [key, record] : known_.matrices) {
    if (record.in_shards()) ++counts.in_shards;
    if (IsMine(record)) counts.copies_missing += CopiesMissingLocked(record);
  }
  return counts;
}

int Cluster::CopiesMissingLocked(const MatrixRecord& record) const {
  const auto there = std::ranges::count_if(
      record.copies, [this](const MatrixCopy& copy) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return IsAliveLocked(copy.node);
      });
  return std::max(ReplicasOfLocked(record) - static_cast<int>(there), 0);
}

int Cluster::ReplicasOf(const MatrixRecord& record) const {
  if (!record.in_shards()) return ReplicasOfLocked(record);
  // An upload says the same of all of them.
  return ReplicasOf({record.key.first, ToString(ShardName{.upload = record.upload})});
}

int Cluster::ReplicasOf(const engine::NameKey& key) const {
  const std::optional<MatrixRecord> record = RecordOf(key);
  return record.has_value() && !record->deleted ? ReplicasOf(*record) : options_.replicas;
}

int Cluster::CopiesMissing(const engine::NameKey& key) const {
  const MutexLock lock(mutex_);
  const auto found = known_.matrices.find(key);
  if (found == known_.matrices.end() || found->second.deleted || found->second.in_shards()) {
    return 0;
  }
  return CopiesMissingLocked(found->second);
}

absl::StatusOr<int64_t> Cluster::Drain(const std::string& node, bool undo) {
  const std::vector<Node> nodes = Nodes();
  const auto found =
      std::ranges::find_if(nodes, [&](const Node& one) { return one.record.name == node; });
  if (found == nodes.end()) {
    return absl::NotFoundError(fmt::format("there is no node called \"{}\"", node));
  }
  Directory::Change change{.key = fmt::format("{}{}", kDrainPrefix, node),
                           .value = undo ? std::nullopt : std::optional<std::string>("true"),
                           .if_revision = {}};
  const auto applied = directory_->Apply({change});
  Note(applied.status());
  if (!applied.ok()) return applied.status();
  return found->matrices;
}

}  // namespace sparsed::server
