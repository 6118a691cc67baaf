// Nodes of a cluster in one process, by their wire: what a redirect says, and what a copy is.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/cluster/placement.h"
#include "sparsed/v1/cluster.grpc.pb.h"
#include "tests/rpc/cluster_client.h"
#include "tests/rpc/test_nodes.h"

namespace sparsed::test {
namespace {

/// The redirect that a call ended with; none: it has no such detail.
std::optional<v1::Redirect> RedirectOf(const grpc::Status& status) {
  v1::Status message;
  v1::Redirect redirect;
  if (!message.ParseFromString(status.error_details())) return std::nullopt;
  for (const google::protobuf::Any& detail : message.details()) {
    if (detail.type_url() == "type.googleapis.com/sparsed.v1.Redirect" &&
        redirect.ParseFromString(detail.value())) {
      return redirect;
    }
  }
  return std::nullopt;
}

class ClusterNodes : public TestNodes {
 protected:
  /// Uploads by node 0 and, if that says so, by another; the node that took it.
  size_t UploadAnywhere(const v1::UploadHeader& header, const Pattern& pattern,
                        const std::vector<float>& values, v1::MatrixInfo* info) {
    const grpc::Status status = Upload(nodes_[0]->catalog(), header, pattern, values, info);
    if (status.ok()) return 0;
    EXPECT_EQ(status.error_code(), grpc::FAILED_PRECONDITION) << status.error_message();
    const std::optional<v1::Redirect> redirect = RedirectOf(status);
    EXPECT_TRUE(redirect.has_value() && redirect->addresses_size() == 1);
    if (!redirect.has_value()) return 0;
    EXPECT_EQ(redirect->matrix(), header.name());
    const auto at = std::ranges::find(addresses_, redirect->addresses(0)) - addresses_.begin();
    const auto node = static_cast<size_t>(at);
    const grpc::Status there = Upload(nodes_[node]->catalog(), header, pattern, values, info);
    EXPECT_TRUE(there.ok()) << there.error_message();
    return node;
  }
};

TEST(Cluster, AServerByItselfHasNone) {
  TestServer server;
  const auto stub = v1::Cluster::NewStub(server.channel());
  {
    grpc::ClientContext context;
    v1::ListNodesReply reply;
    const grpc::Status status = stub->ListNodes(&context, v1::ListNodesRequest(), &reply);
    EXPECT_EQ(status.error_code(), grpc::FAILED_PRECONDITION);
    EXPECT_NE(status.error_message().find("--etcd"), std::string::npos) << status.error_message();
  }
  grpc::ClientContext context;
  v1::CopyHereReply reply;
  EXPECT_EQ(stub->CopyHere(&context, v1::CopyHereRequest(), &reply).error_code(),
            grpc::FAILED_PRECONDITION);
  grpc::ClientContext fetching;
  const auto stream = stub->Fetch(&fetching, v1::FetchRequest());
  v1::DownloadReply part;
  EXPECT_FALSE(stream->Read(&part));
  EXPECT_EQ(stream->Finish().error_code(), grpc::FAILED_PRECONDITION);
  grpc::ClientContext fetching_rows;
  const auto rows = stub->FetchRows(&fetching_rows, v1::FetchRowsRequest());
  v1::FetchRowsReply some;
  EXPECT_FALSE(rows->Read(&some));
  EXPECT_EQ(rows->Finish().error_code(), grpc::FAILED_PRECONDITION);
}

TEST_F(ClusterNodes, EqualPatternsMeetWhereTheirHashIsKnown) {
  Start(3, 1);
  const Pattern pattern = Uniform(60, 50, 5, 3);
  const std::vector<float> values = FloatValues(pattern.nnz(), 1);
  v1::MatrixInfo first;
  const size_t owner = UploadAnywhere(HeaderOf("first", pattern), pattern, values, &first);
  // Others learn of it some milliseconds later.
  for (const auto& node : nodes_) {
    ASSERT_TRUE(Eventually([&] {
      grpc::ClientContext context;
      v1::GetMatrixRequest request;
      request.set_name("first");
      v1::MatrixInfo info;
      return node->catalog().Get(&context, request, &info).error_code() != grpc::NOT_FOUND;
    }));
  }
  for (int i = 0; i < 8; ++i) {
    v1::UploadHeader header = HeaderOf(fmt::format("again-{}", i), pattern);
    header.set_pattern_hash(first.pattern_hash());
    // The wire's answer to a known pattern is not waited for: ask where it would go instead.
    size_t at = nodes_.size();
    for (size_t node = 0; node < nodes_.size(); ++node) {
      grpc::ClientContext context;
      auto stream = nodes_[node]->catalog().Upload(&context);
      v1::UploadRequest request;
      *request.mutable_header() = header;
      stream->Write(request);
      v1::UploadReply reply;
      if (stream->Read(&reply)) {
        EXPECT_TRUE(reply.pattern().known());
        at = node;
      }
      context.TryCancel();
      stream->Finish();
    }
    EXPECT_EQ(at, owner);
  }
}

TEST_F(ClusterNodes, AClientIsRedirectedOnceAMatrix) {
  Start(3, 1);
  const auto redirects = [&] {
    double sum = 0;
    for (const auto& node : nodes_) sum += node->Sample("sparsed_cluster_redirects_total");
    return sum;
  };
  constexpr int kMatrices = 12;
  int redirected = 0;
  for (int i = 0; i < kMatrices; ++i) {
    const double before = redirects();
    const absl::Status used = UseMatrix(addresses_[0], fmt::format("matrix-{}", i), 5);
    ASSERT_TRUE(used.ok()) << used;
    const double more = redirects() - before;
    EXPECT_LE(more, 1);
    redirected += more > 0 ? 1 : 0;
  }
  // Those of other nodes; which these are, placement says.
  EXPECT_GT(redirected, 0);
  EXPECT_LT(redirected, kMatrices);
  // Nothing went wrong: they are counted by a code of their own, and not among errors.
  const std::string metrics = nodes_[0]->Page("/metrics");
  EXPECT_THAT(metrics, testing::HasSubstr("code=\"REDIRECTED\",kind=\"work\",op=\"upload\""));
  EXPECT_THAT(metrics, testing::Not(testing::HasSubstr("code=\"FAILED_PRECONDITION\"")));
  EXPECT_THAT(
      metrics,
      testing::Not(testing::ContainsRegex("sparsed_request_errors_total[{][^}]*[}] [1-9]")));
}

TEST_F(ClusterNodes, AListSaysOfOtherNodesMatricesWhatTheseKnow) {
  Start(3, 1);
  const Pattern pattern = Uniform(20, 20, 3, 1);
  constexpr size_t kMatrices = 12;
  std::vector<std::string> names;
  size_t on_last = 0;
  for (size_t i = 0; i < kMatrices; ++i) {
    names.push_back(fmt::format("matrix-{:02}", i));
    v1::MatrixInfo info;
    const size_t node = UploadAnywhere(HeaderOf(names.back(), pattern), pattern,
                                       FloatValues(pattern.nnz(), i), &info);
    on_last += node == 2 ? 1 : 0;
  }
  ASSERT_GT(on_last, 0U);
  ASSERT_LT(on_last, kMatrices);
  for (const std::string& address : addresses_) {
    for (const bool all : {false, true}) {
      absl::StatusOr<std::vector<std::string>> untold;
      // A node hears of what another one has made a moment later, and may answer late.
      EXPECT_TRUE(Eventually([&] {
        untold = UntoldMatrices(address, all, kMatrices);
        return untold.ok() && untold->empty();
      })) << address
          << ": " << untold.status();
    }
  }
  // Of a node that is gone nobody knows, and only of that.
  nodes_[2].reset();
  nodes_.pop_back();
  EXPECT_TRUE(Eventually([&] {
    const auto untold = UntoldMatrices(addresses_[0], /*all=*/false, kMatrices);
    return untold.ok() && untold->size() == on_last;
  }));
  v1::ListMatricesReply reply;
  v1::ListMatricesRequest request;
  EXPECT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    return nodes_[0]->catalog().List(&context, request, &reply).ok() &&
           reply.matrices_size() == static_cast<int>(kMatrices) &&
           std::ranges::all_of(reply.matrices(), [](const v1::MatrixInfo& info) {
             return info.nodes_gone_size() == (info.nodes(0) == "node-2" ? 1 : 0);
           });
  })) << reply.DebugString();
  // What the node itself has, and no other one.
  request.set_here(true);
  grpc::ClientContext here;
  ASSERT_TRUE(nodes_[0]->catalog().List(&here, request, &reply).ok());
  EXPECT_LT(reply.matrices_size(), static_cast<int>(kMatrices));
  for (const v1::MatrixInfo& info : reply.matrices()) EXPECT_EQ(info.nodes(0), "node-0");
}

