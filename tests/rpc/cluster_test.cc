// What a cluster stands on: placement, records, a real etcd, and who is a node.
#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "etcd/etcd.grpc.pb.h"
#include "server/cluster/etcd.h"
#include "server/cluster/placement.h"
#include "server/cluster/record.h"
#include "server/cluster/shards.h"
#include "server/security/access.h"
#include "tests/rpc/test_etcd.h"

namespace sparsed::server {
namespace {

std::vector<PlacementNode> NodesOf(int count, double weight = 1) {
  std::vector<PlacementNode> nodes;
  for (int i = 0; i < count; ++i) nodes.push_back({fmt::format("node-{}", i), weight});
  return nodes;
}

std::string KeyOf(int i) { return fmt::format("pattern {}", i); }

TEST(Placement, ANodeThatGoesMovesOnlyWhatItHad) {
  const std::vector<PlacementNode> all = NodesOf(7);
  std::vector<PlacementNode> fewer = all;
  fewer.erase(fewer.begin() + 3);
  int moved = 0;
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::string> before = Place(KeyOf(i), all);
    const std::vector<std::string> after = Place(KeyOf(i), fewer);
    moved += before.front() == "node-3" ? 1 : 0;
    // All others stay in their order, so that replicas do, too.
    std::erase(before, "node-3");
    ASSERT_EQ(before, after);
  }
  EXPECT_GT(moved, 2000 / 7 / 2);
}

TEST(Placement, WeightsAreShares) {
  std::vector<PlacementNode> nodes = NodesOf(3);
  nodes[1].weight = 3;
  std::map<std::string, int> first;
  constexpr int kKeys = 20000;
  for (int i = 0; i < kKeys; ++i) ++first[Place(KeyOf(i), nodes).front()];
  // Five standard deviations are less than 2 % of all keys.
  EXPECT_NEAR(first["node-0"], kKeys / 5, kKeys / 50);
  EXPECT_NEAR(first["node-1"], 3 * kKeys / 5, kKeys / 50);
  EXPECT_NEAR(first["node-2"], kKeys / 5, kKeys / 50);
}

TEST(Placement, AHeavierNodeTakesFromOthersAndGivesNothing) {
  const std::vector<PlacementNode> before = NodesOf(5);
  std::vector<PlacementNode> after = before;
  after[2].weight = 4;
  for (int i = 0; i < 1000; ++i) {
    const std::string was = Place(KeyOf(i), before).front();
    const std::string is = Place(KeyOf(i), after).front();
    EXPECT_TRUE(is == was || is == "node-2") << was << " " << is;
  }
}

TEST(Placement, DoesNotDependOnTheOrderOfNodes) {
  std::vector<PlacementNode> nodes = NodesOf(5);
  const std::vector<std::string> placed = Place("k", nodes);
  std::ranges::reverse(nodes);
  EXPECT_EQ(Place("k", nodes), placed);
  EXPECT_EQ(placed.size(), 5U);
}

TEST(Placement, WithoutWeightOrNodesThereIsNone) {
  EXPECT_TRUE(Place("k", {}).empty());
  EXPECT_TRUE(Place("k", {{"a", 0}, {"b", -1}}).empty());
  EXPECT_EQ(Place("k", {{"a", 0}, {"b", 1}}), std::vector<std::string>{"b"});
}

MatrixRecord SomeRecord() {
  MatrixRecord record;
  record.key = {"alice", "gnn/web@2"};
  record.rows = 3;
  record.cols = 4;
  record.nnz = 5;
  record.type = "f32";
  record.pattern_hash = "abc";
  record.epoch = 7;
  record.copies = {{"a", {11, 2}}, {"b", {12, 1}}};
  record.previous = {{"d", {10, 1}}};
  record.former = {"c"};
  record.shares = {{"bob", engine::Right::kWrite}, {"*", engine::Right::kRead}};
  return record;
}

TEST(Record, IsReadAsItWasWritten) {
  const MatrixRecord record = SomeRecord();
  const auto read = ParseMatrixRecord(ToJson(record));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(ToJson(*read), ToJson(record));
  EXPECT_EQ(read->key, record.key);
  EXPECT_EQ(read->owner(), "a");
  EXPECT_EQ(read->CopyAt("b")->identity, (CopyIdentity{12, 1}));
  EXPECT_EQ(read->CopyAt("c"), nullptr);
  EXPECT_EQ(read->PreviousAt("d")->identity, (CopyIdentity{10, 1}));
  EXPECT_EQ(DirectoryKey(record.key), "/sparsed/matrices/alice~gnn/web@2");

  const NodeRecord node = {"a", "h:1", {"cpu", "cuda:0"}, 10, 5};
  const auto node_read = ParseNodeRecord(ToJson(node));
  ASSERT_TRUE(node_read.ok()) << node_read.status();
  EXPECT_EQ(ToJson(*node_read), ToJson(node));
}

TEST(Record, AMatrixInShardsIsReadAsItWasWritten) {
  MatrixRecord record = SomeRecord();
  record.copies.clear();
  record.previous.clear();
  record.upload = "0123456789abcdef";
  record.partitioned = true;
  record.made = {5, 6};
  record.shards = {{.rows = 1, .cols = 4, .nnz = 2}, {.rows = 2, .cols = 0, .nnz = 3}};
  const auto read = ParseMatrixRecord(ToJson(record));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(ToJson(*read), ToJson(record));
  EXPECT_TRUE(read->partitioned);
  EXPECT_EQ(read->made, record.made);
  EXPECT_EQ(read->owner(), "");
  for (const auto& lie : std::vector<std::function<void(MatrixRecord&)>>{
           [](MatrixRecord& r) { r.rows = 4; }, [](MatrixRecord& r) { r.nnz = 4; },
           [](MatrixRecord& r) { r.shards[0].rows = 0; },
           [](MatrixRecord& r) { r.shards[1].rows = int64_t{1} << 62; },
           [](MatrixRecord& r) { r.shards[0].cols = 5; },
           [](MatrixRecord& r) { r.shards[0].nnz = -2; }, [](MatrixRecord& r) { r.upload = "/"; },
           [](MatrixRecord& r) {
             r.copies = {{"a", {1, 1}}};
           }}) {
    MatrixRecord wrong = record;
    lie(wrong);
    EXPECT_TRUE(absl::IsInvalidArgument(ParseMatrixRecord(ToJson(wrong)).status()));
  }
}

TEST(Shards, AreKnownByTheirNames) {
  for (const auto part :
       {ShardName::Part::kRows, ShardName::Part::kColumns, ShardName::Part::kRowNumbers}) {
    const ShardName name{"0123456789abcdef", 1023, part};
    const auto parsed = ParseShardName(ToString(name));
    ASSERT_TRUE(parsed.has_value()) << ToString(name);
    EXPECT_EQ(parsed->upload, name.upload);
    EXPECT_EQ(parsed->index, name.index);
    EXPECT_EQ(parsed->part, name.part);
  }
  for (const char* name :
       {"", "shards:", "shards:0123456789abcdef", "shards:0123456789abcdef/",
        "shards:0123456789abcdef/-1", "shards:0123456789abcdef/+1", "shards:0123456789abcdef/01",
        "shards:0123456789abcdef/1024", "shards:0123456789abcdef/1/", "shards:0123456789ABCDEF/1",
        "shards:0123456789abcde/1", "shards:0123456789abcdef/1/column", "shards:0123456789abcdef1",
        "shards:0123456789abcdef/columns", "x/shards:0123456789abcdef/1"}) {
    EXPECT_FALSE(ParseShardName(name).has_value()) << name;
  }
}

TEST(Shards, HaveBuffersThatAreKnownByTheirNames) {
  for (const char* name : {"x", "a/b", "columns"}) {
    ShardBuffer buffer;
    buffer.shard.upload = "0123456789abcdef";
    buffer.shard.index = 12;
    buffer.name = name;
    const auto parsed = ParseShardBuffer(ToString(buffer));
    ASSERT_TRUE(parsed.has_value()) << ToString(buffer);
    EXPECT_EQ(ToString(*parsed), ToString(buffer));
    EXPECT_EQ(parsed->name, name);
    EXPECT_EQ(parsed->shard.index, 12);
  }
  for (const char* name : {"", "x", "x/y/z", "shards:0123456789abcdef/1",
                           "shards:0123456789abcdef/1/", "shards:0123456789abcdef/01/x",
                           "shards:0123456789abcdeg/1/x", "shards:0123456789abcdef//x"}) {
    EXPECT_FALSE(ParseShardBuffer(name).has_value()) << name;
  }
}

TEST(Record, ACopyThatIsNotCurrentIsFormer) {
  MatrixRecord record = SomeRecord();
  record.MoveToFormer("a");
  record.MoveToFormer("a");
  EXPECT_EQ(record.owner(), "b");
  EXPECT_EQ(record.former, (std::vector<std::string>{"c", "a"}));
}

TEST(Record, WhatIsNoneIsRefused) {
  for (const char* text :
       {"", "nonsense", "[]", "{}", R"({"name": 7})", "null", "{\"tenant\": \"a\""}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseMatrixRecord(text).status())) << text;
    EXPECT_TRUE(absl::IsInvalidArgument(ParseNodeRecord(text).status())) << text;
  }
  MatrixRecord nowhere = SomeRecord();
  nowhere.copies.clear();
  EXPECT_TRUE(absl::IsInvalidArgument(ParseMatrixRecord(ToJson(nowhere)).status()));
  nowhere.deleted = true;
  EXPECT_TRUE(ParseMatrixRecord(ToJson(nowhere)).ok());
}

