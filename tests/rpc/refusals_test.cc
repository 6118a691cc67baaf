// Host memory as callers meet it: what is refused says whether waiting helps, and what is counted
// is shown.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>

#include "tests/rpc/test_server.h"

namespace sparsed::test {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr int64_t kMemory = int64_t{64} << 20;
constexpr int64_t kRows = 1000;
constexpr int64_t kMost = kMemory / kRows / 4;  ///< columns of f32 that fill it

void Small(server::Config& config) {
  config.host_memory_bytes = kMemory;
  config.preparation_memory_bytes = int64_t{1} << 20;
}

/// Seconds that a status says to wait, if it does.
std::optional<double> RetryDelayOf(const v1::Status& status) {
  for (const google::protobuf::Any& detail : status.details()) {
    v1::RetryInfo retry;
    if (detail.type_url() != "type.googleapis.com/google.rpc.RetryInfo" ||
        !retry.ParseFromString(detail.value())) {
      continue;
    }
    return static_cast<double>(retry.retry_delay().seconds()) + 1e-9 * retry.retry_delay().nanos();
  }
  return std::nullopt;
}

std::optional<double> RetryDelayOf(const grpc::Status& status) {
  v1::Status details;
  if (!details.ParseFromString(status.error_details())) return std::nullopt;
  if (!status.error_details().empty()) {
    EXPECT_EQ(details.code(), status.error_code());
    EXPECT_EQ(details.message(), status.error_message());
  }
  return RetryDelayOf(details);
}

grpc::Status PutZeros(TestServer& server, const std::string& name, int64_t rows, int64_t cols) {
  grpc::ClientContext context;
  v1::BufferInfo info;
  auto writer = server.buffers().Put(&context, &info);
  v1::PutBufferRequest request;
  v1::PutBufferHeader& header = *request.mutable_header();
  header.set_name(name);
  header.set_zeros(true);
  header.mutable_shape()->set_rows(rows);
  header.mutable_shape()->set_cols(cols);
  header.mutable_shape()->set_type(v1::ELEMENT_TYPE_F32);
  writer->Write(request);
  writer->WritesDone();
  return writer->Finish();
}

TEST(Memory, RefusalsSayWhetherWaitingHelps) {
  TestServer server(Small);
  MustUpload(server, "s", Uniform(kRows, kRows, 5, 1));
  // More than there is: never.
  grpc::Status put = PutZeros(server, "b", kRows, kMost + 1);
  EXPECT_EQ(put.error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_THAT(put.error_message(), HasSubstr("the buffer needs"));
  EXPECT_THAT(put.error_message(), HasSubstr("in all"));
  EXPECT_THAT(put.error_message(), Not(HasSubstr("retry")));
  EXPECT_EQ(RetryDelayOf(put), std::nullopt);

  // Operand and result each fit, never both.
  const Answer both = Spmm(server.compute(), "s", kRows, kMost * 2 / 3, {});
  EXPECT_EQ(both.code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_THAT(both.message(), HasSubstr("in all"));
  EXPECT_EQ(RetryDelayOf(both.ends.front().status()), std::nullopt);

  // A request holds half from the first byte of its operand on, as long as the rest does not come.
  grpc::ClientContext context;
  auto stream = server.compute().Spmm(&context);
  ASSERT_TRUE(stream->Write(SpmmStartOf(1, "s", kRows, kMost / 2)));
  ASSERT_TRUE(stream->Write(ChunkOf<v1::SpmmRequest>(1, 0, 0, "x")));
  const int64_t operand = kRows * (kMost / 2) * static_cast<int64_t>(sizeof(float));
  ASSERT_TRUE(Eventually([&] { return server.engine().budget().used() >= operand; }));
  put = PutZeros(server, "b", kRows, kMost * 3 / 4);
  EXPECT_EQ(put.error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_THAT(put.error_message(), HasSubstr("retry later"));
  ASSERT_NE(RetryDelayOf(put), std::nullopt);
  EXPECT_GT(*RetryDelayOf(put), 0);
  ASSERT_TRUE(stream->Write(SpmmStartOf(2, "s", kRows, kMost * 3 / 4)));
  std::map<uint64_t, Answer> answers;
  ASSERT_TRUE(ReadUntilEnds(*stream, 1, &answers));
  EXPECT_EQ(answers[2].code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_THAT(answers[2].message(), HasSubstr("the request needs"));
  EXPECT_NE(RetryDelayOf(answers[2].ends.front().status()), std::nullopt);
  context.TryCancel();
  stream->Finish();

  // A buffer holds half, until somebody deletes it. What was still being received goes after the
  // end of the call, with whoever received it.
  ASSERT_TRUE(Eventually([&] { return server.engine().budget().used() < operand; }));
  ASSERT_TRUE(PutZeros(server, "half", kRows, kMost / 2).ok());
  put = PutZeros(server, "b", kRows, kMost * 3 / 4);
  EXPECT_EQ(put.error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_THAT(put.error_message(), HasSubstr("delete matrices or buffers"));
  EXPECT_THAT(put.error_message(), Not(HasSubstr("retry")));
  EXPECT_EQ(RetryDelayOf(put), std::nullopt);
}

/// Without rows or columns a matrix takes operands of any width, as it seems.
TEST(Memory, SizesOfEmptyOperandsDoNotOverflow) {
  TestServer server(Small);
  MustUpload(server, "empty", Pattern());
  const auto multiply = [&](int64_t k) {
    grpc::ClientContext context;
    auto stream = server.compute().Spmm(&context);
    stream->Write(SpmmStartOf(1, "empty", 0, k));
    stream->WritesDone();
    std::map<uint64_t, Answer> answers;
    EXPECT_TRUE(ReadUntilEnds(*stream, 1, &answers));
    EXPECT_TRUE(stream->Finish().ok());
    return answers[1];
  };
  for (const int64_t k : {std::numeric_limits<int64_t>::max(), int64_t{1} << 60}) {
    const Answer refused = multiply(k);
    EXPECT_EQ(refused.code(), grpc::INVALID_ARGUMENT) << k;
    EXPECT_THAT(refused.message(), HasSubstr("at most 2^40"));
  }
  EXPECT_EQ(multiply(int64_t{1} << 40).code(), 0) << "nothing to do";
}

/// A product's first arrays fit, all of them do not, and nobody else has anything.
TEST(Memory, AProductDoesNotWaitForItself) {
  TestServer server(Small);
  constexpr int64_t kMany = 50'000;
  MustUpload(server, "s", Uniform(kMany, kMany, 1, 1));
  ASSERT_TRUE(Eventually([&] { return server.engine().preparation().pending() == 0; }));
  const engine::Budget& budget = server.engine().budget();
  const int64_t left = kMany * 8 + 100'000;
  const int64_t rows = (budget.limit() - budget.used() - left) / 4;
  ASSERT_TRUE(PutZeros(server, "rest", rows, 1).ok());
  grpc::ClientContext context;
  auto stream = server.compute().Spgemm(&context);
  v1::SpgemmRequest request;
  request.mutable_start()->set_request_id(1);
  request.mutable_start()->set_left("s");
  request.mutable_start()->set_right("s");
  stream->Write(request);
  stream->WritesDone();
  std::map<uint64_t, Answer> answers;
  ASSERT_TRUE(ReadUntilEnds(*stream, 1, &answers));
  EXPECT_EQ(answers[1].code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_THAT(answers[1].message(), Not(HasSubstr("retry")));
  EXPECT_EQ(RetryDelayOf(answers[1].ends.front().status()), std::nullopt);
}

/// What is parsed may take twenty times its bytes.
TEST(Requests, OfOneMessageAreSmall) {
  TestServer server;
  v1::ListMatricesRequest list;
  list.set_prefix(std::string(100'000, 'x'));
  grpc::ClientContext context;
  v1::ListMatricesReply reply;
  const grpc::Status status = server.catalog().List(&context, list, &reply);
  EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("larger than 65536"));
  v1::WatchRequest watch;
  watch.set_name(std::string(100'000, 'x'));
  grpc::ClientContext watching;
  const auto reader = server.catalog().Watch(&watching, watch);
  EXPECT_EQ(reader->Finish().error_code(), grpc::INVALID_ARGUMENT);
}

TEST(Memory, WhatIsKeptIsShown) {
  TestServer server(WithPages);
  ASSERT_TRUE(PutZeros(server, "b", 1 << 10, 1 << 10).ok());
  grpc::ClientContext context, again;
  v1::DeleteBufferRequest request;
  v1::DeleteBufferReply reply;
  request.set_name("b");
  ASSERT_TRUE(server.buffers().Delete(&context, request, &reply).ok());
  v1::Stats stats;
  ASSERT_TRUE(server.admin().GetStats(&again, {}, &stats).ok());
  // The uses' sum is what is in use; what is kept, and set aside, is in none.
  int64_t sum = 0;
  for (const auto& [use, bytes] : stats.memory_bytes()) sum += use == "kept" ? 0 : bytes;
  ASSERT_EQ(stats.devices(0).name(), "cpu");
  const v1::DeviceUse& cpu = stats.devices(0);
  EXPECT_EQ(cpu.memory_bytes(), sum);
  EXPECT_GE(cpu.memory_peak_bytes(), cpu.memory_bytes());
  EXPECT_EQ(stats.memory_bytes().count("wire"), 0u);
  grpc::ClientContext third;
  v1::ServerInfo info;
  ASSERT_TRUE(server.admin().GetServerInfo(&third, {}, &info).ok());
  EXPECT_EQ(cpu.memory_limit_bytes() + cpu.memory_reserved_bytes(), info.host_memory_limit_bytes());
  EXPECT_EQ(cpu.memory_limit_bytes(), server.engine().budget().limit());
  EXPECT_EQ(stats.memory_bytes().at("kept"), cpu.memory_kept_bytes());
  EXPECT_EQ(stats.memory_bytes().at("buffers"), 0);
  EXPECT_THAT(server.Page("/metrics"),
              HasSubstr("sparsed_memory_bytes{device=\"cpu\",use=\"kept\"}"));
  EXPECT_THAT(server.Page("/api/status"), HasSubstr("\"kept\":"));
  EXPECT_TRUE(Eventually([&] { return server.engine().budget().kept() == 0; })) << "nobody took it";
}

}  // namespace
}  // namespace sparsed::test