TEST_F(ClusterNodes, AClientWithReplicasSeesItsOwnChanges) {
  Start(3, 2);
  for (int i = 0; i < 6; ++i) {
    const size_t node = static_cast<size_t>(i) % nodes_.size();
    const absl::Status used = UseMatrix(addresses_[node], fmt::format("matrix-{}", i), 3);
    ASSERT_TRUE(used.ok()) << used;
  }
}

TEST_F(ClusterNodes, AProductThatIsKeptHasItsCopiesWhenItIsAcknowledged) {
  Start(3, 2);
  for (const std::string& address : addresses_) {
    const absl::Status kept = KeepProduct(address, 2);
    ASSERT_TRUE(kept.ok()) << kept;
    for (const char* name : {"factor", "product"}) {
      grpc::Status deleted;
      for (const auto& node : nodes_) {
        grpc::ClientContext context;
        v1::DeleteMatrixRequest request;
        request.set_name(name);
        v1::DeleteMatrixReply reply;
        deleted = node->catalog().Delete(&context, request, &reply);
        if (deleted.ok()) break;
      }
      ASSERT_TRUE(deleted.ok()) << deleted.error_message();
    }
  }
}

TEST_F(ClusterNodes, ACopyHasTheCallersOrderToo) {
  Start(2, 2);
  Pattern pattern = Uniform(60, 50, 5, 3);
  for (int64_t row = 0; row < 60; ++row) {
    const auto at = [&](int64_t r) {
      return pattern.column_indices.begin() + pattern.row_offsets[static_cast<size_t>(r)];
    };
    std::reverse(at(row), at(row + 1));
  }
  const std::vector<float> values = FloatValues(pattern.nnz(), 1);
  v1::UploadHeader header = HeaderOf("unsorted", pattern);
  header.set_sort(true);
  v1::MatrixInfo info;
  UploadAnywhere(header, pattern, values, &info);
  std::vector<std::vector<int64_t>> orders;
  std::vector<std::vector<float>> kept;
  for (const auto& node : nodes_) {
    const engine::MatrixLease matrix = node->engine().catalog().Look("default", "unsorted");
    ASSERT_NE(matrix, nullptr);
    EXPECT_TRUE(matrix->durable());
    EXPECT_EQ(matrix->pattern()->hash(), info.pattern_hash());
    ASSERT_NE(matrix->caller_order(), nullptr);
    const auto order = matrix->caller_order()->Get();
    const auto stored = matrix->Values();
    ASSERT_TRUE(order.ok() && stored.ok());
    const auto positions = order->As<int64_t>();
    const auto numbers = stored->As<float>();
    orders.emplace_back(positions.begin(), positions.end());
    kept.emplace_back(numbers.begin(), numbers.end());
  }
  EXPECT_EQ(orders[0], orders[1]);
  EXPECT_EQ(kept[0], kept[1]);
  EXPECT_FALSE(std::ranges::is_sorted(orders[0]));
}