TEST(Nodes, AreKnownByTheClustersTokenAlone) {
  const auto access = Access::Open("");
  ASSERT_TRUE(access.ok());
  Access& nobody_asked = **access;
  const auto anybody = nobody_asked.Identify({.private_way = true});
  ASSERT_TRUE(anybody.ok());
  EXPECT_TRUE(nobody_asked.RequireNode(*anybody).ok());

  const std::string token(40, 't');
  nobody_asked.TrustNodes(token);
  EXPECT_TRUE(absl::IsPermissionDenied(nobody_asked.RequireNode(*anybody)));
  const auto node = nobody_asked.Identify({.token = token, .private_way = true});
  ASSERT_TRUE(node.ok()) << node.status();
  EXPECT_TRUE(node->node);
  EXPECT_EQ(node->tenant, kClusterTenant);
  EXPECT_TRUE(nobody_asked.RequireNode(*node).ok());
  // A plain way tells others.
  EXPECT_TRUE(absl::IsUnauthenticated(nobody_asked.Identify({.token = token}).status()));
  const std::string other(40, 'u');
  EXPECT_TRUE(absl::IsUnauthenticated(
      nobody_asked.Identify({.token = other, .private_way = true}).status()));
}

class EtcdTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::TestEtcd::Installed()) GTEST_SKIP() << test::TestEtcd::kMissing;
    etcd_ = std::make_unique<test::TestEtcd>();
    directory_ = OpenEtcd({etcd_->address()});
  }

  std::unique_ptr<test::TestEtcd> etcd_;
  std::unique_ptr<Directory> directory_;
};

