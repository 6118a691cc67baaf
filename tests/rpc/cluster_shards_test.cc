// Matrices in shards on the nodes of a cluster in one process, as clients see them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/rpc/shards_client.h"
#include "tests/rpc/test_nodes.h"

namespace sparsed::test {
namespace {

class ClusterShards : public TestNodes {
 protected:
  /// All nodes' matrices, shards and copies.
  size_t Kept() const {
    size_t kept = 0;
    for (const auto& node : nodes_) kept += node->engine().catalog().All().size();
    return kept;
  }
  /// Of all nodes.
  RowTraffic Traffic() const {
    double received = 0, copied = 0;
    for (const auto& node : nodes_) {
      received += node->Sample("sparsed_cluster_row_bytes_total{direction=\"received\"}");
      copied += node->Sample("sparsed_cluster_row_bytes_copied_total");
    }
    return {static_cast<int64_t>(received), static_cast<int64_t>(copied)};
  }
  /// The matrix "g", by the first node.
  void DeleteG() {
    grpc::ClientContext context;
    v1::DeleteMatrixRequest request;
    request.set_name("g");
    v1::DeleteMatrixReply reply;
    const grpc::Status deleted = nodes_[0]->catalog().Delete(&context, request, &reply);
    EXPECT_TRUE(deleted.ok()) << deleted.error_message();
  }
};

TEST_F(ClusterShards, MultiplyAsTheWholeDoesAndLeaveNothing) {
  Start(3, 1);
  for (const ShardsCase& with :
       {ShardsCase{.shards = 3}, ShardsCase{.shards = 3, .partition = true},
        ShardsCase{.shards = 5, .type = "f64"},
        ShardsCase{.shards = 2, .partition = true, .type = "f16"}}) {
    SCOPED_TRACE(fmt::format("{} shards of {}{}", with.shards, with.type,
                             with.partition ? " by a partition" : ""));
    const absl::Status status = UseShards(addresses_[0], addresses_[1], with);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(Eventually([&] { return Kept() == 0; })) << Kept();
  }
  for (const auto& node : nodes_) {
    EXPECT_EQ(node->Sample("sparsed_cluster_matrices_in_shards"), 0);
  }
  // Of each case two uploads, with their numbers: what is gone is counted a moment later.
  EXPECT_TRUE(Eventually([&] {
    double dropped = 0;
    for (const auto& node : nodes_) {
      dropped += node->Sample("sparsed_cluster_shards_dropped_total");
    }
    return dropped == 2 * (3 * 2 + 3 * 3 + 5 * 2 + 2 * 3);
  }));
}

TEST_F(ClusterShards, NoRowOfANodesOwnIsCopied) {
  Start(3, 1);
  const auto traffic = [this] { return Traffic(); };
  for (const OwnRowsCase& with : {
           OwnRowsCase{},
           OwnRowsCase{.partition = true},
           OwnRowsCase{.shards = 2, .type = "f64"},
           OwnRowsCase{.partition = true, .type = "f16"},
           // Columns lie evenly, near the rows that name them.
           OwnRowsCase{.type = "f16", .cols = 250},
           OwnRowsCase{.shards = 2, .rows = 200, .cols = 330},
           // Most rows that are named are others'.
           OwnRowsCase{.partition = true, .cols = 250, .copies = true},
           OwnRowsCase{.shards = 2, .far = true, .copies = true},
       }) {
    SCOPED_TRACE(fmt::format("{} x {} in {} shards of {}{}", with.rows, with.cols, with.shards,
                             with.type, with.partition ? " by a partition" : ""));
    const absl::Status status = IterateInShards(addresses_[0], with, traffic);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(Eventually([&] { return Kept() == 0; })) << Kept();
  }
}

TEST_F(ClusterShards, OwnRowsAreCopiedWhereShardsHaveNotAllOfThem) {
  Start(2, 1);
  const std::string upload = "0123456789abcdef";
  absl::Status status = UploadShardsAsBefore(addresses_[0], upload);
  ASSERT_TRUE(status.ok()) << status;
  grpc::ClientContext context;
  v1::MakeShardedRequest request;
  request.set_name("g");
  request.set_rows(6);
  request.set_cols(6);
  request.set_upload(upload);
  request.set_shards(2);
  v1::MatrixInfo info;
  const grpc::Status made = nodes_[0]->catalog().MakeSharded(&context, request, &info);
  ASSERT_TRUE(made.ok()) << made.error_message();
  status = HoldInShardsAsBefore(addresses_[0], "g");
  EXPECT_TRUE(status.ok()) << status;
  // Two of the first one's three rows; the second one has all of its own. Each wants one row of the
  // other, which is copied, too, where both are on one node.
  const int64_t row = 5 * sizeof(float);
  const RowTraffic traffic = Traffic();
  EXPECT_EQ(traffic.copied + traffic.received, 4 * row);
  EXPECT_GE(traffic.copied, 2 * row);
  DeleteG();
}

TEST_F(ClusterShards, RowsOfALostNodeAreWaitedForByNobody) {
  Start(3, 1);
  absl::Status status = UploadInShards(addresses_[0], "g");
  ASSERT_TRUE(status.ok()) << status;
  status = PutForShards(addresses_[0], "g");
  ASSERT_TRUE(status.ok()) << status;
  nodes_[2].reset();
  nodes_.pop_back();
  // The client tries again for some seconds: whoever gathers first fails, and the next one does not
  // wait for it.
  status = MultiplyHeldInShards(addresses_[0], "g");
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

TEST_F(ClusterShards, WhatIsNotForThemIsRefused) {
  Start(3, 1);
  const absl::Status status = MisuseShards(addresses_[0]);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(Eventually([&] { return Kept() == 0; })) << Kept();
}

TEST_F(ClusterShards, WithTwoReplicasALostNodeIsNotMissed) {
  Start(3, 2);
  absl::Status status = UploadInShards(addresses_[0], "g");
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(Kept(), 2U * 3 * 2);
  status = MultiplyInShards(addresses_[1], "g");
  EXPECT_TRUE(status.ok()) << status;
  nodes_[2].reset();
  nodes_.pop_back();
  status = MultiplyInShards(addresses_[0], "g");
  EXPECT_TRUE(status.ok()) << status;
  // Buffers are with who owns a shard: where that node is gone, when another one does.
  EXPECT_TRUE(Eventually([&] {
    status = HoldInShards(addresses_[0], "g");
    return !absl::IsUnavailable(status);
  }));
  EXPECT_TRUE(status.ok()) << status;
  // Deleted while a node that has copies is away: the others drop theirs.
  DeleteG();
  EXPECT_TRUE(Eventually([&] { return Kept() == 0; })) << Kept();
}

TEST_F(ClusterShards, BuffersGoWithTheirShards) {
  Start(3, 1);
  absl::Status status = UploadInShards(addresses_[0], "g");
  ASSERT_TRUE(status.ok()) << status;
  status = PutForShards(addresses_[0], "g");
  ASSERT_TRUE(status.ok()) << status;
  const auto held = [this] {
    int64_t held = 0;
    for (const auto& node : nodes_) held += node->engine().dense().size();
    return held;
  };
  EXPECT_EQ(held(), 3);
  DeleteG();
  EXPECT_TRUE(Eventually([&] { return held() == 0; })) << held();
}

TEST_F(ClusterShards, WithoutAReplicaALostNodeIsSaid) {
  Start(3, 1);
  absl::Status status = UploadInShards(addresses_[0], "g");
  ASSERT_TRUE(status.ok()) << status;
  nodes_[2].reset();
  nodes_.pop_back();
  status = MultiplyInShards(addresses_[0], "g");
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(status.message().find("node-2"), std::string::npos) << status;
  status = HoldInShards(addresses_[0], "g");
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(status.message().find("node-2"), std::string::npos) << status;
}

TEST_F(ClusterShards, AnUploadThatBreaksOffSaysWhatBecomesOfItsShards) {
  Start(2, 1);
  absl::Status status = UploadInShardsWith(addresses_[0], "g", [this] { etcd_->Kill(); });
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(status.message().find("could not be deleted: the cluster drops them in a day"),
            std::string::npos)
      << status;
  EXPECT_GT(Kept(), 0U);
}

TEST_F(ClusterShards, ThereMayBeMoreThanAHeaderNames) {
  Start(2, 1);
  absl::Status status = UploadInShards(addresses_[0], "g", 80);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(Kept(), 2U * 80);
  status = MultiplyInShards(addresses_[0], "g");
  EXPECT_TRUE(status.ok()) << status;
  status = HoldInShards(addresses_[0], "g");
  EXPECT_TRUE(status.ok()) << status;
}

TEST(Shards, AServerByItselfHasNone) {
  TestServer server;
  const absl::Status status = UploadShardsTo(server.address());
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_NE(status.message().find("--etcd"), std::string::npos) << status;
  grpc::ClientContext context;
  v1::MakeShardedRequest request;
  v1::MatrixInfo info;
  EXPECT_EQ(server.catalog().MakeSharded(&context, request, &info).error_code(),
            grpc::FAILED_PRECONDITION);
}

}  // namespace
}  // namespace sparsed::test