TEST_F(ClusterNodes, ArraysOfAPatternThatIsThereDoNotTravel) {
  Start(2, 2);
  const Pattern pattern = Uniform(60, 50, 5, 3);
  const auto copied = [&] {
    double bytes = 0;
    for (const auto& node : nodes_) bytes += node->Sample("sparsed_cluster_copy_bytes_total");
    return bytes;
  };
  v1::MatrixInfo info;
  const size_t owner =
      UploadAnywhere(HeaderOf("g", pattern), pattern, FloatValues(pattern.nnz(), 1), &info);
  const double whole = copied();
  EXPECT_EQ(whole, 61 * 8 + static_cast<double>(pattern.nnz()) * (4 + 4));
  MustUpdate(*nodes_[owner], "g", FloatValues(pattern.nnz(), 2));
  EXPECT_EQ(copied() - whole, static_cast<double>(pattern.nnz()) * 4);
  // And what was acknowledged is on both.
  for (const auto& node : nodes_) {
    const auto stored = node->engine().catalog().Look("default", "g")->Values();
    ASSERT_TRUE(stored.ok());
    const auto numbers = stored->As<float>();
    EXPECT_EQ(std::vector<float>(numbers.begin(), numbers.end()), FloatValues(pattern.nnz(), 2));
  }
}

TEST_F(ClusterNodes, MatricesMoveToANodeThatJoins) {
  settle_seconds_ = 0.2;
  Start(2, 1);
  const Pattern pattern = Uniform(60, 50, 5, 3);
  constexpr int kMatrices = 12;
  const auto name = [](int i) { return fmt::format("matrix-{}", i); };
  const auto place = [&](int i, const std::vector<server::PlacementNode>& nodes) {
    return server::Place(fmt::format("default~{}", name(i)), nodes).front();
  };
  std::vector<std::vector<float>> values;
  for (int i = 0; i < kMatrices; ++i) {
    values.push_back(FloatValues(pattern.nnz(), static_cast<uint64_t>(i)));
    v1::MatrixInfo info;
    UploadAnywhere(HeaderOf(name(i), pattern), pattern, values.back(), &info);
    ASSERT_EQ(info.nodes_size(), 1);
    EXPECT_EQ(info.nodes(0), place(i, {{"node-0"}, {"node-1"}}));
  }
  Start(1, 1);
  const auto nodes_of = [&](int i) {
    std::vector<std::string> have;
    for (size_t node = 0; node < nodes_.size(); ++node) {
      if (nodes_[node]->engine().catalog().Look("default", name(i)) != nullptr) {
        have.push_back(fmt::format("node-{}", node));
      }
    }
    return have;
  };
  int moved = 0;
  for (int i = 0; i < kMatrices; ++i) {
    // Those that belong on it by now, and no others.
    const std::string home = place(i, {{"node-0"}, {"node-1"}, {"node-2"}});
    moved += home == "node-2" ? 1 : 0;
    ASSERT_TRUE(Eventually([&] { return nodes_of(i) == std::vector<std::string>{home}; }))
        << name(i) << " belongs on " << home;
    const auto node = static_cast<size_t>(home.back() - '0');
    const auto stored = nodes_[node]->engine().catalog().Look("default", name(i))->Values();
    ASSERT_TRUE(stored.ok());
    const auto numbers = stored->As<float>();
    EXPECT_EQ(std::vector<float>(numbers.begin(), numbers.end()), values[static_cast<size_t>(i)]);
  }
  EXPECT_GT(moved, 0);
  EXPECT_LT(moved, kMatrices);
  EXPECT_TRUE(Eventually([&] {
    double counted = 0;
    for (const auto& node : nodes_) counted += node->Sample("sparsed_cluster_moves_total");
    return counted == moved;
  }));
}