TEST_F(EtcdTest, KeysAreWrittenReadAndDeleted) {
  const auto first =
      directory_->Apply({{.key = "/t/a", .value = "1", .if_revision = 0},
                         {.key = "/t/b", .value = std::string("\0\xff", 2), .if_revision = 0}});
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(directory_->Apply({{.key = "/u", .value = "3", .if_revision = {}}}).ok());
  auto read = directory_->Read("/t/");
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->entries.size(), 2U);
  EXPECT_EQ(read->entries[0].value, "1");
  EXPECT_EQ(read->entries[1].value, std::string("\0\xff", 2));
  EXPECT_EQ(read->entries[0].revision, *first);
  ASSERT_TRUE(directory_->Apply({{.key = "/t/a", .value = {}, .if_revision = *first}}).ok());
  read = directory_->Read("/t/");
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->entries.size(), 1U);
}

TEST_F(EtcdTest, AllPagesAreRead) {
  for (int batch = 0; batch < 20; ++batch) {
    std::vector<Directory::Change> changes;
    for (int i = 0; i < 110; ++i) {
      changes.push_back(
          {.key = fmt::format("/p/{}", batch * 1000 + i), .value = "v", .if_revision = {}});
    }
    ASSERT_TRUE(directory_->Apply(changes).ok());
  }
  const auto read = directory_->Read("/p/");
  ASSERT_TRUE(read.ok());
  std::set<std::string> keys;
  for (const Directory::Entry& entry : read->entries) keys.insert(entry.key);
  EXPECT_EQ(keys.size(), 2200U);
  EXPECT_EQ(read->entries.size(), 2200U);
}

