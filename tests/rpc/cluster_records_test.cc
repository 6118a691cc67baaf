// A node of a cluster whose directory is in memory: what it makes of records that others wrote, or
// that it wrote itself before it was killed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "engine/retry.h"
#include "server/cluster/cluster.h"
#include "tests/rpc/put_zeros.h"
#include "tests/rpc/test_server.h"

namespace sparsed::test {
namespace {

using server::Cluster;
using server::CopyIdentity;
using server::Directory;
using server::IdentityOf;
using server::MatrixRecord;

constexpr char kTenant[] = "default";

/// Keys and revisions as etcd has them; leases never end.
class Memory {
 public:
  absl::StatusOr<Directory::Contents> Get(const std::string& key) const {
    const MutexLock lock(mutex_);
    if (away_) return absl::UnavailableError("away");
    Directory::Contents contents;
    contents.revision = revision_;
    const auto found = entries_.find(key);
    if (found != entries_.end()) contents.entries.push_back(found->second);
    return contents;
  }

  absl::StatusOr<Directory::Contents> Read(const std::string& prefix) const {
    const MutexLock lock(mutex_);
    ++prefixes_read_;
    if (away_) return absl::UnavailableError("away");
    Directory::Contents contents;
    contents.revision = revision_;
    for (const auto& [key, entry] : entries_) {
      if (key.starts_with(prefix)) contents.entries.push_back(entry);
    }
    return contents;
  }

  absl::StatusOr<int64_t> Apply(const std::vector<Directory::Change>& changes) {
    std::function<void()> before;
    {
      const MutexLock lock(mutex_);
      if (std::ranges::find(changes, before_key_, &Directory::Change::key) != changes.end()) {
        before = std::exchange(before_, nullptr);
      }
    }
    if (before) before();
    const MutexLock lock(mutex_);
    if (away_) return absl::UnavailableError("away");
    for (const Directory::Change& change : changes) {
      const auto found = entries_.find(change.key);
      const int64_t present = found == entries_.end() ? 0 : found->second.revision;
      if (change.if_revision.value_or(present) != present) return absl::AbortedError("changed");
    }
    ++revision_;
    for (const Directory::Change& change : changes) {
      Directory::Event event{{change.key, change.value.value_or(""), revision_},
                             !change.value.has_value()};
      if (event.deleted) {
        entries_.erase(change.key);
      } else {
        entries_[change.key] = event.entry;
      }
      events_.push_back(std::move(event));
    }
    return revision_;
  }

  std::vector<Directory::Event> Since(int64_t revision) const {
    const MutexLock lock(mutex_);
    std::vector<Directory::Event> events;
    if (hidden_ || away_) return events;
    for (const Directory::Event& event : events_) {
      if (event.entry.revision >= revision) events.push_back(event);
    }
    return events;
  }

  // What a test writes and reads.

  /// Watches tell nothing more.
  void Hide() {
    const MutexLock lock(mutex_);
    hidden_ = true;
  }
  /// Nothing is answered.
  void GoAway(bool away) {
    const MutexLock lock(mutex_);
    away_ = away;
  }
  int64_t revision() const {
    const MutexLock lock(mutex_);
    return revision_;
  }
  int64_t prefixes_read() const {
    const MutexLock lock(mutex_);
    return prefixes_read_;
  }
  void PutKey(const std::string& key, std::optional<std::string> value) {
    EXPECT_TRUE(Apply({{.key = key, .value = std::move(value), .if_revision = {}}}).ok());
  }
  /// `then` is called once, before the next change that names the key is looked at.
  void BeforeChangeOf(const std::string& key, std::function<void()> then) {
    const MutexLock lock(mutex_);
    before_key_ = key;
    before_ = std::move(then);
  }
  void Put(const MatrixRecord& record) {
    const auto put = Apply({{.key = server::DirectoryKey(record.key),
                             .value = ToJson(record),
                             .if_revision = std::nullopt}});
    EXPECT_TRUE(put.ok());
  }
  void PutNode(const std::string& name, bool alive, int64_t memory_bytes = 1) {
    const server::NodeRecord node = {name, "127.0.0.1:1", {"cpu"}, memory_bytes, memory_bytes};
    const auto put =
        Apply({{.key = fmt::format("{}{}", server::kNodesPrefix, name),
                .value = alive ? std::optional<std::string>(ToJson(node)) : std::nullopt,
                .if_revision = std::nullopt}});
    EXPECT_TRUE(put.ok());
  }
  std::optional<MatrixRecord> Record(const std::string& name) const {
    const MutexLock lock(mutex_);
    const auto found = entries_.find(server::DirectoryKey({kTenant, name}));
    if (found == entries_.end()) return std::nullopt;
    auto record = server::ParseMatrixRecord(found->second.value);
    EXPECT_TRUE(record.ok());
    return *std::move(record);
  }

 private:
  mutable Mutex mutex_;
  mutable int64_t prefixes_read_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string before_key_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> before_ ABSL_GUARDED_BY(mutex_);
  bool hidden_ ABSL_GUARDED_BY(mutex_) = false, away_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t revision_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<std::string, Directory::Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::vector<Directory::Event> events_ ABSL_GUARDED_BY(mutex_);
};

class MemoryDirectory final : public Directory {
 public:
  explicit MemoryDirectory(Memory& memory) : memory_(memory) {}