TEST_F(ClusterNodes, AnUploadSaysHowManyNodesAreToHaveIt) {
  Start(3, 1);
  const Pattern pattern = Uniform(60, 50, 5, 3);
  v1::UploadHeader header = HeaderOf("g", pattern);
  header.set_replicas(17);
  const grpc::Status refused =
      Upload(nodes_[0]->catalog(), header, pattern, FloatValues(pattern.nnz(), 1));
  EXPECT_EQ(refused.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), testing::HasSubstr("replicas is 17, expected 1 to 16"));
  const auto have = [&] {
    return std::ranges::count_if(nodes_, [](const auto& node) {
      return node->engine().catalog().Look("default", "g") != nullptr;
    });
  };
  header.set_replicas(2);
  v1::MatrixInfo info;
  const size_t owner = UploadAnywhere(header, pattern, FloatValues(pattern.nnz(), 1), &info);
  EXPECT_EQ(info.replicas(), 2);
  EXPECT_EQ(info.nodes_size(), 2);
  EXPECT_EQ(info.copies_missing(), 0);
  EXPECT_EQ(have(), 2);
  // A change is acknowledged when both have it, durably, though the nodes are told of one.
  MustUpdate(*nodes_[owner], "g", FloatValues(pattern.nnz(), 2));
  for (const auto& node : nodes_) {
    const engine::MatrixLease there = node->engine().catalog().Look("default", "g");
    if (there == nullptr) continue;
    EXPECT_TRUE(there->durable());
    const auto stored = there->Values();
    ASSERT_TRUE(stored.ok());
    const auto numbers = stored->As<float>();
    EXPECT_EQ(std::vector<float>(numbers.begin(), numbers.end()), FloatValues(pattern.nnz(), 2));
  }
  header.set_replace(true);
  header.set_replicas(0);
  ASSERT_EQ(UploadAnywhere(header, pattern, FloatValues(pattern.nnz(), 3), &info), owner);
  EXPECT_EQ(info.replicas(), 2);
  EXPECT_EQ(have(), 2);
  // What there is too much of is dropped.
  header.set_replicas(1);
  ASSERT_EQ(UploadAnywhere(header, pattern, FloatValues(pattern.nnz(), 4), &info), owner);
  EXPECT_EQ(info.replicas(), 1);
  EXPECT_EQ(info.nodes_size(), 1);
  EXPECT_TRUE(Eventually([&] { return have() == 1; }));
}

TEST_F(ClusterNodes, AChangeByWhoDoesNotOwnItIsRedirected) {
  Start(2, 2);
  const Pattern pattern = Uniform(60, 50, 5, 3);
  v1::MatrixInfo info;
  const size_t owner =
      UploadAnywhere(HeaderOf("g", pattern), pattern, FloatValues(pattern.nnz(), 1), &info);
  TestServer& other = *nodes_[1 - owner];
  v1::DeleteMatrixRequest request;
  request.set_name("g");
  v1::DeleteMatrixReply reply;
  ASSERT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    const grpc::Status status = other.catalog().Delete(&context, request, &reply);
    const std::optional<v1::Redirect> redirect = RedirectOf(status);
    return redirect.has_value() && redirect->addresses(0) == addresses_[owner] &&
           redirect->epoch() > 0;
  }));
  grpc::ClientContext context;
  EXPECT_TRUE(nodes_[owner]->catalog().Delete(&context, request, &reply).ok());
  // Its copy goes, too.
  EXPECT_TRUE(Eventually([&] { return other.engine().catalog().Look("default", "g") == nullptr; }));
}

}  // namespace
}  // namespace sparsed::test