TEST_F(EtcdTest, AChangeOfWhatSomebodyElseChangedIsAborted) {
  const auto first = directory_->Apply({{.key = "/t/a", .value = "1", .if_revision = 0}});
  ASSERT_TRUE(first.ok());
  EXPECT_TRUE(absl::IsAborted(
      directory_->Apply({{.key = "/t/a", .value = "2", .if_revision = 0}}).status()));
  const auto second = directory_->Apply({{.key = "/t/a", .value = "2", .if_revision = *first}});
  ASSERT_TRUE(second.ok());
  // All or nothing.
  EXPECT_TRUE(absl::IsAborted(directory_
                                  ->Apply({{.key = "/t/b", .value = "x", .if_revision = 0},
                                           {.key = "/t/a", .value = "3", .if_revision = *first}})
                                  .status()));
  const auto read = directory_->Read("/t/");
  ASSERT_TRUE(read.ok());
  ASSERT_EQ(read->entries.size(), 1U);
  EXPECT_EQ(read->entries[0].value, "2");
}

TEST_F(EtcdTest, KeysGoWithTheirLease) {
  const auto lease = directory_->Grant(2);
  ASSERT_TRUE(lease.ok()) << lease.status();
  ASSERT_TRUE(
      directory_->Apply({{.key = "/n/a", .value = "1", .lease = *lease, .if_revision = {}}}).ok());
  EXPECT_TRUE(directory_->KeepAlive(*lease).ok());
  EXPECT_EQ(directory_->Read("/n/")->entries.size(), 1U);
  ASSERT_TRUE(directory_->Revoke(*lease).ok());
  EXPECT_EQ(directory_->Read("/n/")->entries.size(), 0U);
  EXPECT_TRUE(absl::IsNotFound(directory_->KeepAlive(*lease)));

  const auto forgotten = directory_->Grant(2);
  ASSERT_TRUE(forgotten.ok());
  ASSERT_TRUE(
      directory_->Apply({{.key = "/n/b", .value = "1", .lease = *forgotten, .if_revision = {}}})
          .ok());
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!directory_->Read("/n/")->entries.empty() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_TRUE(directory_->Read("/n/")->entries.empty());
}

TEST_F(EtcdTest, WatchersSeeEveryChangeSinceARevision) {
  const auto first = directory_->Apply({{.key = "/t/a", .value = "1", .if_revision = 0}});
  ASSERT_TRUE(first.ok());
  Mutex mutex;
  std::vector<std::string> seen;
  std::jthread watcher([&](const std::stop_token& stop) {
    EXPECT_TRUE(directory_
                    ->Watch(
                        "/t/", *first,
                        [&](const std::vector<Directory::Event>& events) {
                          const MutexLock lock(mutex);
                          for (const Directory::Event& event : events) {
                            seen.push_back(
                                event.entry.key +
                                (event.deleted ? " gone" : fmt::format("={}", event.entry.value)));
                          }
                        },
                        stop)
                    .ok());
  });
  ASSERT_TRUE(directory_->Apply({{.key = "/other", .value = "1", .if_revision = {}}}).ok());
  ASSERT_TRUE(directory_->Apply({{.key = "/t/b", .value = "2", .if_revision = {}}}).ok());
  ASSERT_TRUE(directory_->Apply({{.key = "/t/a", .value = {}, .if_revision = {}}}).ok());
  const std::vector<std::string> expected = {"/t/a=1", "/t/b=2", "/t/a gone"};
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (std::chrono::steady_clock::now() < deadline) {
    const MutexLock lock(mutex);
    if (seen.size() == expected.size()) break;
  }
  watcher.request_stop();
  watcher.join();
  EXPECT_EQ(seen, expected);
}

