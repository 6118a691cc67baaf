// What a server may say of a matrix in shards, and what a client makes of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sparsed/client.h"
#include "sparsed/v1/catalog.pb.h"
#include "sparsed/v1/types.pb.h"
#include "tests/unit/client/scripted_server.h"

namespace sparsed::test {
namespace {

constexpr char kDownload[] = "/sparsed.v1.Catalog/Download";
constexpr char kGet[] = "/sparsed.v1.Catalog/Get";
constexpr char kServerInfo[] = "/sparsed.v1.Admin/GetServerInfo";

/// 4 x 3 with 5 nonzeros, in two shards.
v1::MatrixInfo InShards() {
  v1::MatrixInfo info;
  info.set_name("g");
  info.set_rows(4);
  info.set_cols(3);
  info.set_nnz(5);
  info.set_type(v1::ELEMENT_TYPE_F32);
  for (int i = 0; i < 2; ++i) {
    v1::Shard& shard = *info.add_shards();
    shard.set_matrix("shards:0123456789abcdef/" + std::to_string(i));
    shard.set_columns(shard.matrix() + "/columns");
    shard.set_first_row(2 * i);
    shard.set_rows(2);
    shard.set_cols(2);
    shard.set_nnz(2 + i);
  }
  return info;
}

/// FAILED_PRECONDITION: the matrix is in shards.
Answer IsInShards() {
  v1::Status status;
  status.set_code(grpc::StatusCode::FAILED_PRECONDITION);
  status.set_message("in shards");
  google::protobuf::Any& detail = *status.add_details();
  detail.set_type_url("type.googleapis.com/sparsed.v1.MatrixInfo");
  return {.end = grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "in shards",
                              status.SerializeAsString())};
}

absl::Status DownloadFrom(const v1::MatrixInfo& info, int* calls = nullptr) {
  v1::ServerInfo server_info;
  server_info.set_max_chunk_bytes(1 << 20);
  server_info.set_max_requests_per_stream(4);
  server_info.add_node_addresses("127.0.0.1:1");
  ScriptedServer server({{kServerInfo, {.replies = {wire::Encode(server_info)}}},
                         {kGet, {.replies = {wire::Encode(info)}}},
                         {kDownload, IsInShards()}});
  const auto client = Client::Connect(server.address(), {.max_attempts = 1});
  if (!client.ok()) return client.status();
  absl::Status status = client->MatrixNamed("g").Download().status();
  if (calls != nullptr) *calls = server.calls(kDownload);
  return status;
}

TEST(Sharded, WhatMakesSenseIsFollowedToItsShards) {
  int calls = 0;
  const absl::Status status = DownloadFrom(InShards(), &calls);
  // The first shard, which says to be in shards itself: that goes no further.
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
}

TEST(Sharded, ARecordThatLiesIsRefusedBeforeAnythingIsReadThroughIt) {
  const std::vector<std::function<void(v1::MatrixInfo&)>> lies = {
      [](v1::MatrixInfo& info) { info.set_rows(5); },
      [](v1::MatrixInfo& info) { info.set_nnz(4); },
      [](v1::MatrixInfo& info) { info.set_rows(-1); },
      [](v1::MatrixInfo& info) { info.mutable_shards(1)->set_first_row(1); },
      [](v1::MatrixInfo& info) { info.mutable_shards(0)->set_rows(-2); },
      [](v1::MatrixInfo& info) { info.mutable_shards(0)->set_rows(int64_t{1} << 62); },
      [](v1::MatrixInfo& info) { info.mutable_shards(0)->set_cols(4); },
      [](v1::MatrixInfo& info) { info.mutable_shards(1)->set_nnz(-3); },
      [](v1::MatrixInfo& info) { info.mutable_shards(0)->set_row_numbers("r"); },
  };
  for (size_t i = 0; i < lies.size(); ++i) {
    SCOPED_TRACE(i);
    v1::MatrixInfo info = InShards();
    lies[i](info);
    int calls = 0;
    const absl::Status status = DownloadFrom(info, &calls);
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_EQ(calls, 1);
  }
}

TEST(Sharded, OneThatIsWholeByThenIsAskedForAsAWhole) {
  v1::MatrixInfo info = InShards();
  info.clear_shards();
  int calls = 0;
  const absl::Status status = DownloadFrom(info, &calls);
  // It says so five times more, as the node that says so may have yet to hear of it, and that is
  // the end.
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_EQ(calls, 6);
}

TEST(Sharded, ACallOfShardsThatSayNothingEndsWhenItIsTo) {
  v1::ServerInfo server_info;
  server_info.set_max_chunk_bytes(1 << 20);
  server_info.set_max_requests_per_stream(4);
  server_info.add_node_addresses("127.0.0.1:1");
  ScriptedServer server({{kServerInfo, {.replies = {wire::Encode(server_info)}}},
                         {kGet, {.replies = {wire::Encode(InShards())}}},
                         {kDownload, {.end = std::nullopt}}});
  const auto client = Client::Connect(server.address(), {.max_attempts = 1});
  ASSERT_TRUE(client.ok()) << client.status();
  const Matrix matrix = client->MatrixNamed("g");
  // From here on the client knows its shards.
  ASSERT_TRUE(matrix.Info().ok());
  Call<CsrMatrix> call = matrix.DownloadAsync();
  EXPECT_FALSE(call.WaitFor(std::chrono::milliseconds(20)));
  call.Cancel();
  const absl::Status cancelled = call.Wait().status();
  EXPECT_TRUE(absl::IsCancelled(cancelled)) << cancelled;
  const absl::Status late = matrix.Download({.timeout = std::chrono::milliseconds(30)}).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  { const Call<CsrMatrix> abandoned = matrix.DownloadAsync(); }
  // Products look at what they are given before anything is asked.
  std::vector<float> b(2 * 3), c(4 * 3);
  const absl::Status wrong =
      matrix.Spmm(DenseView(b.data(), 2, 3), MutableDenseView(c.data(), 4, 3)).status();
  EXPECT_TRUE(absl::IsInvalidArgument(wrong)) << wrong;
}

}  // namespace
}  // namespace sparsed::test
