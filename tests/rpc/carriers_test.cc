// Requests whose chunks come and go by several streams.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/rpc/raw_stream.h"
#include "tests/rpc/test_server.h"

namespace sparsed::test {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 3001, kCols = 2003, kWidth = 251;
constexpr char kCarry[] = "/sparsed.v1.Compute/Carry";

/// What came on a stream or carrier.
struct Came {
  std::map<uint64_t, std::vector<v1::Chunk>> chunks;
  std::map<uint64_t, v1::End> ends;

  void Add(const v1::CarryReply& reply) {
    chunks[reply.chunk().request_id()].push_back(reply.chunk());
  }
  void Add(const v1::ComputeReply& reply) {
    if (reply.has_chunk()) chunks[reply.chunk().request_id()].push_back(reply.chunk());
    if (reply.has_end()) ends[reply.end().request_id()] = reply.end();
  }
  size_t BytesOf(uint64_t id) const {
    size_t bytes = 0;
    if (!chunks.contains(id)) return 0;
    for (const v1::Chunk& chunk : chunks.at(id)) bytes += chunk.data().size();
    return bytes;
  }
};

/// One on a connection of its own.
class OpenCarrier {
 public:
  explicit OpenCarrier(TestServer& server) : OpenCarrier(server.Connect()) {}
  explicit OpenCarrier(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(v1::Compute::NewStub(channel)), stream_(stub_->Carry(&context_)) {
    v1::CarryReply reply;
    EXPECT_TRUE(stream_->Read(&reply));
    name_ = reply.carrier();
    EXPECT_EQ(name_.size(), 16u);
  }
  const std::string& name() const { return name_; }
  grpc::ClientReaderWriter<v1::CarryRequest, v1::CarryReply>& stream() { return *stream_; }
  grpc::ClientContext& context() { return context_; }

  bool Write(uint64_t id, uint32_t array, uint64_t offset, std::string_view bytes) {
    return stream_->Write(ChunkOf<v1::CarryRequest>(id, array, offset, bytes));
  }
  /// Reads until it ends; returns how.
  grpc::Status ReadAll(Came* came = nullptr) {
    v1::CarryReply reply;
    while (stream_->Read(&reply)) {
      if (came != nullptr) came->Add(reply);
    }
    return stream_->Finish();
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<v1::Compute::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::CarryRequest, v1::CarryReply>> stream_;
  std::string name_;
};

v1::SpmmRequest StartOf(uint64_t id, const std::string& matrix, int64_t rows, int64_t k,
                        const std::vector<std::string>& carriers) {
  v1::SpmmRequest request = SpmmStartOf(id, matrix, rows, k);
  for (const std::string& name : carriers) request.mutable_start()->add_carriers(name);
  return request;
}

/// A stream on the server's own channel.
struct OpenStream {
  explicit OpenStream(TestServer& server) : stream(server.compute().Spmm(&context)) {}
  bool Read(size_t ends, Came* came) {
    v1::ComputeReply reply;
    while (came->ends.size() < ends && stream->Read(&reply)) came->Add(reply);
    return came->ends.size() == ends;
  }
  /// The next end.
  Answer ReadOne() {
    Answer answer;
    v1::ComputeReply reply;
    do {
      if (!stream->Read(&reply)) return answer;
    } while (!reply.has_end());
    answer.Add(reply);
    return answer;
  }
  /// It takes a request that needs nothing but itself.
  void ExpectGoodOf(uint64_t id, const std::vector<std::string>& carriers = {}) {
    const std::vector<float> b = FloatValues(50 * 3, 2);
    stream->Write(StartOf(id, "good", 50, 3, carriers));
    WriteArray<v1::SpmmRequest>(*stream, id, 0, BytesOf(b));
    const Answer answer = ReadOne();
    EXPECT_EQ(answer.code(), 0) << answer.message();
  }
  grpc::ClientContext context;
  std::unique_ptr<SpmmStream> stream;
};

/// Requests `ids` at once, their operands dealt over the stream and all carriers; each result is to
/// be `expected`.
void Multiply(TestServer& server, std::vector<std::unique_ptr<OpenCarrier>>& carriers,
              const std::vector<uint64_t>& ids, std::string_view b, const std::string& expected) {
  OpenStream open(server);
  std::vector<std::string> names;
  for (const auto& carrier : carriers) names.push_back(carrier->name());
  for (const uint64_t id : ids) {
    ASSERT_TRUE(open.stream->Write(StartOf(id, "s", kCols, kWidth, names)));
  }
  constexpr size_t kChunk = 50'021;
  std::vector<std::thread> threads;
  std::vector<Came> parts(carriers.size() + 1);
  for (size_t turn = 0; turn <= carriers.size(); ++turn) {
    threads.emplace_back([&, turn] {
      size_t chunk = 0;
      for (size_t at = 0; at < b.size(); at += kChunk, ++chunk) {
        if (chunk % (carriers.size() + 1) != turn) continue;
        for (const uint64_t id : ids) {
          const std::string_view part = b.substr(at, kChunk);
          ASSERT_TRUE(turn == carriers.size()
                          ? open.stream->Write(ChunkOf<v1::SpmmRequest>(id, 0, at, part))
                          : carriers[turn]->Write(id, 0, at, part));
        }
      }
      if (turn < carriers.size()) {
        carriers[turn]->stream().WritesDone();
        EXPECT_TRUE(carriers[turn]->ReadAll(&parts[turn]).ok());
      } else {
        EXPECT_TRUE(open.Read(ids.size(), &parts[turn]));
        open.stream->WritesDone();
        EXPECT_TRUE(open.stream->Finish().ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const uint64_t id : ids) {
    const v1::Status& status = parts.back().ends[id].status();
    EXPECT_EQ(status.code(), 0) << status.message();
    // Every byte came once, by one of them.
    std::string result(expected.size(), 'x');
    size_t bytes = 0;
    for (Came& part : parts) {
      bytes += part.BytesOf(id);
      for (const v1::Chunk& chunk : part.chunks[id]) {
        ASSERT_LE(chunk.offset() + chunk.data().size(), result.size());
        result.replace(chunk.offset(), chunk.data().size(), chunk.data());
      }
    }
    EXPECT_EQ(bytes, expected.size());
    EXPECT_TRUE(result == expected) << "request " << id;
  }
}

TEST(Carriers, ShareOutOperandsAndResults) {
  TestServer server(WithPages);
  MustUpload(server, "s", Uniform(kRows, kCols, 5, 1));
  const std::vector<float> b = FloatValues(kCols * kWidth, 2);
  const std::string expected = Spmm(server.compute(), "s", kCols, kWidth, b).arrays.at(0);
  ASSERT_EQ(expected.size(), static_cast<size_t>(kRows * kWidth * 4));
  const int64_t before = server.engine().budget().used();
  EXPECT_EQ(server.Sample(R"(sparsed_carried_bytes_total{direction="in"})"), 0);
  const std::string in_all = R"(sparsed_transfer_bytes_total{direction="in",path="stream"})";
  const double streamed = server.Sample(in_all);
  for (const size_t count : {1, 3}) {
    std::vector<std::unique_ptr<OpenCarrier>> carriers;
    while (carriers.size() < count) carriers.push_back(std::make_unique<OpenCarrier>(server));
    Multiply(server, carriers, {1, 2, 7}, BytesOf(b), expected);
  }
  EXPECT_TRUE(server.ComesBackTo(before));
  // What they carried is a part of what all streams did.
  const auto bytes = static_cast<double>(b.size() * sizeof(float));
  EXPECT_EQ(server.Sample(in_all) - streamed, 6 * bytes);
  const double in = server.Sample(R"(sparsed_carried_bytes_total{direction="in"})");
  EXPECT_GT(in, 3 * bytes);
  EXPECT_LT(in, 6 * bytes);
  EXPECT_GT(server.Sample(R"(sparsed_carried_bytes_total{direction="out"})"), 0);
}

TEST(Carriers, AChunkBeforeItsRequestWaits) {
  TestServer server;
  MakeGood(server);
  const std::string b(BytesOf(FloatValues(50 * 3, 2)));
  for (int round = 0; round < 20; ++round) {
    OpenStream open(server);
    OpenCarrier carrier(server);
    // The first is of a carrier that is nobody's yet, the second of one that is the stream's.
    for (const uint64_t id : {1, 2}) {
      carrier.Write(id, 0, 0, b.substr(0, 300));
      carrier.Write(id, 0, 300, b.substr(300));
      open.stream->Write(StartOf(id, "good", 50, 3, {carrier.name()}));
      const Answer answer = open.ReadOne();
      ASSERT_EQ(answer.code(), 0) << answer.message();
    }
    // Of one that is refused it is dropped.
    carrier.Write(3, 0, 0, b);
    open.stream->Write(StartOf(3, "good", 51, 3, {carrier.name()}));
    EXPECT_EQ(open.ReadOne().code(), grpc::INVALID_ARGUMENT);
    carrier.Write(3, 0, 0, b);
    carrier.Write(4, 0, 0, b);
    open.stream->Write(StartOf(4, "good", 50, 3, {carrier.name()}));
    EXPECT_EQ(open.ReadOne().code(), 0);
  }
}

TEST(Carriers, AreNotGuessedAndNotTakenFromOthers) {
  TestServer server;
  MakeGood(server);
  OpenStream open(server), other(server);
  OpenCarrier carrier(server);
  for (const std::string& forged : {std::string(), std::string(16, 'x'), carrier.name() + "x"}) {
    open.stream->Write(StartOf(1, "good", 50, 3, {carrier.name(), forged}));
    const Answer answer = open.ReadOne();
    EXPECT_EQ(answer.code(), grpc::UNAVAILABLE);
    EXPECT_THAT(answer.message(), HasSubstr("is not known here"));
  }
  // It was named first by the stream above.
  other.stream->Write(StartOf(1, "good", 50, 3, {carrier.name()}));
  const Answer taken = other.ReadOne();
  EXPECT_EQ(taken.code(), grpc::FAILED_PRECONDITION);
  EXPECT_THAT(taken.message(), HasSubstr("belongs to another stream"));
  open.stream->Write(StartOf(2, "good", 50, 3, std::vector<std::string>(17, carrier.name())));
  EXPECT_THAT(open.ReadOne().message(), HasSubstr("at most 16 carriers"));
  open.ExpectGoodOf(3, {carrier.name(), carrier.name()});
  other.ExpectGoodOf(2);
  // One that has ended is forgotten.
  OpenCarrier closed(server);
  closed.stream().WritesDone();
  EXPECT_TRUE(closed.ReadAll().ok());
  open.stream->Write(StartOf(4, "good", 50, 3, {closed.name()}));
  EXPECT_EQ(open.ReadOne().code(), grpc::UNAVAILABLE);
}

TEST(Carriers, OfOneStreamAreBounded) {
  TestServer server;
  MakeGood(server);
  OpenStream open(server);
  std::vector<std::unique_ptr<OpenCarrier>> carriers;
  for (uint64_t id = 1; id <= 16; ++id) {
    carriers.push_back(std::make_unique<OpenCarrier>(server));
    open.ExpectGoodOf(id, {carriers.back()->name()});
  }
  OpenCarrier late(server);
  open.stream->Write(StartOf(17, "good", 50, 3, {late.name()}));
  EXPECT_THAT(open.ReadOne().message(), HasSubstr("a stream has at most 16 carriers"));
}

TEST(Carriers, WrongChunksEndTheirRequestAlone) {
  TestServer server;
  MakeGood(server);
  ExpectGood(server);  // the worker slot keeps its workspace
  const int64_t before = server.engine().budget().used();
  const std::string b(BytesOf(FloatValues(50 * 3, 2)));
  OpenStream open(server);
  OpenCarrier one(server), two(server);
  const std::vector<std::string> both = {one.name(), two.name()};
  const auto expect = [&](uint64_t id, const std::string& sentence) {
    const Answer answer = open.ReadOne();
    EXPECT_EQ(answer.code(), grpc::INVALID_ARGUMENT) << id;
    EXPECT_THAT(answer.message(), HasSubstr(sentence)) << id;
  };
  open.stream->Write(StartOf(1, "good", 50, 3, both));
  one.Write(1, 3, 0, b);
  expect(1, "announced as array 3");
  open.stream->Write(StartOf(2, "good", 50, 3, both));
  one.Write(2, 0, 0, b.substr(0, 400));
  two.Write(2, 0, 300, b.substr(300));
  expect(2, "overlaps");
  open.stream->Write(StartOf(3, "good", 50, 3, both));
  two.Write(3, 0, 500, b);
  expect(3, "goes beyond the end");
  open.stream->Write(StartOf(4, "good", 50, 3, {one.name()}));
  two.Write(4, 0, 0, b);
  expect(4, "by a carrier that the request does not name");
  // What comes for those is dropped, and both go on.
  one.Write(2, 0, 0, b);
  two.Write(1, 0, 0, b);
  open.stream->Write(StartOf(5, "good", 50, 3, both));
  one.Write(5, 0, 0, b.substr(0, 300));
  two.Write(5, 0, 300, b.substr(300));
  EXPECT_EQ(open.ReadOne().code(), 0);
  EXPECT_TRUE(server.ComesBackTo(before));
}

TEST(Carriers, ThatBreakFailTheRequestsThatUseThem) {
  TestServer server;
  MakeGood(server);
  ExpectGood(server);  // the worker slot keeps its workspace
  const int64_t before = server.engine().budget().used();
  const std::string b(BytesOf(FloatValues(50 * 3, 2)));
  OpenStream open(server);
  auto breaks = std::make_unique<OpenCarrier>(server);
  OpenCarrier stays(server);
  open.stream->Write(StartOf(1, "good", 50, 3, {breaks->name(), stays.name()}));
  open.stream->Write(StartOf(2, "good", 50, 3, {stays.name()}));
  breaks->Write(1, 0, 0, b.substr(0, 100));
  stays.Write(1, 0, 100, b.substr(100, 100));
  stays.Write(2, 0, 0, b.substr(0, 100));
  ASSERT_TRUE(Eventually([&] { return server.engine().executor().in_flight() == 2; }));
  breaks->context().TryCancel();
  const Answer failed = open.ReadOne();
  EXPECT_EQ(failed.code(), grpc::UNAVAILABLE);
  EXPECT_EQ(failed.ends.at(0).request_id(), 1u);
  EXPECT_THAT(failed.message(), HasSubstr("a carrier of the request ended: the client is gone"));
  stays.Write(2, 0, 100, b.substr(100));
  EXPECT_EQ(open.ReadOne().code(), 0);

  // Bytes that are no message.
  RawStream raw(server.Connect(), kCarry);
  std::string first;
  ASSERT_TRUE(raw.Read(&first));
  v1::CarryReply reply;
  ASSERT_TRUE(reply.ParseFromString(first));
  open.stream->Write(StartOf(3, "good", 50, 3, {reply.carrier()}));
  open.stream->Write(ChunkOf<v1::SpmmRequest>(3, 0, 0, b.substr(0, 100)));
  open.ExpectGoodOf(4);
  raw.Write("\xff\xff\xff");
  const Answer malformed = open.ReadOne();
  EXPECT_EQ(malformed.code(), grpc::INVALID_ARGUMENT);
  EXPECT_THAT(malformed.message(), HasSubstr("the bytes are not a sparsed.v1.CarryRequest"));
  EXPECT_FALSE(raw.Read(&first));
  EXPECT_EQ(raw.Finish().error_code(), grpc::INVALID_ARGUMENT);
  RawStream empty(server.Connect(), kCarry);
  ASSERT_TRUE(empty.Read(&first));
  empty.Write("");
  EXPECT_FALSE(empty.Read(&first));
  EXPECT_THAT(empty.Finish().error_message(), HasSubstr("has no chunk"));
  open.ExpectGoodOf(5, {stays.name()});
  EXPECT_TRUE(server.ComesBackTo(before));
}

TEST(Carriers, EndWithTheirStream) {
  TestServer server;
  MakeGood(server);
  for (const bool cancelled : {false, true}) {
    OpenCarrier carrier(server), nobodys(server);
    auto open = std::make_unique<OpenStream>(server);
    open->ExpectGoodOf(1, {carrier.name()});
    if (cancelled) {
      open->stream->Write(StartOf(2, "good", 50, 3, {carrier.name()}));
      carrier.Write(2, 0, 0, std::string(12, 'x'));
      ASSERT_TRUE(Eventually([&] { return server.engine().executor().in_flight() == 1; }));
      open->context.TryCancel();
      EXPECT_EQ(carrier.ReadAll().error_code(), grpc::CANCELLED);
    } else {
      open->stream->WritesDone();
      EXPECT_TRUE(open->stream->Finish().ok());
      EXPECT_TRUE(carrier.ReadAll().ok());
    }
    EXPECT_TRUE(Eventually([&] { return server.engine().executor().in_flight() == 0; }));
    // Another stream may still have the one that nobody named.
    OpenStream next(server);
    next.ExpectGoodOf(1, {nobodys.name()});
  }
}

TEST(Carriers, BringTheRestAfterTheStreamIsHalfClosed) {
  TestServer server;
  MakeGood(server);
  const std::string b(BytesOf(FloatValues(50 * 3, 2)));
  OpenStream open(server);
  OpenCarrier carrier(server);
  open.stream->Write(StartOf(1, "good", 50, 3, {carrier.name()}));
  open.stream->WritesDone();
  carrier.Write(1, 0, 0, b.substr(0, 100));
  carrier.Write(1, 0, 100, b.substr(100));
  EXPECT_EQ(open.ReadOne().code(), 0);
  EXPECT_TRUE(open.stream->Finish().ok());
  EXPECT_TRUE(carrier.ReadAll().ok());
}

void Impatient(server::Config& config) {
  config.receive_idle_seconds = 0.5;
  config.send_idle_seconds = 0.5;
}

TEST(Carriers, OfWhichNothingComesAnyMoreAreGivenUp) {
  TestServer server(Impatient);
  MakeGood(server);
  ExpectGood(server);  // the worker slot keeps its workspace
  const int64_t before = server.engine().budget().used();
  const std::string b(BytesOf(FloatValues(50 * 3, 2)));
  OpenStream open(server);
  OpenCarrier early(server), silent(server), surplus(server);
  early.Write(9, 0, 0, b);
  const grpc::Status status = early.ReadAll();
  EXPECT_EQ(status.error_code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_THAT(status.error_message(), HasSubstr("a chunk of request 9 waited for its request"));
  // A request whose bytes stay away; its carriers are none the worse.
  open.stream->Write(StartOf(1, "good", 50, 3, {silent.name()}));
  silent.Write(1, 0, 0, b.substr(0, 12));
  const Answer answer = open.ReadOne();
  EXPECT_EQ(answer.code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_THAT(answer.message(), HasSubstr("operand B has 12 of 600 bytes"));
  open.ExpectGoodOf(2, {silent.name()});
  // A chunk after the request's end is of one that nobody opens.
  open.ExpectGoodOf(3, {surplus.name()});
  surplus.Write(3, 0, 0, b);
  EXPECT_EQ(surplus.ReadAll().error_code(), grpc::DEADLINE_EXCEEDED);
  open.ExpectGoodOf(4);
  EXPECT_TRUE(server.ComesBackTo(before));
}

TEST(Carriers, ThatAreNotReadAreGivenUp) {
  TestServer server(Impatient);
  MakeGood(server);
  ExpectGood(server);  // the worker slot keeps its workspace
  const int64_t before = server.engine().budget().used();
  constexpr int64_t kWide = 1 << 17;
  const std::vector<float> b = FloatValues(50 * kWide, 2);
  OpenStream open(server);
  // Its window stays below a chunk's size.
  grpc::ChannelArguments narrow;
  narrow.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  OpenCarrier carrier(server.Connect(narrow));
  // The stream is read to its end. Of one result it may carry all chunks before the carrier is
  // given one.
  Answer answer;
  uint64_t id = 0;
  do {
    open.stream->Write(StartOf(++id, "good", 50, kWide, {carrier.name()}));
    WriteArray<v1::SpmmRequest>(*open.stream, id, 0, BytesOf(b));
    answer = open.ReadOne();
  } while (answer.code() == 0 && id < 100);
  ASSERT_EQ(answer.code(), grpc::DEADLINE_EXCEEDED) << answer.message();
  EXPECT_THAT(answer.message(), HasSubstr("(--send-idle)"));
  EXPECT_EQ(carrier.ReadAll().error_code(), grpc::DEADLINE_EXCEEDED);
  open.ExpectGoodOf(id + 1);
  EXPECT_TRUE(server.ComesBackTo(before));
}

TEST(Carriers, CountWhatWaitsInTheirConnectionsShare) {
  TestServer server([](server::Config& config) {
    config.max_chunk_bytes = int64_t{1} << 20;
    config.connection_memory_bytes = 600'000;
  });
  OpenCarrier carrier(server);
  carrier.Write(1, 0, 0, std::string(1'000'000, 'x'));
  const grpc::Status status = carrier.ReadAll();
  EXPECT_EQ(status.error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("--connection-memory"));
}

TEST(Carriers, DoNotHoldUpADrain) {
  TestServer server;
  MakeGood(server);
  MustUpload(server, "s", Uniform(kRows, kCols, 5, 1));
  const std::string b(BytesOf(FloatValues(kCols * kWidth, 2)));
  OpenCarrier nobodys(server), carrier(server);
  OpenStream open(server);
  open.stream->Write(StartOf(1, "s", kCols, kWidth, {carrier.name()}));
  carrier.Write(1, 0, 0, b.substr(0, 1000));
  // Of what has no byte a drain waits for none.
  ASSERT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    v1::Stats stats;
    EXPECT_TRUE(server.admin().GetStats(&context, v1::GetStatsRequest(), &stats).ok());
    return std::ranges::any_of(stats.in_flight(), [](const v1::RequestsInFlight& of) {
      return of.operation() == "spmm" && of.bytes() == 1000;
    });
  }));
  std::thread drain([&] { server.server().Drain(std::chrono::seconds(60)); });
  EXPECT_EQ(nobodys.ReadAll().error_code(), grpc::UNAVAILABLE);
  // What is under way ends as ever, with what its carrier has of it.
  Came carried, streamed;
  std::thread reader([&] { EXPECT_TRUE(carrier.ReadAll(&carried).ok()); });
  for (size_t at = 1000; at < b.size(); at += 100'000) {
    if (!carrier.Write(1, 0, at, std::string_view(b).substr(at, 100'000))) break;
  }
  EXPECT_TRUE(open.Read(1, &streamed));
  EXPECT_EQ(streamed.ends[1].status().code(), 0) << streamed.ends[1].status().message();
  reader.join();
  EXPECT_EQ(streamed.BytesOf(1) + carried.BytesOf(1), static_cast<size_t>(kRows * kWidth * 4));
  EXPECT_EQ(open.stream->Finish().error_code(), grpc::UNAVAILABLE);
  drain.join();
}

TEST(Carriers, OpenedAndBrokenAtAnyMoment) {
  TestServer server;
  MustUpload(server, "s", Uniform(kRows, kCols, 5, 1));
  MakeGood(server);
  ExpectGood(server);
  const std::vector<float> b = FloatValues(kCols * kWidth, 2);
  const std::string expected = Spmm(server.compute(), "s", kCols, kWidth, b).arrays.at(0);
  const int64_t before = server.engine().budget().used();
  std::atomic<int> ended = 0;
  std::vector<std::thread> clients;
  for (int client = 0; client < 4; ++client) {
    clients.emplace_back([&, client] {
      for (int round = 0; round < 6; ++round) {
        const auto stub = v1::Compute::NewStub(server.Connect());
        grpc::ClientContext context;
        const auto stream = stub->Spmm(&context);
        OpenCarrier carrier(server);
        stream->Write(StartOf(1, "s", kCols, kWidth, {carrier.name()}));
        std::thread reader([&] { carrier.ReadAll(); });
        std::thread breaker([&, round] {
          for (int i = 0; i < (client * 7 + round * 13) % 40; ++i) std::this_thread::yield();
          (round % 2 == 0 ? carrier.context() : context).TryCancel();
        });
        const std::string_view bytes = BytesOf(b);
        for (size_t at = 0; at < bytes.size(); at += 100'000) {
          if (at % 200'000 == 0) {
            stream->Write(ChunkOf<v1::SpmmRequest>(1, 0, at, bytes.substr(at, 100'000)));
          } else {
            carrier.Write(1, 0, at, bytes.substr(at, 100'000));
          }
        }
        v1::ComputeReply reply;
        while (stream->Read(&reply)) {
          if (!reply.has_end()) continue;
          ++ended;
          stream->WritesDone();
        }
        stream->Finish();
        breaker.join();
        // The stream may have gone before its request came, and the carrier is nobody's.
        carrier.context().TryCancel();
        reader.join();
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_LE(ended, 4 * 6);
  EXPECT_TRUE(server.ComesBackTo(before + (int64_t{16} << 20)));
  EXPECT_EQ(Spmm(server.compute(), "s", kCols, kWidth, b).arrays.at(0), expected);
  ExpectGood(server);
}

}  // namespace
}  // namespace sparsed::test
