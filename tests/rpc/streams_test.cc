// Many streams at once: nobody starves, a slow reader stalls itself alone.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <thread>

#include "tests/rpc/test_server.h"

namespace sparsed::test {
namespace {

TEST(Streams, SixtyFourClientsAtOnce) {
  TestServer server;
  const Pattern pattern = Uniform(500, 400, 6, 1);
  MustUpload(server, "s", pattern);
  const std::vector<float> b = FloatValues(400 * 16, 2);
  const std::string expected = Spmm(server.compute(), "s", 400, 16, b).arrays.at(0);
  const int64_t before = server.engine().budget().used();
  std::atomic<int> right = 0;
  std::vector<std::thread> clients;
  for (int client = 0; client < 64; ++client) {
    clients.emplace_back([&] {
      const auto channel = server.Connect();
      const auto stub = v1::Compute::NewStub(channel);
      grpc::ClientContext context;
      auto stream = stub->Spmm(&context);
      for (int round = 0; round < 5; ++round) {
        for (uint64_t id = 0; id < 3; ++id) {
          stream->Write(SpmmStartOf(id, "s", 400, 16));
          WriteArray<v1::SpmmRequest>(*stream, id, 0, BytesOf(b), 10000);
        }
        std::map<uint64_t, Answer> answers;
        if (!ReadUntilEnds(*stream, 3, &answers)) return;
        for (const auto& [id, answer] : answers) {
          if (answer.code() == 0 && answer.arrays.at(0) == expected) ++right;
        }
      }
      stream->WritesDone();
      stream->Finish();
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(right, 64 * 5 * 3);
  EXPECT_TRUE(server.ComesBackTo(before));
}

TEST(Streams, ASlowReaderStallsItsOwnStreamAlone) {
  TestServer server;
  MakeGood(server);
  MustUpload(server, "long", Rmat(14, 16, 7));
  const int64_t before = server.engine().budget().used();
  grpc::ClientContext context;
  auto slow = server.compute().Spgemm(&context);
  v1::SpgemmRequest request;
  request.mutable_start()->set_request_id(1);
  request.mutable_start()->set_left("long");
  request.mutable_start()->set_right("long");
  slow->Write(request);
  slow->WritesDone();
  v1::ComputeReply reply;
  ASSERT_TRUE(slow->Read(&reply));  // and then no more
  // On the same connection as on another one, others are served meanwhile.
  for (int i = 0; i < 20; ++i) ExpectGood(server);
  EXPECT_LT(server.engine().budget().used(), before + (int64_t{200} << 20));
  // When it reads on, it gets everything.
  std::map<uint64_t, Answer> answers;
  answers[1].Add(reply);
  ASSERT_TRUE(ReadUntilEnds(*slow, 1, &answers));
  EXPECT_TRUE(slow->Finish().ok());
  EXPECT_EQ(answers[1].code(), 0) << answers[1].message();
  EXPECT_EQ(static_cast<int64_t>(answers[1].arrays.at(1).size()), 4 * answers[1].ends[0].nnz());
  EXPECT_EQ(answers[1].Values<int64_t>(0).back(), answers[1].ends[0].nnz());
  // All but the worker slot's workspace, which it keeps.
  EXPECT_TRUE(Eventually([&] {
    return server.engine().budget().used() < before + (int64_t{16} << 20);
  })) << server.engine().budget().used() - before;
}

/// Bytes of SpMM's results that have yet to leave.
int64_t SendingBytes(TestServer& server) {
  grpc::ClientContext context;
  v1::Stats stats;
  EXPECT_TRUE(server.admin().GetStats(&context, v1::GetStatsRequest(), &stats).ok());
  for (const v1::RequestsInFlight& requests : stats.in_flight()) {
    if (requests.operation() == "spmm" && requests.activity() == "sending") return requests.bytes();
  }
  return 0;
}

TEST(Streams, ACancelledResultIsNotSentToItsEnd) {
  TestServer server;
  constexpr int64_t kRows = 8192, kCols = 4, kWidth = 1024;  // 32 MiB, more than is on the way
  MustUpload(server, "tall", Uniform(kRows, kCols, 2, 1));
  grpc::ClientContext context;
  auto stream = server.compute().Spmm(&context);
  stream->Write(SpmmStartOf(1, "tall", kCols, kWidth));
  WriteArray<v1::SpmmRequest>(*stream, 1, 0, BytesOf(FloatValues(kCols * kWidth, 2)));
  std::map<uint64_t, Answer> answers;
  v1::ComputeReply reply;
  do {
    ASSERT_TRUE(stream->Read(&reply));
    answers[1].Add(reply);
  } while (!reply.has_chunk());
  // Its call has ended, what it computed waits for the reader.
  ASSERT_TRUE(Eventually([&] { return server.engine().executor().in_flight() == 0; }));
  ASSERT_TRUE(Eventually([&] { return SendingBytes(server) > kRows * kWidth; }));
  v1::SpmmRequest cancel;
  cancel.mutable_cancel()->set_request_id(1);
  stream->Write(cancel);
  stream->WritesDone();
  // The cancel comes through while nothing is read.
  ASSERT_TRUE(Eventually([&] { return SendingBytes(server) < kRows * kWidth; }));
  ASSERT_TRUE(ReadUntilEnds(*stream, 1, &answers));
  EXPECT_EQ(answers[1].code(), grpc::CANCELLED) << answers[1].message();
  EXPECT_LT(static_cast<int64_t>(answers[1].arrays.at(0).size()), kRows * kWidth * 4);
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(Streams, SmallRequestsPassALongOneOnTheSameStream) {
  TestServer server;
  MustUpload(server, "long", Rmat(14, 16, 7));
  MustUpload(server, "square", Band(30, 1));
  grpc::ClientContext context;
  auto stream = server.compute().Spgemm(&context);
  v1::SpgemmRequest request;
  for (const uint64_t id : {1, 2}) {
    request.mutable_start()->set_request_id(id);
    request.mutable_start()->set_left(id == 1 ? "long" : "square");
    request.mutable_start()->set_right(id == 1 ? "long" : "square");
    stream->Write(request);
  }
  stream->WritesDone();
  std::vector<uint64_t> order;
  v1::ComputeReply reply;
  while (stream->Read(&reply)) {
    if (reply.has_end()) order.push_back(reply.end().request_id());
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(order, (std::vector<uint64_t>{2, 1}));
}

TEST(Streams, OpenedAndClosedByTheHundred) {
  TestServer server;
  MakeGood(server);
  ExpectGood(server);  // the worker slot keeps its workspace
  const int64_t before = server.engine().budget().used();
  // On one connection, which has room for fewer: what is not over on the server is in the way.
  for (int i = 0; i < 300; ++i) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    auto stream = server.compute().Spmm(&context);
    // Every other one with a request whose operand never comes.
    if (i % 2 == 0) {
      ASSERT_TRUE(stream->Write(SpmmStartOf(1, "good", 50, 3)));
      ASSERT_TRUE(stream->Write(ChunkOf<v1::SpmmRequest>(1, 0, 0, std::string(12, 'x'))));
    }
    if (i % 3 == 0) {
      // Some while the request is under way, some perhaps before it came.
      if (i % 4 == 0) {
        ASSERT_TRUE(Eventually([&] { return server.engine().executor().in_flight() == 1; }));
      }
      context.TryCancel();
    } else {
      stream->WritesDone();
    }
    v1::ComputeReply reply;
    std::map<uint64_t, Answer> answers;
    while (stream->Read(&reply)) answers[RequestOf(reply)].Add(reply);
    EXPECT_EQ(stream->Finish().error_code(), i % 3 == 0 ? grpc::CANCELLED : grpc::OK);
    if (i % 3 != 0) {
      EXPECT_EQ(answers.size(), i % 2 == 0 ? 1u : 0u);
      if (i % 2 == 0) {
        EXPECT_EQ(answers[1].code(), grpc::INVALID_ARGUMENT);
      }
    }
    ASSERT_TRUE(server.ComesBackTo(before)) << "stream " << i;
  }
  ExpectGood(server);
}

}  // namespace
}  // namespace sparsed::test