  absl::StatusOr<Contents> Get(const std::string& key) override { return memory_.Get(key); }
  absl::StatusOr<Contents> Read(const std::string& prefix) override { return memory_.Read(prefix); }
  absl::StatusOr<int64_t> Apply(const std::vector<Change>& changes) override {
    return memory_.Apply(changes);
  }
  absl::Status Watch(const std::string& /*prefix*/, int64_t revision,
                     const std::function<void(const std::vector<Event>&)>& on_events,
                     const std::stop_token& stop) override {
    while (!stop.stop_requested()) {
      const std::vector<Event> events = memory_.Since(revision);
      if (!events.empty()) {
        revision = events.back().entry.revision + 1;
        on_events(events);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return absl::OkStatus();
  }
  absl::StatusOr<int64_t> Grant(int64_t /*seconds*/) override { return 1; }
  absl::Status KeepAlive(int64_t /*lease*/) override { return absl::OkStatus(); }
  absl::Status Revoke(int64_t /*lease*/) override { return absl::OkStatus(); }

 private:
  Memory& memory_;
};

/// Node "a", whose engine is a server's, and nodes that are names alone.
class ClusterRecords : public testing::Test {
 protected:
  engine::MatrixLease Here(const std::string& name) {
    return server_.engine().catalog().Look(kTenant, name);
  }
  /// A matrix that is here, and a record of it that names its nodes' identities.
  MatrixRecord RecordOf(const std::string& name, std::vector<server::MatrixCopy> copies) {
    MatrixRecord record;
    record.key = {kTenant, name};
    record.rows = pattern_.rows;
    record.cols = pattern_.cols;
    record.nnz = pattern_.nnz();
    record.type = "f32";
    record.pattern_hash = "some";
    record.epoch = 5;
    record.copies = std::move(copies);
    return record;
  }
  void Join(int replicas = 2, std::chrono::duration<double> staleness = {}) {
    auto cluster = TryToJoin(replicas, staleness);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
  }
  absl::StatusOr<std::unique_ptr<Cluster>> TryToJoin(int replicas,
                                                     std::chrono::duration<double> staleness) {
    Cluster::Options options;
    options.staleness = staleness;
    options.self.name = "a";
    options.self.address = "127.0.0.1:2";
    options.self.memory_bytes = 1 << 30;
    options.replicas = replicas;
    options.stray_patience = stray_patience_;
    options.settle = settle_;
    return Cluster::Join(std::move(options), std::make_unique<MemoryDirectory>(memory_),
                         server_.engine(), [](const auto&, const auto&) {});
  }
  void TearDown() override { cluster_.reset(); }
  absl::StatusOr<engine::MatrixLease> Made(const std::string& name, uint64_t seed) {
    return cluster_->Change({kTenant, name}, [&]() -> absl::StatusOr<engine::MatrixLease> {
      MustUploadAs(name, seed);
      return Here(name);
    });
  }
  void MustUploadAs(const std::string& name, uint64_t seed) {
    v1::UploadHeader header = HeaderOf(name, pattern_);
    header.set_replace(true);
    EXPECT_TRUE(
        Upload(server_.catalog(), header, pattern_, FloatValues(pattern_.nnz(), seed)).ok());
  }

  /// Parts of a matrix in shards, each of which is pattern_: it is its own columns, too.
  void MakeParts(const std::string& upload, int shards) {
    for (int i = 0; i < shards; ++i) {
      for (const char* part : {"", "/columns"}) {
        const auto made = Made(fmt::format("shards:{}/{}{}", upload, i, part), 1);
        ASSERT_TRUE(made.ok()) << made.status();
      }
    }
  }
  Cluster::Shards ShardsOf(const std::string& upload, int count) const {
    return {.rows = count * pattern_.rows, .cols = pattern_.cols, .upload = upload, .count = count};
  }
  absl::Status MakeSharded(const std::string& name, const Cluster::Shards& shards,
                           bool replace = false) {
    return cluster_->MakeSharded({kTenant, name}, shards, replace).status();
  }

  static constexpr CopyIdentity kOther = {7, 3};
  static constexpr char kUpload[] = "0123456789abcdef";
  std::chrono::milliseconds stray_patience_ = std::chrono::hours(24);
  std::chrono::duration<double> settle_{0};

  const Pattern pattern_ = Uniform(20, 20, 3, 1);
  TestServer server_;
  Memory memory_;
  std::unique_ptr<Cluster> cluster_;
};

TEST_F(ClusterRecords, AnOwnerThatRestartsWithAnOlderVersionGivesWayToAcknowledgedCopies) {
  MustUpload(server_, "g", pattern_);
  // What it had when it was killed is not what its disk has.
  memory_.Put(RecordOf("g", {{"a", kOther}, {"c", kOther}}));
  memory_.PutNode("c", true);
  Join();
  // It is not served here for a moment.
  EXPECT_TRUE(absl::IsFailedPrecondition(cluster_->Route(kTenant, "g", Cluster::Need::kRead)));
  ASSERT_TRUE(Eventually([&] { return memory_.Record("g")->owner() == "c"; }));
  EXPECT_EQ(memory_.Record("g")->CopyAt("c")->identity, kOther);
  EXPECT_EQ(memory_.Record("g")->CopyAt("a"), nullptr);
}

TEST_F(ClusterRecords, AnOwnerThatHasWhatItsRecordSaysGoesOn) {
  MustUpload(server_, "g", pattern_);
  const CopyIdentity identity = IdentityOf(*Here("g"));
  MatrixRecord record = RecordOf("g", {{"a", identity}, {"c", kOther}});
  record.shares = {{"bob", engine::Right::kRead}};
  memory_.Put(record);
  memory_.PutNode("c", true);
  Join();
  EXPECT_TRUE(cluster_->Route(kTenant, "g", Cluster::Need::kRead).ok());
  // The record's shares are the acknowledged ones.
  ASSERT_TRUE(
      Eventually([&] { return server_.engine().catalog().SharesOf(*Here("g")).size() == 1; }));
  EXPECT_EQ(memory_.Record("g")->owner(), "a");
  EXPECT_EQ(memory_.Record("g")->shares.size(), 1U);
}

TEST_F(ClusterRecords, AnOwnerWithAnEmptyDirectoryGivesWayToANodeThatIsAway) {
  memory_.Put(RecordOf("g", {{"a", kOther}, {"c", kOther}}));
  Join();
  ASSERT_TRUE(Eventually([&] { return memory_.Record("g")->owner() == "c"; }));
  const absl::Status away = cluster_->Route(kTenant, "g", Cluster::Need::kRead);
  EXPECT_TRUE(absl::IsUnavailable(away)) << away;
  EXPECT_FALSE(memory_.Record("g")->deleted);
}

TEST_F(ClusterRecords, WhatNobodyElseHasIsKeptInTheDirectory) {
  memory_.Put(RecordOf("g", {{"a", kOther}}));
  Join();
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  ASSERT_TRUE(memory_.Record("g").has_value());
  EXPECT_FALSE(memory_.Record("g")->deleted);
  EXPECT_TRUE(absl::IsUnavailable(cluster_->Route(kTenant, "g", Cluster::Need::kRead)));
  // It is its owner's to delete.
  EXPECT_TRUE(cluster_->Delete({kTenant, "g"}).ok());
  EXPECT_FALSE(memory_.Record("g").has_value());
}

TEST_F(ClusterRecords, WhatExpiredAtItsOwnerIsDeleted) {
  MustUpload(server_, "g", pattern_);
  memory_.Put(RecordOf("g", {{"a", IdentityOf(*Here("g"))}, {"c", kOther}}));
  Join();
  ASSERT_TRUE(Eventually([&] { return cluster_->RecordOf({kTenant, "g"}).has_value(); }));
  ASSERT_TRUE(server_.engine().catalog().Delete(kTenant, "g").ok());
  cluster_->Expired(kTenant, "g");
  ASSERT_TRUE(Eventually([&] { return memory_.Record("g")->deleted; }));
  EXPECT_EQ(memory_.Record("g")->former, std::vector<std::string>{"c"});
}

TEST_F(ClusterRecords, AMatrixIsToHaveAsManyCopiesAsItsUploadSaid) {
  Join(/*replicas=*/1);
  const engine::NameKey g(kTenant, "g"), h(kTenant, "h"), i(kTenant, "i");
  const auto made = [&](const engine::NameKey& key, std::optional<int> replicas, uint64_t seed) {
    return cluster_
        ->Change(key,
                 [&]() -> absl::StatusOr<engine::MatrixLease> {
                   MustUploadAs(key.second, seed);
                   return Here(key.second);
                 },
                 {.replicas = replicas, .placed_by = {}})
        .status();
  };
  ASSERT_TRUE(made(g, 3, 1).ok());
  EXPECT_EQ(memory_.Record("g")->replicas, 3);
  EXPECT_EQ(cluster_->ReplicasOf(g), 3);
  // There are fewer nodes.
  EXPECT_EQ(cluster_->CopiesMissing(g), 2);
  EXPECT_EQ(cluster_->counts().copies_missing, 2);
  EXPECT_EQ(cluster_->InfoOf(*cluster_->RecordOf(g), kTenant).replicas(), 3);
  // What replaces it, says nothing.
  ASSERT_TRUE(made(g, std::nullopt, 2).ok());
  EXPECT_EQ(memory_.Record("g")->replicas, 3);
  ASSERT_TRUE(
      cluster_
          ->Rename(g, h, [&] { return server_.engine().catalog().Rename(kTenant, "g", "h", 1); })
          .ok());
  EXPECT_EQ(memory_.Record("h")->replicas, 3);
  ASSERT_TRUE(
      cluster_
          ->Copy(h, i, [&] { return server_.engine().catalog().Copy(kTenant, "h", "i", false, 1); })
          .ok());
  EXPECT_EQ(memory_.Record("i")->replicas, 3);
  // Another one of that name is another.
  ASSERT_TRUE(cluster_->Delete(i).ok());
  ASSERT_TRUE(made(i, std::nullopt, 3).ok());
  EXPECT_EQ(memory_.Record("i")->replicas, 0);
  EXPECT_EQ(cluster_->ReplicasOf(i), 1);
  cluster_.reset();
  Join(/*replicas=*/1);
  EXPECT_EQ(cluster_->ReplicasOf(h), 3);
  ASSERT_TRUE(made(h, 1, 4).ok());
  EXPECT_EQ(memory_.Record("h")->replicas, 1);
  EXPECT_EQ(cluster_->CopiesMissing(h), 0);
}

TEST_F(ClusterRecords, WhatARecordDoesNotSayIsAsItWas) {
  MatrixRecord record = RecordOf("g", {{"a", kOther}});
  const std::string before = ToJson(record);
  EXPECT_EQ(before.find("replicas"), std::string::npos) << before;
  EXPECT_EQ(before.find("placed_by"), std::string::npos) << before;
  EXPECT_EQ(server::ParseMatrixRecord(before)->replicas, 0);
  EXPECT_EQ(server::ParseMatrixRecord(before)->placed_by, "");
  record.replicas = 3;
  record.placed_by = "default~f";
  EXPECT_EQ(server::ParseMatrixRecord(ToJson(record))->replicas, 3);
  EXPECT_EQ(server::ParseMatrixRecord(ToJson(record))->placed_by, "default~f");
}

TEST_F(ClusterRecords, CopiesThatThereAreTooManyOfAreDroppedOnceNodesStay) {
  MustUpload(server_, "g", pattern_);
  const CopyIdentity identity = IdentityOf(*Here("g"));
  memory_.Put(RecordOf("g", {{"a", identity}, {"c", identity}, {"d", identity}}));
  memory_.PutNode("c", true);
  settle_ = std::chrono::milliseconds(10);
  Join(/*replicas=*/2);
  // Not while one of them is gone: it may have the only other copy soon.
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  EXPECT_EQ(memory_.Record("g")->copies.size(), 3U);
  memory_.PutNode("d", true);
  ASSERT_TRUE(Eventually([&] { return memory_.Record("g")->copies.size() == 2; }));
  EXPECT_EQ(memory_.Record("g")->owner(), "a");
  EXPECT_EQ(memory_.Record("g")->former, std::vector<std::string>{"d"});
  EXPECT_EQ(cluster_->counts().moves, 0);
}

TEST_F(ClusterRecords, AMatrixStaysWithWhomPlacementNames) {
  MustUpload(server_, "g", pattern_);
  MustUpload(server_, "stays", pattern_);
  const CopyIdentity identity = IdentityOf(*Here("g"));
  MatrixRecord record = RecordOf("g", {{"a", identity}, {"c", identity}});
  record.placed_by = "default~g";
  memory_.Put(record);
  // That one was not placed, but made where it is.
  MatrixRecord stays = RecordOf("stays", {{"a", IdentityOf(*Here("stays"))}});
  memory_.Put(stays);
  // One with so much memory is named for everything.
  memory_.PutNode("c", true, int64_t{1} << 62);
  settle_ = std::chrono::milliseconds(10);
  Join(/*replicas=*/1);
  ASSERT_TRUE(Eventually([&] { return memory_.Record("g")->owner() == "c"; }));
  EXPECT_EQ(memory_.Record("g")->copies.size(), 1U);
  // It is dropped here.
  ASSERT_TRUE(Eventually([&] { return Here("g") == nullptr; }));
  EXPECT_EQ(memory_.Record("stays")->owner(), "a");
  EXPECT_EQ(memory_.Record("stays")->former.size(), 0U);
}

TEST_F(ClusterRecords, AChangeThatWaitedWhileItsMatrixMovedIsRedirected) {
  memory_.PutNode("c", true);
  memory_.Put(RecordOf("g", {{"c", kOther}}));
  Join();
  bool called = false;
  const auto change = [&]() -> absl::StatusOr<engine::MatrixLease> {
    called = true;
    return absl::InternalError("it is not this node's");
  };
  const engine::NameKey g(kTenant, "g");
  for (const absl::Status& status :
       {cluster_->Change(g, change).status(), cluster_->Rename(g, {kTenant, "h"}, change).status(),
        cluster_->Copy(g, {kTenant, "h"}, change).status(), cluster_->Delete(g)}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_TRUE(status.GetPayload(server::kRedirectUrl).has_value()) << status;
  }
  EXPECT_FALSE(called);
  EXPECT_FALSE(memory_.Record("h").has_value());
  EXPECT_EQ(memory_.Record("g")->owner(), "c");
}

TEST_F(ClusterRecords, NothingMovesToANodeThatHasNoRoom) {
  MustUpload(server_, "g", pattern_);
  MatrixRecord record = RecordOf("g", {{"a", IdentityOf(*Here("g"))}});
  record.placed_by = "default~g";
  memory_.Put(record);
  const server::NodeRecord full = {"c", "127.0.0.1:1", {"cpu"}, int64_t{1} << 62, 1};
  memory_.PutKey(fmt::format("{}c", server::kNodesPrefix), ToJson(full));
  settle_ = std::chrono::milliseconds(10);
  Join(/*replicas=*/1);
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  EXPECT_EQ(memory_.Record("g")->owner(), "a");
  // It was not asked for a copy.
  EXPECT_EQ(memory_.Record("g")->former.size(), 0U);
  EXPECT_EQ(cluster_->counts().copies_failed, 0);
  memory_.PutNode("c", true, int64_t{1} << 62);
  // There is nobody at its address.
  EXPECT_TRUE(Eventually([&] { return cluster_->counts().copies_failed > 0; }));
  EXPECT_EQ(memory_.Record("g")->owner(), "a");
}

TEST_F(ClusterRecords, WhatHasBuffersBesideItDoesNotMove) {
  MustUpload(server_, "g", pattern_);
  MatrixRecord record = RecordOf("g", {{"a", IdentityOf(*Here("g"))}});
  record.placed_by = "default~g";
  memory_.Put(record);
  {
    grpc::ClientContext context;
    ASSERT_TRUE(PutZeros(server_.buffers(), context, "x").ok());
  }
  // There is nobody at its address.
  memory_.PutNode("c", true, int64_t{1} << 62);
  settle_ = std::chrono::milliseconds(10);
  Join(/*replicas=*/1);
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  EXPECT_EQ(cluster_->counts().copies_failed, 0);
  ASSERT_TRUE(server_.engine().dense().Delete("default", "x").ok());
  EXPECT_TRUE(Eventually([&] { return cluster_->counts().copies_failed > 0; }));
}

TEST_F(ClusterRecords, AMatrixThatCannotMoveHoldsNoOtherUp) {
  for (const char* name : {"g", "h"}) {
    MustUpload(server_, name, pattern_);
    MatrixRecord record = RecordOf(name, {{"a", IdentityOf(*Here(name))}});
    record.placed_by = fmt::format("default~{}", name);
    memory_.Put(record);
  }
  // There is nobody at its address.
  memory_.PutNode("c", true, int64_t{1} << 62);
  settle_ = std::chrono::seconds(2);
  Join(/*replicas=*/1);
  for (const char* name : {"g", "h"}) {
    // It is to drop what it may have got.
    EXPECT_TRUE(Eventually([&] {
      return memory_.Record(name)->former == std::vector<std::string>{"c"};
    })) << name;
    EXPECT_EQ(memory_.Record(name)->owner(), "a");
  }
  EXPECT_TRUE(Eventually([&] { return cluster_->counts().copies_failed > 1; }));
  EXPECT_EQ(cluster_->counts().moves, 0);
}

TEST_F(ClusterRecords, WhoTakesAMatrixOverKeepsItsNumberOfCopies) {
  MustUpload(server_, "g", pattern_);
  const CopyIdentity identity = IdentityOf(*Here("g"));
  MatrixRecord record = RecordOf("g", {{"c", identity}, {"a", identity}});
  record.replicas = 4;
  memory_.Put(record);
  Join();
  ASSERT_TRUE(Eventually([&] { return memory_.Record("g")->owner() == "a"; }));
  EXPECT_EQ(memory_.Record("g")->replicas, 4);
  EXPECT_EQ(cluster_->CopiesMissing({kTenant, "g"}), 3);
}

TEST_F(ClusterRecords, AnUpdateThatIsNotCopiedYetLeavesTheAcknowledgedVersionToOthers) {
  // The owner wrote that it alone has what is new, and is gone.
  MustUpload(server_, "g", pattern_);
  MatrixRecord record = RecordOf("g", {{"b", kOther}});
  record.previous = {{"a", IdentityOf(*Here("g"))}};
  record.former = {"a"};
  record.nnz = 1;
  memory_.Put(record);
  memory_.PutNode("b", true);
  Join();
  // Not before it is gone, and it is not dropped.
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  EXPECT_EQ(memory_.Record("g")->owner(), "b");
  EXPECT_NE(Here("g"), nullptr);
  memory_.PutNode("b", false);
  ASSERT_TRUE(Eventually([&] { return memory_.Record("g")->owner() == "a"; }));
  const MatrixRecord taken = *memory_.Record("g");
  EXPECT_TRUE(taken.previous.empty());
  EXPECT_EQ(taken.former, std::vector<std::string>{"b"});
  EXPECT_EQ(taken.nnz, pattern_.nnz());
  EXPECT_TRUE(cluster_->Route(kTenant, "g", Cluster::Need::kChange).ok());
}

TEST_F(ClusterRecords, AChangeKeepsWhoHasTheAcknowledgedVersionUntilItIsCopied) {
  MustUpload(server_, "g", pattern_);
  memory_.Put(RecordOf("g", {{"a", IdentityOf(*Here("g"))}, {"c", kOther}}));
  memory_.PutNode("c", true);  // and it answers nobody
  Join();
  ASSERT_TRUE(Eventually([&] { return cluster_->Route(kTenant, "g", Cluster::Need::kRead).ok(); }));
  const absl::Status told = Made("g", 2).status();
  EXPECT_TRUE(absl::IsUnavailable(told)) << told;
  const MatrixRecord record = *memory_.Record("g");
  EXPECT_EQ(record.CopyAt("a")->identity, IdentityOf(*Here("g")));
  ASSERT_EQ(record.previous.size(), 1U);
  EXPECT_EQ(record.PreviousAt("c")->identity, kOther);
}

TEST_F(ClusterRecords, ANameWhoseOnlyNodeIsAwayIsNotFree) {
  memory_.Put(RecordOf("g", {{"b", kOther}}));
  Join();
  const absl::Status routed = cluster_->RouteUpload(kTenant, "g", "");
  EXPECT_TRUE(absl::IsUnavailable(routed)) << routed;
  // Nor is it for who did not ask the way.
  EXPECT_TRUE(absl::IsAborted(Made("g", 1).status()));
  EXPECT_EQ(memory_.Record("g")->owner(), "b");
  // A product of several matrices says so, too.
  MustUpload(server_, "h", pattern_);
  EXPECT_TRUE(absl::IsUnavailable(cluster_->RouteAll(kTenant, {"g", "h"})));
}

TEST_F(ClusterRecords, WhoIsSlowerToMakeANameDropsWhatItMade) {
  memory_.PutNode("b", true);
  Join();
  const absl::Status lost = cluster_
                                ->Change({kTenant, "g"},
                                         [&]() -> absl::StatusOr<engine::MatrixLease> {
                                           MustUploadAs("g", 1);
                                           memory_.Put(RecordOf("g", {{"b", kOther}}));
                                           return Here("g");
                                         })
                                .status();
  EXPECT_TRUE(absl::IsAborted(lost)) << lost;
  EXPECT_EQ(Here("g"), nullptr);
  EXPECT_EQ(memory_.Record("g")->owner(), "b");
}

TEST_F(ClusterRecords, AnUploadOfADeletedNameDropsTheOldCopyFirst) {
  MustUpload(server_, "g", pattern_);
  ASSERT_TRUE(server_.engine().catalog().Share(kTenant, "g", {"bob", engine::Right::kRead}).ok());
  MatrixRecord record = RecordOf("g", {});
  record.deleted = true;
  record.former = {"a", "c"};
  Join(1);
  memory_.Put(record);
  ASSERT_TRUE(Eventually([&] { return cluster_->RecordOf({kTenant, "g"}).has_value(); }));
  bool was_there = true;
  const auto made = cluster_->Change({kTenant, "g"}, [&]() -> absl::StatusOr<engine::MatrixLease> {
    was_there = Here("g") != nullptr;
    MustUploadAs("g", 2);
    // Nothing drops it while it is told.
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    return Here("g");
  });
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_FALSE(was_there);
  EXPECT_NE(*made, nullptr);
  EXPECT_EQ(Here("g"), *made);
  EXPECT_TRUE(server_.engine().catalog().SharesOf(*Here("g")).empty());
  EXPECT_EQ(memory_.Record("g")->owner(), "a");
}

TEST_F(ClusterRecords, ACopyIsNotDroppedByAnOldView) {
  MustUpload(server_, "g", pattern_);
  MatrixRecord record = RecordOf("g", {{"b", kOther}});
  record.former = {"a"};
  memory_.Put(record);
  memory_.PutNode("b", true);
  memory_.Hide();
  Join(1);
  // By now this node's copy is current.
  record.former.clear();
  record.copies.push_back({"a", IdentityOf(*Here("g"))});
  memory_.Put(record);
  std::this_thread::sleep_for(std::chrono::milliseconds(800));
  EXPECT_NE(Here("g"), nullptr);
  EXPECT_TRUE(cluster_->Route(kTenant, "g", Cluster::Need::kRead).ok());
}

TEST_F(ClusterRecords, ACopyIsTakenFromItsOwnerAlone) {
  MustUpload(server_, "g", pattern_);
  memory_.Put(RecordOf("g", {{"a", IdentityOf(*Here("g"))}}));
  memory_.Put(RecordOf("h", {{"c", kOther}}));
  Join(1);
  v1::CopyHereRequest request;
  request.set_tenant(kTenant);
  request.set_from("127.0.0.1:1");
  request.set_owner("b");
  for (const char* name : {"g", "h", "unknown"}) {
    request.set_name(name);
    const absl::Status refused = cluster_->CopyHere(request).status();
    EXPECT_TRUE(absl::IsAborted(refused)) << name << ": " << refused;
  }
}

TEST_F(ClusterRecords, ARenameIsOneChangeOfTheDirectory) {
  Join(1);
  ASSERT_TRUE(Made("g", 1).ok());
  const auto rename = [&] { return server_.engine().catalog().Rename(kTenant, "g", "h", 1); };
  const auto renamed = cluster_->Rename({kTenant, "g"}, {kTenant, "h"}, rename);
  ASSERT_TRUE(renamed.ok()) << renamed.status();
  EXPECT_FALSE(memory_.Record("g").has_value());
  EXPECT_EQ(memory_.Record("h")->CopyAt("a")->identity, IdentityOf(**renamed));
  EXPECT_TRUE(cluster_->Route(kTenant, "h", Cluster::Need::kChange).ok());

  // Somebody else has taken the name meanwhile: nothing has happened.
  const auto back = cluster_->Rename({kTenant, "h"}, {kTenant, "g"}, [&] {
    memory_.Put(RecordOf("g", {{"b", kOther}}));
    return server_.engine().catalog().Rename(kTenant, "h", "g", 1);
  });
  EXPECT_TRUE(absl::IsAborted(back.status())) << back.status();
  EXPECT_EQ(Here("g"), nullptr);
  EXPECT_NE(Here("h"), nullptr);
  ASSERT_TRUE(Eventually(
      [&] { return memory_.Record("h")->CopyAt("a")->identity == IdentityOf(*Here("h")); }));
  EXPECT_EQ(memory_.Record("g")->owner(), "b");
}

TEST_F(ClusterRecords, WhatMayBeTakenBackIsReadFromWhoHasTheAcknowledgedVersion) {
  MustUpload(server_, "old", pattern_);
  MustUpload(server_, "new", pattern_);
  // Of a change of another's, this node has what was before; of its own, what is to be.
  MatrixRecord record = RecordOf("old", {{"b", kOther}});
  record.previous = {{"a", IdentityOf(*Here("old"))}};
  memory_.Put(record);
  record = RecordOf("new", {{"a", IdentityOf(*Here("new"))}});
  record.previous = {{"c", kOther}};
  memory_.Put(record);
  memory_.PutNode("b", true);
  memory_.PutNode("c", true);
  Join();
  EXPECT_TRUE(cluster_->Route(kTenant, "old", Cluster::Need::kRead).ok());
  const absl::Status elsewhere = cluster_->Route(kTenant, "new", Cluster::Need::kRead);
  EXPECT_TRUE(absl::IsFailedPrecondition(elsewhere)) << elsewhere;
  EXPECT_TRUE(elsewhere.GetPayload(server::kRedirectUrl).has_value());
  // Nobody's copy of it can take the place of what is here: it is acknowledged.
  memory_.PutNode("b", false);
  memory_.PutNode("c", false);
  ASSERT_TRUE(
      Eventually([&] { return cluster_->Route(kTenant, "new", Cluster::Need::kRead).ok(); }));
  EXPECT_TRUE(memory_.Record("new")->previous.empty());
}

TEST_F(ClusterRecords, WhileItChangesHereOthersServeIt) {
  MustUpload(server_, "g", pattern_);
  memory_.Put(RecordOf("g", {{"a", IdentityOf(*Here("g"))}, {"c", kOther}}));
  memory_.PutNode("c", true);
  Join();
  ASSERT_TRUE(Eventually([&] { return cluster_->Route(kTenant, "g", Cluster::Need::kRead).ok(); }));
  cluster_
      ->Change({kTenant, "g"},
               [&]() -> absl::StatusOr<engine::MatrixLease> {
                 const absl::Status there = cluster_->Route(kTenant, "g", Cluster::Need::kRead);
                 EXPECT_TRUE(there.GetPayload(server::kRedirectUrl).has_value()) << there;
                 return absl::CancelledError("not changed, after all");
               })
      .status()
      .IgnoreError();
  EXPECT_TRUE(cluster_->Route(kTenant, "g", Cluster::Need::kRead).ok());
}

TEST_F(ClusterRecords, VersionsAreAboveAllThatOthersMayHaveUsed) {
  for (int i = 0; i < 50; ++i) memory_.PutNode("b", true);
  Join(1);
  const auto before = static_cast<uint64_t>(memory_.revision());
  const auto first = Made("g", 1);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_GT((*first)->version(), 50U);
  // Somebody deleted it and made it again, of which this node heard nothing yet.
  ASSERT_TRUE(cluster_->Delete({kTenant, "g"}).ok());
  memory_.Hide();
  for (int i = 0; i < 50; ++i) memory_.PutNode("b", true);
  const auto second = Made("g", 2);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_GT((*second)->version(), before + 50);
}

TEST_F(ClusterRecords, AWatchThatSaysNothingIsBegunAnew) {
  memory_.Hide();
  Join(1);
  memory_.PutNode("b", true);
  memory_.Put(RecordOf("g", {{"b", kOther}}));
  ASSERT_TRUE(Eventually([&] { return cluster_->RecordOf({kTenant, "g"}).has_value(); }));
  EXPECT_TRUE(cluster_->Problem().empty());
  EXPECT_GE(cluster_->counts().view_age, 0);
}

TEST_F(ClusterRecords, ReadsAreRefusedByWhoHasHeardNothingForTooLong) {
  MustUpload(server_, "g", pattern_);
  memory_.Put(RecordOf("g", {{"a", IdentityOf(*Here("g"))}}));
  Join(1, std::chrono::duration<double>(2));
  EXPECT_TRUE(cluster_->Route(kTenant, "g", Cluster::Need::kRead).ok());
  memory_.GoAway(true);
  ASSERT_TRUE(Eventually([&] {
    const absl::Status old = cluster_->Route(kTenant, "g", Cluster::Need::kRead);
    return absl::IsUnavailable(old) &&
           old.message().find("--cluster-staleness") != std::string::npos;
  }));
  memory_.GoAway(false);
  EXPECT_TRUE(Eventually([&] { return cluster_->Route(kTenant, "g", Cluster::Need::kRead).ok(); }));
}

TEST_F(ClusterRecords, ARenameThatWasInterruptedIsFinished) {
  // The disk has the new name alone.
  MustUpload(server_, "h", pattern_);
  memory_.Put(RecordOf("g", {{"a", kOther}}));
  MatrixRecord reserved = RecordOf("h", {});
  reserved.deleted = true;
  reserved.renamed_from = "g";
  reserved.former = {"a"};
  memory_.Put(reserved);
  Join(1);
  ASSERT_TRUE(Eventually([&] { return !memory_.Record("g").has_value(); }));
  EXPECT_EQ(memory_.Record("h")->owner(), "a");
  EXPECT_TRUE(memory_.Record("h")->renamed_from.empty());
  EXPECT_TRUE(Eventually([&] { return cluster_->Route(kTenant, "h", Cluster::Need::kRead).ok(); }));
}

TEST_F(ClusterRecords, ARenameThatWasInterruptedIsNoneIfAnotherOwnsTheOldName) {
  MustUpload(server_, "h", pattern_);
  memory_.PutNode("c", true);
  memory_.Put(RecordOf("g", {{"c", kOther}}));
  MatrixRecord reserved = RecordOf("h", {});
  reserved.deleted = true;
  reserved.renamed_from = "g";
  reserved.former = {"a"};
  memory_.Put(reserved);
  Join(1);
  ASSERT_TRUE(Eventually([&] { return !memory_.Record("h").has_value(); }));
  EXPECT_EQ(Here("h"), nullptr);
  EXPECT_EQ(memory_.Record("g")->owner(), "c");
}

TEST_F(ClusterRecords, ANameIsTakenBeforeTheDiskHasIt) {
  Join(1);
  ASSERT_TRUE(Made("g", 1).ok());
  const auto failed = cluster_->Rename(
      {kTenant, "g"}, {kTenant, "h"}, [&]() -> absl::StatusOr<engine::MatrixLease> {
        EXPECT_TRUE(memory_.Record("h")->deleted);
        EXPECT_EQ(memory_.Record("h")->renamed_from, "g");
        EXPECT_TRUE(absl::IsNotFound(cluster_->Route(kTenant, "h", Cluster::Need::kRead)));
        return absl::ResourceExhaustedError("the disk is full");
      });
  EXPECT_TRUE(absl::IsResourceExhausted(failed.status())) << failed.status();
  EXPECT_FALSE(memory_.Record("h").has_value());
  EXPECT_EQ(memory_.Record("g")->owner(), "a");
}

TEST_F(ClusterRecords, ANodeThatIsGoneForGoodIsForgotten) {
  memory_.PutNode("b", true);
  MatrixRecord deleted = RecordOf("deleted", {});
  deleted.deleted = true;
  deleted.former = {"b"};
  memory_.Put(deleted);
  memory_.Put(RecordOf("both", {{"b", kOther}, {"c", kOther}}));
  memory_.Put(RecordOf("alone", {{"b", kOther}}));
  Join(2);
  ASSERT_TRUE(Eventually([&] { return cluster_->RecordOf({kTenant, "alone"}).has_value(); }));
  EXPECT_TRUE(absl::IsFailedPrecondition(cluster_->Forget("b", true).status())) << "it is there";
  EXPECT_TRUE(absl::IsNotFound(cluster_->Forget("nobody", true).status()));
  memory_.PutNode("b", false);
  absl::Status refused;
  ASSERT_TRUE(Eventually([&] {
    refused = cluster_->Forget("b", false).status();
    return refused.message().find("alone") != std::string::npos;
  })) << refused;
  EXPECT_NE(memory_.Record("alone"), std::nullopt);
  const auto forgotten = cluster_->Forget("b", true);
  ASSERT_TRUE(forgotten.ok()) << forgotten.status();
  EXPECT_EQ(forgotten->records, 3);
  EXPECT_EQ(forgotten->lost, 1);
  EXPECT_FALSE(memory_.Record("alone").has_value());
  EXPECT_FALSE(memory_.Record("deleted").has_value());
  EXPECT_EQ(memory_.Record("both")->owner(), "c");
  EXPECT_FALSE(memory_.Record("both")->Knows("b"));
}

TEST_F(ClusterRecords, ANodeThatIsGoneIsListedWhileRecordsNameIt) {
  memory_.PutNode("b", true);
  MatrixRecord deleted = RecordOf("deleted", {});
  deleted.deleted = true;
  deleted.former = {"b"};
  memory_.Put(deleted);
  Join(2);
  const auto b = [&] {
    const std::vector<Cluster::Node> nodes = cluster_->Nodes();
    const auto found = std::ranges::find_if(
        nodes, [](const Cluster::Node& node) { return node.record.name == "b"; });
    return found == nodes.end() ? std::optional<bool>() : std::optional<bool>(found->alive);
  };
  ASSERT_TRUE(Eventually([&] { return b() == true; }));
  memory_.PutNode("b", false);
  EXPECT_TRUE(Eventually([&] { return b() == false; })) << "nobody learns that it is missing";
  ASSERT_TRUE(cluster_->Forget("b", false).ok());
  EXPECT_TRUE(Eventually([&] { return !b().has_value(); }));
}

TEST_F(ClusterRecords, ANodeIsThereForItselfAlsoWhereItsLeaseHasEnded) {
  Join(1);
  memory_.PutNode("a", false);
  // Until it is registered again, and then, too.
  for (int i = 0; i < 300; ++i) {
    const std::vector<Cluster::Node> nodes = cluster_->Nodes();
    ASSERT_EQ(nodes.size(), 1U);
    ASSERT_TRUE(nodes.front().alive) << i;
    ASSERT_EQ(nodes.front().record.address, "127.0.0.1:2");
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

TEST_F(ClusterRecords, NobodyKnowsWhoIsGoneWhileTheDirectoryIsSilent) {
  const MatrixRecord g = RecordOf("g", {{"b", kOther}});
  memory_.Put(g);
  Join(1);
  const auto gone = [&] {
    const v1::MatrixInfo info = cluster_->InfoOf(g, kTenant);
    EXPECT_EQ(info.nodes_size(), 1);
    return info.nodes_gone_size();
  };
  EXPECT_EQ(gone(), 1);
  memory_.GoAway(true);
  EXPECT_TRUE(Eventually([&] { return gone() == 0; }));
  memory_.GoAway(false);
  EXPECT_TRUE(Eventually([&] { return gone() == 1; }));
  memory_.PutNode("b", true);
  EXPECT_TRUE(Eventually([&] { return gone() == 0; }));
}

TEST_F(ClusterRecords, WhatIsOnNoNodeThatIsThereIsToBeAskedForRarely) {
  memory_.PutNode("c", true);
  memory_.Put(RecordOf("g", {{"b", kOther}}));
  memory_.Put(RecordOf("h", {{"b", kOther}, {"c", kOther}}));
  Join(1);
  const absl::Status away = cluster_->Route(kTenant, "g", Cluster::Need::kRead);
  EXPECT_TRUE(absl::IsUnavailable(away)) << away;
  EXPECT_EQ(engine::RetryDelay(away), std::chrono::seconds(2));
  // It will have another owner in a moment.
  const absl::Status soon = cluster_->Route(kTenant, "h", Cluster::Need::kChange);
  EXPECT_TRUE(absl::IsUnavailable(soon)) << soon;
  EXPECT_EQ(engine::RetryDelay(soon), std::nullopt);
}

TEST_F(ClusterRecords, ANodeThatWasForgottenComesBackWithNothingAlone) {
  MustUpload(server_, "g", pattern_);
  ASSERT_TRUE(memory_
                  .Apply({{.key = fmt::format("{}a", server::kForgottenPrefix),
                           .value = "true",
                           .if_revision = {}}})
                  .ok());
  const absl::Status refused = TryToJoin(1, {}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  ASSERT_TRUE(server_.engine().catalog().Delete(kTenant, "g").ok());
  EXPECT_TRUE(TryToJoin(1, {}).ok());
  // Once it is there again, it is a node like others.
  MustUpload(server_, "g", pattern_);
  EXPECT_TRUE(TryToJoin(1, {}).ok());
}

TEST_F(ClusterRecords, CopiesThatAreMissingAreCounted) {
  Join(2);
  ASSERT_TRUE(Made("g", 1).ok()) << "there is no other node";
  EXPECT_EQ(cluster_->CopiesMissing({kTenant, "g"}), 1);
  EXPECT_EQ(cluster_->CopiesMissing({kTenant, "unknown"}), 0);
}

TEST_F(ClusterRecords, ADeleteThatIsInterruptedIsNotTakenBack) {
  Join(1);
  ASSERT_TRUE(Made("g", 1).ok());
  ASSERT_TRUE(cluster_->Delete({kTenant, "g"}).ok());
  // While the disk had it, the record said that this node is to drop it.
  const std::vector<Directory::Event> events = memory_.Since(0);
  EXPECT_TRUE(std::ranges::any_of(events, [](const Directory::Event& event) {
    const auto record = server::ParseMatrixRecord(event.entry.value);
    return record.ok() && record->deleted && record->epoch > 2 && record->Knows("a");
  }));
  EXPECT_TRUE(Eventually([&] { return !memory_.Record("g").has_value(); }));
  EXPECT_EQ(Here("g"), nullptr);
}

TEST_F(ClusterRecords, ACopyThatCameBeforeItsOwnerCouldSaySoTakesOverAfterARestartToo) {
  MustUpload(server_, "g", pattern_);
  MatrixRecord record = RecordOf("g", {{"b", IdentityOf(*Here("g"))}});
  record.previous = {{"a", kOther}};
  memory_.Put(record);
  Join();
  ASSERT_TRUE(Eventually([&] { return memory_.Record("g")->owner() == "a"; }));
  EXPECT_EQ(memory_.Record("g")->CopyAt("a")->identity, IdentityOf(*Here("g")));
}

TEST_F(ClusterRecords, AChangeThatReachedACopyAndWasNotToldGoesOnWhereItsOwnerIsLost) {
  MustUpload(server_, "g", pattern_);
  MustUploadAs("g", 2);
  const CopyIdentity here = IdentityOf(*Here("g"));
  ASSERT_GT(here.version, 1U);
  // This node had the acknowledged version; its owner has made two more, and the first came here.
  MatrixRecord record = RecordOf("g", {{"b", {7, here.version + 1}}});
  record.previous = {{"a", {7, here.version - 1}}};
  record.former = {"a"};
  memory_.Put(record);
  Join();
  ASSERT_TRUE(Eventually([&] { return memory_.Record("g")->owner() == "a"; }));
  EXPECT_EQ(memory_.Record("g")->CopyAt("a")->identity, here);
  EXPECT_EQ(memory_.Record("g")->former, std::vector<std::string>{"b"});
  EXPECT_EQ(IdentityOf(*Here("g")), here);
  EXPECT_TRUE(Eventually([&] { return cluster_->Route(kTenant, "g", Cluster::Need::kRead).ok(); }));
}

TEST_F(ClusterRecords, WhatIsOlderThanTheAcknowledgedVersionDoesNotTakeOver) {
  MustUpload(server_, "g", pattern_);
  const CopyIdentity here = IdentityOf(*Here("g"));
  MatrixRecord record = RecordOf("g", {{"b", {7, here.version + 2}}});
  record.previous = {{"a", {7, here.version + 1}}};
  record.former = {"a"};
  memory_.Put(record);
  Join();
  ASSERT_TRUE(Eventually([&] { return memory_.Record("g")->previous.empty(); }));
  EXPECT_EQ(memory_.Record("g")->owner(), "b");
}

TEST_F(ClusterRecords, AnOwnerDoesNotGiveWhatIsNewerToNodesThatAreAway) {
  MustUpload(server_, "g", pattern_);
  MustUploadAs("g", 2);
  const CopyIdentity here = IdentityOf(*Here("g"));
  const CopyIdentity before = {7, here.version - 1};
  memory_.Put(RecordOf("g", {{"a", before}, {"c", before}}));
  Join();
  ASSERT_TRUE(Eventually([&] {
    const auto record = memory_.Record("g");
    return record->CopyAt("a") != nullptr && record->CopyAt("a")->identity == here;
  }));
  EXPECT_EQ(memory_.Record("g")->owner(), "a");
  EXPECT_EQ(IdentityOf(*Here("g")), here);
  EXPECT_TRUE(Eventually([&] { return cluster_->Route(kTenant, "g", Cluster::Need::kRead).ok(); }));
}

TEST_F(ClusterRecords, ANodeThatComesBackAsItIsForgottenIsNot) {
  memory_.PutNode("c", true);
  memory_.Put(RecordOf("g", {{"c", kOther}, {"b", kOther}}));
  Join();
  ASSERT_TRUE(Eventually([&] { return cluster_->RecordOf({kTenant, "g"}).has_value(); }));
  const std::string mark = fmt::format("{}b", server::kForgottenPrefix);
  memory_.BeforeChangeOf(mark, [&] { memory_.PutNode("b", true); });
  const absl::Status refused = cluster_->Forget("b", true).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_TRUE(memory_.Get(mark)->entries.empty());
  EXPECT_TRUE(memory_.Record("g")->Knows("b"));
}

TEST_F(ClusterRecords, ANodeThatIsForgottenAsItComesBackDoesNot) {
  MustUpload(server_, "g", pattern_);
  // Between its look for a mark and its registration.
  memory_.BeforeChangeOf(fmt::format("{}a", server::kNodesPrefix), [&] {
    memory_.PutKey(fmt::format("{}a", server::kForgottenPrefix), "true");
  });
  EXPECT_FALSE(TryToJoin(1, {}).ok());
  EXPECT_TRUE(memory_.Get(fmt::format("{}a", server::kNodesPrefix))->entries.empty());
}

TEST_F(ClusterRecords, WhoIsForgottenWhileItRunsServesNothing) {
  Join(1);
  ASSERT_TRUE(Made("g", 1).ok());
  EXPECT_TRUE(cluster_->Route(kTenant, "g", Cluster::Need::kRead).ok());
  memory_.PutKey(fmt::format("{}a", server::kForgottenPrefix), "true");
  memory_.PutNode("a", false);
  memory_.PutKey(server::DirectoryKey({kTenant, "g"}), std::nullopt);
  const auto serves_nothing = [&] {
    return absl::IsUnavailable(cluster_->Route(kTenant, "g", Cluster::Need::kRead)) &&
           absl::IsUnavailable(cluster_->RouteAll(kTenant, {"g", "h"}));
  };
  ASSERT_TRUE(Eventually(serves_nothing));
  EXPECT_NE(cluster_->Problem().find("forget"), std::string::npos) << cluster_->Problem();
  EXPECT_FALSE(memory_.Record("g").has_value());
}

TEST_F(ClusterRecords, AServerWhosePlaceAnotherOneTookServesNothing) {
  Join(1);
  ASSERT_TRUE(Made("g", 1).ok());
  // Of the same name and address.
  const server::NodeRecord other = {"a", "127.0.0.1:2", {"cpu"}, 1, 1, "another"};
  memory_.PutKey(fmt::format("{}a", server::kNodesPrefix), ToJson(other));
  ASSERT_TRUE(Eventually(
      [&] { return absl::IsUnavailable(cluster_->Route(kTenant, "g", Cluster::Need::kRead)); }));
  EXPECT_TRUE(absl::IsUnavailable(Made("g", 2).status()));
  const auto there = memory_.Get(fmt::format("{}a", server::kNodesPrefix));
  EXPECT_EQ(server::ParseNodeRecord(there->entries.front().value)->run, "another");
}

TEST_F(ClusterRecords, AnUploadReadsItsOwnRecordAlone) {
  Join(1);
  const int64_t before = memory_.prefixes_read();
  ASSERT_TRUE(Made("m", 1).ok());
  EXPECT_EQ(memory_.prefixes_read(), before);
}

TEST_F(ClusterRecords, OnlyWhatIsAcknowledgedIsCopied) {
  MustUpload(server_, "g", pattern_);
  MatrixRecord record = RecordOf("g", {{"a", IdentityOf(*Here("g"))}});
  record.previous = {{"c", kOther}};
  memory_.Put(record);
  memory_.PutNode("c", true);  // and it answers nobody
  Join();
  ASSERT_TRUE(Eventually([&] { return cluster_->RecordOf({kTenant, "g"}).has_value(); }));
  const auto make = [&]() -> absl::StatusOr<engine::MatrixLease> {
    return server_.engine().catalog().Copy(kTenant, "g", "h", false, 1, {});
  };
  const absl::Status refused = cluster_->Copy({kTenant, "g"}, {kTenant, "h"}, make).status();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_EQ(Here("h"), nullptr);
  // What is, is.
  memory_.PutNode("c", false);
  ASSERT_TRUE(Eventually([&] { return memory_.Record("g")->previous.empty(); }));
  const auto copied = cluster_->Copy({kTenant, "g"}, {kTenant, "h"}, make);
  EXPECT_TRUE(copied.ok()) << copied.status();
  EXPECT_EQ(memory_.Record("h")->owner(), "a");
}

TEST_F(ClusterRecords, AChangeThatIsToldLaterIsNotSaidToBeNone) {
  Join(1);
  ASSERT_TRUE(Made("g", 1).ok());
  // Somebody else writes into the record each time.
  std::atomic<bool> interferes = true;
  const std::function<void()> again = [&] {
    if (!interferes) return;
    MatrixRecord record = *memory_.Record("g");
    ++record.epoch;
    memory_.Put(record);
    memory_.BeforeChangeOf(server::DirectoryKey({kTenant, "g"}), again);
  };
  const absl::Status told =
      cluster_
          ->Change({kTenant, "g"},
                   [&]() -> absl::StatusOr<engine::MatrixLease> {
                     MustUploadAs("g", 2);
                     memory_.BeforeChangeOf(server::DirectoryKey({kTenant, "g"}), again);
                     return Here("g");
                   })
          .status();
  EXPECT_TRUE(absl::IsUnavailable(told)) << told;
  interferes = false;
  EXPECT_TRUE(Eventually(
      [&] { return memory_.Record("g")->CopyAt("a")->identity == IdentityOf(*Here("g")); }));
}

TEST_F(ClusterRecords, WhatAProductMadeIsEnteredBeforeItIsAcknowledged) {
  MustUpload(server_, "g", pattern_);
  memory_.Put(RecordOf("g", {{"a", IdentityOf(*Here("g"))}, {"c", kOther}}));
  memory_.PutNode("c", true);  // and it answers nobody
  memory_.PutNode("b", true);
  Join(2);
  ASSERT_TRUE(cluster_->Change({kTenant, "g"}, [&] { return Here("g"); }).ok()) << "it owns it";
  ASSERT_TRUE(cluster_->CheckFree(kTenant, "g").ok());
  MustUploadAs("g", 2);
  EXPECT_GT(Here("g")->version(), 3U) << "above what others may have used";
  const absl::Status alone = cluster_->Enter({kTenant, "g"});
  EXPECT_TRUE(absl::IsUnavailable(alone)) << alone;
  EXPECT_EQ(memory_.Record("g")->CopyAt("a")->identity, IdentityOf(*Here("g")));
  // Another node has taken the name meanwhile.
  memory_.Put(RecordOf("h", {{"b", kOther}}));
  ASSERT_TRUE(Eventually([&] { return cluster_->RecordOf({kTenant, "h"}).has_value(); }));
  MustUpload(server_, "h", pattern_);
  const absl::Status lost = cluster_->Enter({kTenant, "h"});
  EXPECT_TRUE(absl::IsAborted(lost)) << lost;
  EXPECT_EQ(Here("h"), nullptr);
}

TEST_F(ClusterRecords, AMatrixIsMadeOfShardsThatAreThereAndFitTogether) {
  Join(/*replicas=*/1);
  MakeParts(kUpload, 2);
  const auto says = [&](const Cluster::Shards& shards, absl::StatusCode code, const char* what) {
    const absl::Status status = MakeSharded("g", shards);
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_NE(status.message().find(what), std::string::npos) << status;
  };
  using enum absl::StatusCode;
  says(ShardsOf("0123456789ABCDEF", 2), kInvalidArgument, "16 of [0-9a-f]");
  says(ShardsOf(kUpload, 0), kInvalidArgument, "1 to 1024");
  says(ShardsOf(kUpload, 1025), kInvalidArgument, "1 to 1024");
  says(ShardsOf(kUpload, 3), kNotFound, "shards:0123456789abcdef/2");
  says(ShardsOf("fedcba9876543210", 1), kNotFound, "shards:fedcba9876543210/0");
  Cluster::Shards shards = ShardsOf(kUpload, 2);
  shards.rows = 41;
  says(shards, kInvalidArgument, "40 rows, the matrix 41");
  shards = ShardsOf(kUpload, 2);
  shards.cols = 21;
  says(shards, kInvalidArgument, "20 x 20");
  shards = ShardsOf(kUpload, 2);
  shards.partitioned = true;
  says(shards, kNotFound, "/0/rows");
  EXPECT_FALSE(memory_.Record("g").has_value());

  ASSERT_TRUE(MakeSharded("g", ShardsOf(kUpload, 2)).ok());
  const MatrixRecord record = *memory_.Record("g");
  EXPECT_TRUE(record.in_shards());
  EXPECT_EQ(record.rows, 40);
  EXPECT_EQ(record.nnz, 2 * pattern_.nnz());
  const absl::Status asked = cluster_->Route(kTenant, "g", Cluster::Need::kRead);
  EXPECT_TRUE(server::IsInShards(asked)) << asked;
  const v1::MatrixInfo info = cluster_->InfoOf(*cluster_->RecordOf({kTenant, "g"}), kTenant);
  EXPECT_EQ(info.shards(1).matrix(), fmt::format("shards:{}/1", kUpload));
  EXPECT_EQ(info.shards(1).first_row(), 20);
  EXPECT_EQ(info.nodes_size(), 1);
  // Another tenant sees it when it is shared, and by his own name for it.
  EXPECT_TRUE(absl::IsNotFound(cluster_->Route("bob", "default~g", Cluster::Need::kRead)));
  ASSERT_TRUE(cluster_->ShareSharded({kTenant, "g"}, {"bob", engine::Right::kRead}, false).ok());
  EXPECT_TRUE(server::IsInShards(cluster_->Route("bob", "default~g", Cluster::Need::kRead)));
  EXPECT_EQ(cluster_->InfoOf(*cluster_->RecordOf({kTenant, "g"}), "bob").shards(0).matrix(),
            fmt::format("default~shards:{}/0", kUpload));

  EXPECT_TRUE(absl::IsAlreadyExists(MakeSharded("g", ShardsOf(kUpload, 2))));
  ASSERT_TRUE(Made("whole", 1).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(MakeSharded("whole", ShardsOf(kUpload, 2))));
  EXPECT_TRUE(absl::IsFailedPrecondition(MakeSharded("whole", ShardsOf(kUpload, 2), true)));
  EXPECT_TRUE(absl::IsInvalidArgument(
      MakeSharded(fmt::format("shards:{}/7", kUpload), ShardsOf(kUpload, 2))));
}

TEST_F(ClusterRecords, ShardsGoWithTheirMatrixAndNotBefore) {
  Join(/*replicas=*/1);
  MakeParts(kUpload, 2);
  ASSERT_TRUE(MakeSharded("g", ShardsOf(kUpload, 2)).ok());
  const std::string shard = fmt::format("shards:{}/0", kUpload);
  EXPECT_TRUE(absl::IsFailedPrecondition(cluster_->Delete({kTenant, shard})));
  // By its new name it is the same.
  ASSERT_TRUE(cluster_->RenameSharded({kTenant, "g"}, {kTenant, "h"}).ok());
  EXPECT_FALSE(memory_.Record("g").has_value());
  std::this_thread::sleep_for(std::chrono::milliseconds(900));
  EXPECT_NE(Here(shard), nullptr);
  // Another one takes its place: what that is made of stays.
  const std::string other = "fedcba9876543210";
  MakeParts(other, 1);
  ASSERT_TRUE(MakeSharded("h", ShardsOf(other, 1), /*replace=*/true).ok());
  ASSERT_TRUE(Eventually([&] { return Here(shard) == nullptr; }));
  ASSERT_TRUE(Eventually([&] { return cluster_->counts().shards_dropped == 4; }));
  EXPECT_NE(Here(fmt::format("shards:{}/0", other)), nullptr);
  EXPECT_EQ(cluster_->counts().in_shards, 1);
  ASSERT_TRUE(cluster_->Delete({kTenant, "h"}).ok());
  ASSERT_TRUE(Eventually([&] { return cluster_->counts().shards_dropped == 6; }));
  EXPECT_TRUE(server_.engine().catalog().All().empty());
}

TEST_F(ClusterRecords, ShardsAreForWhomTheirMatrixIsFor) {
  Join(/*replicas=*/1);
  MakeParts(kUpload, 1);
  ASSERT_TRUE(MakeSharded("g", ShardsOf(kUpload, 1)).ok());
  const engine::Catalog& catalog = server_.engine().catalog();
  const auto may_read = [&](const std::string& upload, const char* tenant) {
    const std::string shard = fmt::format("default~shards:{}/0/columns", upload);
    const absl::Status routed = cluster_->Route(tenant, shard, Cluster::Need::kRead);
    // Whatever the share says: what is replaced is the whole.
    EXPECT_FALSE(catalog.Find(tenant, shard, engine::Right::kWrite).ok());
    return routed.ok() && catalog.Find(tenant, shard).ok();
  };
  EXPECT_FALSE(may_read(kUpload, "bob"));
  ASSERT_TRUE(cluster_->ShareSharded({kTenant, "g"}, {"bob", engine::Right::kWrite}, false).ok());
  EXPECT_TRUE(may_read(kUpload, "bob"));
  EXPECT_FALSE(may_read(kUpload, "carol"));
  // A share goes with the name.
  const std::string other = "fedcba9876543210";
  MakeParts(other, 1);
  EXPECT_FALSE(may_read(other, "bob"));
  ASSERT_TRUE(MakeSharded("g", ShardsOf(other, 1), /*replace=*/true).ok());
  EXPECT_TRUE(may_read(other, "bob"));
  ASSERT_TRUE(cluster_->ShareSharded({kTenant, "g"}, {"bob", engine::Right::kRead}, true).ok());
  EXPECT_FALSE(may_read(other, "bob"));
  // What the catalog alone is asked for is not his either, soon.
  EXPECT_TRUE(Eventually([&] {
    return !catalog.Find("bob", fmt::format("default~shards:{}/0/columns", other)).ok();
  }));
}

TEST_F(ClusterRecords, ShardsChangeWithTheirMatrixAlone) {
  Join(/*replicas=*/1);
  MakeParts(kUpload, 1);
  const std::string shard = fmt::format("shards:{}/0", kUpload);
  EXPECT_TRUE(cluster_->Route(kTenant, shard, Cluster::Need::kChange).ok());
  EXPECT_TRUE(cluster_->RouteUpload(kTenant, shard, "").ok());
  ASSERT_TRUE(MakeSharded("g", ShardsOf(kUpload, 1)).ok());
  for (const absl::Status& status : {cluster_->Route(kTenant, shard, Cluster::Need::kChange),
                                     cluster_->RouteUpload(kTenant, shard, "")}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_NE(status.message().find("a shard of \"g\""), std::string::npos) << status;
  }
  // No other matrix is called so, or is made of these.
  EXPECT_TRUE(
      absl::IsInvalidArgument(cluster_->CheckFree(kTenant, "shards:fedcba9876543210/0/rows")));
  const absl::Status second = MakeSharded("h", ShardsOf(kUpload, 1));
  EXPECT_TRUE(absl::IsFailedPrecondition(second)) << second;
  EXPECT_NE(second.message().find("\"g\""), std::string::npos) << second;
}

TEST_F(ClusterRecords, ANodeThatIsForgottenTakesNoMatrixInShardsWithIt) {
  // It had a matrix that was deleted while it was away, and whose name is one in shards now.
  for (const char* name : {"g", "h"}) {
    MatrixRecord record = RecordOf(name, {});
    record.upload = kUpload;
    record.shards = {{.rows = 20, .cols = 3, .nnz = pattern_.nnz()}};
    record.former = {"b"};
    if (record.key.second == "h") {
      record.upload = "fedcba9876543210";
      record.former.emplace_back("c");
    }
    memory_.Put(record);
  }
  Join(/*replicas=*/1);
  const auto forgotten = cluster_->Forget("b", /*lose=*/false);
  ASSERT_TRUE(forgotten.ok()) << forgotten.status();
  EXPECT_EQ(forgotten->records, 2);
  EXPECT_EQ(forgotten->lost, 0);
  ASSERT_TRUE(memory_.Record("g").has_value());
  EXPECT_TRUE(memory_.Record("g")->in_shards());
  EXPECT_TRUE(memory_.Record("g")->former.empty());
  EXPECT_EQ(memory_.Record("h")->former, std::vector<std::string>{"c"});
}

TEST_F(ClusterRecords, NothingIsAStrayBesideARecordThatCannotBeRead) {
  stray_patience_ = std::chrono::seconds(1);
  const std::string key = server::DirectoryKey({kTenant, "g"});
  memory_.PutKey(key, "{\"of\": \"a newer server\"}");
  Join(/*replicas=*/1);
  MakeParts(kUpload, 1);
  std::this_thread::sleep_for(stray_patience_);
  memory_.PutNode("b", true);  // so that it looks
  std::this_thread::sleep_for(std::chrono::milliseconds(900));
  EXPECT_NE(Here(fmt::format("shards:{}/0", kUpload)), nullptr);
  memory_.PutKey(key, std::nullopt);
  EXPECT_TRUE(Eventually([&] { return cluster_->counts().shards_dropped == 2; }));
}

TEST_F(ClusterRecords, ShardsOfAnUploadThatBrokeOffAreDropped) {
  stray_patience_ = std::chrono::seconds(6);
  Join(/*replicas=*/1);
  MakeParts(kUpload, 1);
  const std::string live = "fedcba9876543210";
  MakeParts(live, 1);
  ASSERT_TRUE(MakeSharded("g", ShardsOf(live, 1)).ok());
  ASSERT_TRUE(Made("whole", 1).ok());
  ASSERT_TRUE(Eventually([&] { return cluster_->counts().shards_dropped == 2; }));
  EXPECT_EQ(Here(fmt::format("shards:{}/0", kUpload)), nullptr);
  EXPECT_NE(Here(fmt::format("shards:{}/0", live)), nullptr);
  EXPECT_NE(Here("whole"), nullptr);
  // Nothing is made of what may be dropped soon.
  const absl::Status late = MakeSharded("late", ShardsOf(live, 1));
  EXPECT_TRUE(absl::IsFailedPrecondition(late)) << late;
}

TEST_F(ClusterRecords, OldShardsOutliveADirectoryThatWasLost) {
  stray_patience_ = std::chrono::seconds(3);
  for (const char* part : {"", "/columns"}) {
    MustUploadAs(fmt::format("shards:{}/0{}", kUpload, part), 1);
  }
  const std::string shard = fmt::format("shards:{}/0", kUpload);
  std::this_thread::sleep_for(stray_patience_);
  // The directory knows nothing of them, nor of a matrix of theirs: it may yet be brought back.
  const auto begun = std::chrono::steady_clock::now();
  Join(/*replicas=*/1);
  ASSERT_TRUE(Eventually([&] { return memory_.Record(shard).has_value(); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(900));
  const bool there = Here(shard) != nullptr;
  if (std::chrono::steady_clock::now() - begun < stray_patience_) {
    EXPECT_TRUE(there);
  }
  EXPECT_TRUE(Eventually([&] { return cluster_->counts().shards_dropped == 2; }));
}

TEST_F(ClusterRecords, AShardOfNoMatrixIsForNobodyElse) {
  const std::string shard = fmt::format("shards:{}/0", kUpload);
  MustUploadAs(shard, 1);
  MatrixRecord record = RecordOf(shard, {{"a", IdentityOf(*Here(shard))}});
  record.shares = {{"bob", engine::Right::kRead}};
  memory_.Put(record);
  Join(/*replicas=*/1);
  ASSERT_TRUE(Eventually([&] { return cluster_->RecordOf({kTenant, shard}).has_value(); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_TRUE(server_.engine().catalog().SharesOf(*Here(shard)).empty());
}

TEST_F(ClusterRecords, ANewOwnerKnowsWhomItsMatrixIsSharedWithBeforeItHasLookedAtIt) {
  MustUploadAs("m", 1);
  MatrixRecord record = RecordOf("m", {{"a", IdentityOf(*Here("m"))}});
  record.shares = {{"bob", engine::Right::kRead}};
  memory_.Put(record);
  Join(/*replicas=*/1);
  // At once: by itself it looks a moment later.
  EXPECT_TRUE(cluster_->Route("bob", "default~m", Cluster::Need::kRead).ok());
  EXPECT_TRUE(server_.engine().catalog().Find("bob", "default~m").ok());
  EXPECT_TRUE(memory_.Record("m")->shares.size() == 1);
}

TEST_F(ClusterRecords, EachShardOfAnUploadIsOnANodeOfItsOwn) {
  memory_.PutNode("b", true);
  memory_.PutNode("c", true);
  Join(/*replicas=*/1);
  std::vector<std::string> nodes;
  for (int i = 0; i < 3; ++i) {
    const absl::Status there =
        cluster_->RouteUpload(kTenant, fmt::format("shards:{}/{}", kUpload, i), "");
    for (const char* node : {"b", "c"}) {
      if (there.message().find(fmt::format(": {} at", node)) != std::string::npos) {
        nodes.emplace_back(node);
      }
    }
    if (there.ok()) nodes.emplace_back("a");
    // What belongs to it is where it is.
    EXPECT_EQ(
        cluster_->RouteUpload(kTenant, fmt::format("shards:{}/{}/columns", kUpload, i), "").ok(),
        there.ok());
  }
  std::ranges::sort(nodes);
  EXPECT_EQ(nodes, (std::vector<std::string>{"a", "b", "c"}));
}

TEST_F(ClusterRecords, AShardedRecordThatLiesIsLeftOut) {
  Join(/*replicas=*/1);
  MatrixRecord record = RecordOf("g", {});
  record.upload = kUpload;
  record.shards = {{.rows = 20, .cols = 3, .nnz = pattern_.nnz()}};
  memory_.Put(record);
  ASSERT_TRUE(Eventually([&] { return cluster_->RecordOf({kTenant, "g"}).has_value(); }));
  record.key.second = "lies";
  record.rows = 21;
  memory_.PutKey(server::DirectoryKey(record.key), ToJson(record));
  record.key.second = "last";
  record.rows = 20;
  memory_.Put(record);
  ASSERT_TRUE(Eventually([&] { return cluster_->RecordOf({kTenant, "last"}).has_value(); }));
  EXPECT_FALSE(cluster_->RecordOf({kTenant, "lies"}).has_value());
  // Its shards are nowhere, and it is not taken over or copied.
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  EXPECT_TRUE(memory_.Record("g")->in_shards());
  EXPECT_TRUE(cluster_->Delete({kTenant, "g"}).ok());
}

TEST(MatrixRecords, KnowWhichMatrixAShardIsOf) {
  server::MatrixRecords records;
  const auto whole = [](std::string tenant, std::string name, std::string upload) {
    MatrixRecord record;
    record.key = {std::move(tenant), std::move(name)};
    record.upload = std::move(upload);
    record.shards.resize(2);
    return record;
  };
  EXPECT_EQ(records.WholeOf("one", "u1"), "");
  records.Set(whole("one", "b", "u1"));
  records.Set(whole("two", "c", "u1"));
  EXPECT_EQ(records.WholeOf("one", "u1"), "b");
  EXPECT_EQ(records.WholeOf("two", "u1"), "c");
  EXPECT_EQ(records.WholeOf("three", "u1"), "");
  // While it is renamed, both records may be there.
  records.Set(whole("one", "a", "u1"));
  EXPECT_EQ(records.WholeOf("one", "u1"), "a");
  records.Erase({"one", "a"});
  EXPECT_EQ(records.WholeOf("one", "u1"), "b");
  // Replaced: by other shards, by a matrix that is whole, by what says that it is deleted.
  records.Set(whole("one", "b", "u2"));
  EXPECT_EQ(records.WholeOf("one", "u1"), "");
  EXPECT_EQ(records.WholeOf("one", "u2"), "b");
  MatrixRecord plain;
  plain.key = {"one", "b"};
  plain.deleted = true;
  records.Set(plain);
  EXPECT_EQ(records.WholeOf("one", "u2"), "");
  ASSERT_NE(records.find({"one", "b"}), records.end());
  records.Erase({"one", "b"});
  records.Erase({"one", "b"});
  EXPECT_EQ(records.find({"one", "b"}), records.end());
  EXPECT_EQ(records.WholeOf("two", "u1"), "c");
}

}  // namespace
}  // namespace sparsed::test