TEST_F(EtcdTest, OneThatIsAwayIsSaidAndAskedAgain) {
  ASSERT_TRUE(directory_->Apply({{.key = "/t/a", .value = "1", .if_revision = 0}}).ok());
  etcd_->Kill();
  const absl::Status away = directory_->Read("/t/").status();
  EXPECT_TRUE(absl::IsUnavailable(away)) << away;
  EXPECT_NE(away.message().find(etcd_->address()), std::string::npos) << away;
  EXPECT_TRUE(absl::IsUnavailable(directory_->Grant(3).status()));
  EXPECT_TRUE(absl::IsUnavailable(directory_->KeepAlive(1)));
  EXPECT_TRUE(absl::IsUnavailable(directory_->Watch("/t/", 1, [](const auto&) {}, {})));
  etcd_->Start();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!directory_->Read("/t/").ok() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  const auto read = directory_->Read("/t/");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->entries.size(), 1U);
}

TEST_F(EtcdTest, TheNextMemberIsAskedWhenOneDoesNotAnswer) {
  const std::unique_ptr<Directory> both =
      OpenEtcd({fmt::format("127.0.0.1:{}", test::FreePort()), etcd_->address()});
  EXPECT_TRUE(both->Apply({{.key = "/t/a", .value = "1", .if_revision = 0}}).ok());
  EXPECT_EQ(both->Read("/t/")->entries.size(), 1U);
}

/// A member that does what it is asked and dies before it can say so.
class Mute final : public etcdserverpb::KV::Service {
 public:
  explicit Mute(const std::string& etcd)
      : etcd_(etcdserverpb::KV::NewStub(
            grpc::CreateChannel(etcd, grpc::InsecureChannelCredentials()))) {}
  grpc::Status Txn(grpc::ServerContext* /*context*/, const etcdserverpb::TxnRequest* request,
                   etcdserverpb::TxnResponse* response) override {
    grpc::ClientContext context;
    const grpc::Status done = etcd_->Txn(&context, *request, response);
    return done.ok() ? grpc::Status(grpc::UNAVAILABLE, "gone") : done;
  }

 private:
  const std::unique_ptr<etcdserverpb::KV::Stub> etcd_;
};

TEST_F(EtcdTest, AChangeThatTwoMembersWereAskedForIsNotSaidToBeNone) {
  Mute mute(etcd_->address());
  const std::string address = fmt::format("127.0.0.1:{}", test::FreePort());
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(&mute);
  const std::unique_ptr<grpc::Server> member = builder.BuildAndStart();
  ASSERT_NE(member, nullptr);
  const std::unique_ptr<Directory> both = OpenEtcd({address, etcd_->address()});
  const absl::Status told = both->Apply({{.key = "/t/a", .value = "1", .if_revision = 0}}).status();
  EXPECT_TRUE(absl::IsUnavailable(told)) << told;
  EXPECT_EQ(directory_->Get("/t/a")->entries.size(), 1U) << "it was done";
}

TEST_F(EtcdTest, OneKeyIsReadWithoutThoseThatBeginAlike) {
  ASSERT_TRUE(directory_->Apply({{.key = "/t/a", .value = "1", .if_revision = 0}}).ok());
  ASSERT_TRUE(directory_->Apply({{.key = "/t/ab", .value = "2", .if_revision = 0}}).ok());
  const auto one = directory_->Get("/t/a");
  ASSERT_TRUE(one.ok()) << one.status();
  ASSERT_EQ(one->entries.size(), 1U);
  EXPECT_EQ(one->entries.front().value, "1");
  EXPECT_GE(one->revision, one->entries.front().revision);
  EXPECT_TRUE(directory_->Get("/t/")->entries.empty());
}

}  // namespace
}  // namespace sparsed::server
