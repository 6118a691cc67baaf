// What is announced takes no memory, and one connection's requests cannot take all of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <vector>

#include "tests/rpc/test_server.h"

namespace sparsed::test {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

v1::PutBufferRequest PutHeaderOf(const std::string& name, int64_t bytes) {
  v1::PutBufferRequest request;
  request.mutable_header()->set_name(name);
  request.mutable_header()->mutable_shape()->set_rows(bytes / 4096);
  request.mutable_header()->mutable_shape()->set_cols(1024);
  request.mutable_header()->mutable_shape()->set_type(v1::ELEMENT_TYPE_F32);
  return request;
}

/// A Put under way.
struct Putting {
  Putting(const std::shared_ptr<grpc::Channel>& channel, int64_t bytes)
      : stub(v1::Buffers::NewStub(channel)), writer(stub->Put(&context, &info)) {
    writer->Write(PutHeaderOf("put", bytes));
  }
  bool Send(int64_t offset, int64_t bytes) {
    const std::string data(static_cast<size_t>(kMiB), 'x');
    for (int64_t sent = 0; sent < bytes; sent += kMiB) {
      if (!writer->Write(ChunkOf<v1::PutBufferRequest>(0, 0, offset + sent, data))) return false;
    }
    return true;
  }

  grpc::ClientContext context;
  v1::BufferInfo info;
  std::unique_ptr<v1::Buffers::Stub> stub;
  std::unique_ptr<grpc::ClientWriter<v1::PutBufferRequest>> writer;
};

/// On TCP, where connections can be told apart, with 256 MiB, of which a connection has 64.
void Shared(server::Config& config) {
  config.listen = {"127.0.0.1:0"};
  config.host_memory_bytes = 256 * kMiB;
  config.preparation_memory_bytes = 64 * kMiB;
  config.connection_memory_bytes = 64 * kMiB;
}

/// Requests of which the server knows.
int64_t InFlight(TestServer& server, const std::string& activity) {
  grpc::ClientContext context;
  v1::Stats stats;
  EXPECT_TRUE(server.admin().GetStats(&context, v1::GetStatsRequest(), &stats).ok());
  int64_t count = 0;
  for (const v1::RequestsInFlight& requests : stats.in_flight()) {
    if (requests.activity() == activity) count += requests.count();
  }
  return count;
}

TEST(Announced, BytesTakeNoMemory) {
  TestServer server([](server::Config& config) {
    config.host_memory_bytes = 256 * kMiB;
    config.preparation_memory_bytes = 64 * kMiB;
    config.connection_memory_bytes = 256 * kMiB;
  });
  MakeGood(server);
  const int64_t before = server.engine().budget().used();
  std::vector<std::unique_ptr<Putting>> puts;
  for (int i = 0; i < 10; ++i) {
    puts.push_back(std::make_unique<Putting>(server.channel(), 200 * kMiB));
  }
  grpc::ClientContext context;
  auto stream = server.compute().Spmm(&context);
  for (uint64_t id = 0; id < 10; ++id) stream->Write(SpmmStartOf(id, "good", 50, kMiB / 2));
  ASSERT_TRUE(Eventually([&] { return InFlight(server, "receiving") == 20; }));
  EXPECT_EQ(server.engine().budget().used(), before);
  ExpectGood(server);
  // A byte takes it.
  stream->Write(ChunkOf<v1::SpmmRequest>(3, 0, 0, "x"));
  EXPECT_TRUE(Eventually([&] { return server.engine().budget().used() >= before + 100 * kMiB; }));
  for (const auto& put : puts) put->context.TryCancel();
  context.TryCancel();
  EXPECT_TRUE(server.ComesBackTo(before + kMiB)) << "worker slots may keep some workspace";
}

TEST(Announced, WhatCannotFitIsRefusedAtOnce) {
  TestServer server(Shared);
  for (const auto& [bytes, flag] : std::map<int64_t, std::string>{
           {200 * kMiB, "--connection-memory"}, {600 * kMiB, "--host-memory"}}) {
    Putting put(server.channel(), bytes);
    const grpc::Status status = put.writer->Finish();
    EXPECT_EQ(status.error_code(), grpc::RESOURCE_EXHAUSTED);
    EXPECT_THAT(status.error_message(), HasSubstr(flag));
  }
}

TEST(Share, OfAConnectionIsNoOneElses) {
  TestServer server(Shared);
  Putting first(server.channel(), 60 * kMiB);
  ASSERT_TRUE(first.Send(0, 50 * kMiB));
  ASSERT_TRUE(Eventually([&] { return server.engine().budget().used() >= 50 * kMiB; }));
  Putting second(server.channel(), 60 * kMiB);
  while (second.Send(0, 60 * kMiB)) {
  }
  const grpc::Status status = second.writer->Finish();
  EXPECT_EQ(status.error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("this connection holds"));
  EXPECT_THAT(status.error_message(), HasSubstr("--connection-memory"));
  // Somebody else has a share of his own.
  Putting other(server.Connect(), 60 * kMiB);
  ASSERT_TRUE(other.Send(0, 60 * kMiB));
  other.writer->WritesDone();
  EXPECT_TRUE(other.writer->Finish().ok());
  // What came to its end is no request's any more.
  ASSERT_TRUE(first.Send(50 * kMiB, 10 * kMiB));
  first.writer->WritesDone();
  EXPECT_TRUE(first.writer->Finish().ok());
  Putting again(server.channel(), 60 * kMiB);
  ASSERT_TRUE(again.Send(0, 60 * kMiB));
  again.writer->WritesDone();
  EXPECT_TRUE(again.writer->Finish().ok());
}

TEST(Share, CountsUnreadResults) {
  TestServer server(Shared);
  MakeGood(server);
  // 16 KiB of an operand make 24 MiB of a result.
  MustUpload(server, "tall", Uniform(100000, 64, 2, 3));
  grpc::ClientContext context;
  auto stream = server.compute().Spmm(&context);
  const std::vector<float> b = FloatValues(64 * 64, 2);
  for (uint64_t id = 1; id <= 4; ++id) {
    stream->Write(SpmmStartOf(id, "tall", 64, 64));
    WriteArray<v1::SpmmRequest>(*stream, id, 0, BytesOf(b));
  }
  ASSERT_TRUE(Eventually([&] { return InFlight(server, "sending") == 4; }));
  ASSERT_TRUE(Eventually([&] { return server.engine().executor().in_flight() == 0; }));
  std::map<uint64_t, Answer> answers;
  ASSERT_TRUE(ReadUntilEnds(*stream, 4, &answers));
  int refused = 0;
  for (const auto& [id, answer] : answers) {
    if (answer.code() == 0) {
      EXPECT_EQ(answer.Values<float>(0).size(), 100000u * 64);
      continue;
    }
    ++refused;
    EXPECT_EQ(answer.code(), grpc::RESOURCE_EXHAUSTED) << answer.message();
    EXPECT_THAT(answer.message(), HasSubstr("read results"));
  }
  EXPECT_GE(refused, 1);
  EXPECT_LE(refused, 3);
  // They were read.
  stream->Write(SpmmStartOf(9, "tall", 64, 64));
  WriteArray<v1::SpmmRequest>(*stream, 9, 0, BytesOf(b));
  ASSERT_TRUE(ReadUntilEnds(*stream, 1, &answers));
  EXPECT_EQ(answers[9].code(), 0) << answers[9].message();
}

}  // namespace
}  // namespace sparsed::test
