// Rings: requests and replies in shared memory, by clients and by callers who write what they like.
#include "proto/wire/ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/execution/executor.h"
#include "proto/wire/chunk_codec.h"
#include "tests/rpc/local_peer.h"
#include "tests/rpc/test_server.h"

// The client's headers come last: some of its names are the kernels', too.
#include "sparsed/client.h"
#include "tests/unit/client/chain_products.h"
#include "tests/unit/client/shared_products.h"

namespace sparsed::test {
namespace {

using ::testing::HasSubstr;
using wire::RingMessage;

constexpr auto kPatience = std::chrono::seconds(30);

/// A caller at the local socket with a ring, who writes what it likes.
class Caller {
 public:
  explicit Caller(const TestServer& server, wire::RingSize size = {.slots = 8, .slot_bytes = 2048})
      : size_(size),
        peer_(server),
        file_(size.file_bytes()),
        ring_(reinterpret_cast<std::byte*>(file_.floats()), size),
        requests_(ring_.RequestProducer()),
        replies_(ring_.ReplyConsumer()) {
    peer_.Receive();
  }

  v1::LocalReply Open() { return Open(size_, {file_.fd()}); }
  v1::LocalReply Open(wire::RingSize size, const std::vector<int>& files) {
    v1::LocalRequest request;
    request.mutable_ring()->set_slots(size.slots);
    request.mutable_ring()->set_slot_bytes(size.slot_bytes);
    return peer_.Ask(request, files);
  }

  void Put(RingMessage what, const google::protobuf::MessageLite& message) {
    requests_.Put(what, wire::Encode(message));
    ring_.request_bell.Ring();
  }
  /// The next reply's end; none: the ring has ended.
  std::optional<v1::End> Next() {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (std::chrono::steady_clock::now() < until) {
      const uint32_t heard = ring_.reply_bell.Listen();
      const bool ended = ring_.Ended().has_value();
      auto taken = replies_.Take();
      EXPECT_TRUE(taken.ok()) << taken.status();
      if (!taken.ok()) return std::nullopt;
      if (taken->has_value()) {
        ring_.request_bell.Ring(wire::RingBell::kTaken);
        v1::ComputeReply reply;
        EXPECT_EQ((*taken)->what, RingMessage::kReply);
        EXPECT_TRUE(wire::Parse((*taken)->bytes, reply).ok());
        EXPECT_TRUE(reply.has_end());
        return reply.end();
      }
      if (ended) return std::nullopt;
      ring_.reply_bell.Wait(heard, kPatience);
    }
    ADD_FAILURE() << "no reply came";
    return std::nullopt;
  }
  int NextCode() {
    const auto end = Next();
    return end ? end->status().code() : -1;
  }
  /// Why the ring ended: its code; -1: it has not.
  int EndCode() {
    if (!Eventually([&] { return ring_.Ended().has_value(); })) return -1;
    const v1::Status status = *ring_.Ended();
    EXPECT_TRUE(status.code() == kOk || status.message().size() > 15) << status.message();
    return status.code();
  }
  bool Untouched() const { return !ring_.Ended().has_value(); }
  /// Of the header.
  uint32_t& Word(size_t offset) { return reinterpret_cast<uint32_t*>(file_.floats())[offset / 4]; }
  std::byte* RequestSlot(uint32_t slot) {
    return reinterpret_cast<std::byte*>(file_.floats()) + 4096 + slot * size_.slot_bytes;
  }
  Peer& peer() { return peer_; }
  wire::RingMemory& ring() { return ring_; }
  int file() const { return file_.fd(); }
  const wire::RingSize& size() const { return size_; }

 private:
  const wire::RingSize size_;
  Peer peer_;
  File file_;
  wire::RingMemory ring_;
  wire::RingProducer requests_;
  wire::RingConsumer replies_;
};

/// Keeps the server's only worker slot from taking requests until it goes.
class BusyWorkerSlot {
 public:
  explicit BusyWorkerSlot(TestServer& server) {
    thread_ = std::thread([this, &executor = server.engine().executor()] {
      const absl::Status ran = executor.RunIdle(
          {},
          [this](engine::WorkerSlot&) {
            begun_.set_value();
            go_on_.get_future().wait();
          },
          nullptr);
      EXPECT_TRUE(ran.ok()) << ran;
    });
    begun_.get_future().wait();
  }
  ~BusyWorkerSlot() {
    go_on_.set_value();
    thread_.join();
  }

 private:
  std::promise<void> begun_, go_on_;
  std::thread thread_;
};

/// A matrix and a page with operands and results.
class RingTest : public testing::Test {
 protected:
  explicit RingTest(const std::function<void(server::Config&)>& adjust = {})
      : server_([&](server::Config& config) {
          WithLocal(config);
          WithPages(config);
          if (adjust) adjust(config);
        }),
        pattern_(Uniform(8, 8, 3, 5)),
        values_(MustUpload(server_, "s", pattern_)),
        page_(4096),
        owner_(server_) {
    owner_.Receive();
    region_ = owner_.Share({page_.fd()}).region();
    for (int i = 0; i < 1024; ++i) page_.floats()[i] = static_cast<float>(i % 7);
  }

  static void Shape(v1::DenseShape& shape, int64_t rows, int64_t cols) {
    shape.set_rows(rows);
    shape.set_cols(cols);
    shape.set_type(v1::ELEMENT_TYPE_F32);
  }
  v1::SharedMemory At(uint64_t offset) const {
    v1::SharedMemory place;
    place.set_region(region_);
    place.set_offset(offset);
    return place;
  }
  /// S * B, both 8 x 8, B at 0 and C at 1024.
  v1::SpmmRequest Good(uint64_t id) const {
    v1::SpmmRequest request;
    v1::SpmmStart& start = *request.mutable_start();
    start.set_request_id(id);
    start.set_matrix("s");
    Shape(*start.mutable_b()->mutable_shape(), 8, 8);
    *start.mutable_b()->mutable_shared() = At(0);
    Shape(*start.mutable_result()->mutable_shared()->mutable_shape(), 8, 8);
    *start.mutable_result()->mutable_shared()->mutable_memory() = At(1024);
    return request;
  }
  static v1::SpmmRequest CancelOf(uint64_t id) {
    v1::SpmmRequest request;
    request.mutable_cancel()->set_request_id(id);
    return request;
  }
  void ExpectProduct() {
    for (int row = 0; row < 8; ++row) {
      for (int col = 0; col < 8; ++col) {
        double sum = 0;
        for (int64_t i = pattern_.row_offsets[row]; i < pattern_.row_offsets[row + 1]; ++i) {
          sum += static_cast<double>(values_[i]) * ((pattern_.column_indices[i] * 8 + col) % 7);
        }
        EXPECT_NEAR(page_.floats()[256 + row * 8 + col], sum, 1e-5);
      }
    }
  }
  /// It is served.
  void ExpectServed(Caller& caller, uint64_t id = 1000) {
    std::fill_n(page_.floats() + 256, 64, -1.0F);
    caller.Put(RingMessage::kSpmm, Good(id));
    const auto end = caller.Next();
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->status().code(), kOk) << end->status().message();
    EXPECT_EQ(end->request_id(), id);
    ExpectProduct();
  }
  double Metric(const std::string& sample) {
    const std::string page = server_.Page("/metrics");
    const size_t at = page.find("\n" + sample + " ");
    EXPECT_NE(at, std::string::npos) << sample;
    return at == std::string::npos ? -1 : std::stod(page.substr(at + sample.size() + 2));
  }
  bool NoRingIsLeft() {
    return Eventually([&] { return Metric("sparsed_rings") == 0; });
  }
  bool NothingIsInFlight() {
    return Eventually([&] { return server_.engine().executor().in_flight() == 0; });
  }

  TestServer server_;
  const Pattern pattern_;
  const std::vector<float> values_;
  File page_;
  Peer owner_;
  std::string region_;
};

// --- Through the client.

ProductsOf ByMatrix() {
  return [](const Matrix& matrix) {
    return Products{
        [matrix](const Operand& b, const Destination& c, const SpmmOptions& options) {
          return matrix.Spmm(b, c, options);
        },
        [matrix](const Operand& a, const Operand& b, const Destination& values,
                 const SddmmOptions& options) { return matrix.Sddmm(a, b, values, options); }};
  };
}

TEST_F(RingTest, ProductsOfAllKinds) {
  for (const int spin : {0, 50}) {
    const auto client = Client::Connect(
        server_.address(), {.ring = true, .ring_spin = std::chrono::microseconds(spin)});
    ASSERT_TRUE(client.ok()) << client.status();
    CheckProducts(*client, ByMatrix());
    // The one before goes in its own time.
    EXPECT_TRUE(Eventually([&] { return Metric("sparsed_rings") == 1; }));
  }
  EXPECT_GT(Metric("sparsed_ring_requests_total"), 100);
  for (const std::string direction : {"in", "out"}) {
    EXPECT_GT(Metric("sparsed_transfer_bytes_total{direction=\"" + direction + "\",path=\"ring\"}"),
              1e5);
  }
  EXPECT_TRUE(NoRingIsLeft());
}

TEST_F(RingTest, Chains) {
  const auto client = Client::Connect(server_.address(), {.ring = true});
  ASSERT_TRUE(client.ok()) << client.status();
  CheckChains(*client);
  EXPECT_GT(Metric("sparsed_ring_requests_total"), 0);
}

// --- By a caller.

TEST_F(RingTest, RequestsOfAllKinds) {
  Caller caller(server_);
  ASSERT_EQ(caller.Open().status().code(), kOk);
  // More than slots, so that they go round.
  for (uint64_t id = 1; id <= 20; ++id) ExpectServed(caller, id);

  v1::SddmmRequest sddmm;
  v1::SddmmStart& start = *sddmm.mutable_start();
  start.set_request_id(77);
  start.set_matrix("s");
  for (v1::Operand* operand : {start.mutable_a(), start.mutable_b()}) {
    Shape(*operand->mutable_shape(), 8, 8);
    *operand->mutable_shared() = At(0);
  }
  Shape(*start.mutable_result()->mutable_shared()->mutable_shape(), 24, 1);
  *start.mutable_result()->mutable_shared()->mutable_memory() = At(2048);
  caller.Put(RingMessage::kSddmm, sddmm);
  std::optional<v1::End> end = caller.Next();
  ASSERT_TRUE(end.has_value());
  ASSERT_EQ(end->status().code(), kOk) << end->status().message();
  EXPECT_EQ(end->request_id(), 77u);
  EXPECT_FALSE(end->begin().plan().empty());
  EXPECT_GT(end->timings().total_ns(), 0u);
  for (int64_t row = 0; row < 8; ++row) {
    for (int64_t i = pattern_.row_offsets[row]; i < pattern_.row_offsets[row + 1]; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < 8; ++j) {
        sum += static_cast<double>((row * 8 + j) % 7) * ((pattern_.column_indices[i] * 8 + j) % 7);
      }
      EXPECT_NEAR(page_.floats()[512 + i], values_[i] * sum, 1e-3);
    }
  }

  v1::ChainRequest chain;
  v1::ChainStart& steps = *chain.mutable_start();
  steps.set_request_id(78);
  v1::Operand& b = *steps.add_operands();
  Shape(*b.mutable_shape(), 8, 8);
  *b.mutable_shared() = At(0);
  steps.add_steps()->mutable_spmm()->set_matrix("s");
  v1::ChainResult& result = *steps.add_results();
  result.set_value(1);
  Shape(*result.mutable_place()->mutable_shared()->mutable_shape(), 8, 8);
  *result.mutable_place()->mutable_shared()->mutable_memory() = At(1024);
  std::fill_n(page_.floats() + 256, 64, -1.0F);
  caller.Put(RingMessage::kChain, chain);
  end = caller.Next();
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->status().code(), kOk) << end->status().message();
  EXPECT_EQ(end->steps_size(), 1);
  ExpectProduct();
}

TEST_F(RingTest, OpensForWhatItIs) {
  const size_t files = OpenFiles();
  {
    Caller caller(server_);
    const wire::RingSize size = caller.size();
    EXPECT_EQ(caller.Open(size, {}).status().code(), kInvalid) << "no descriptor";
    const File unsealed(size.file_bytes(), 0), smaller(size.file_bytes() - 64),
        larger(size.file_bytes() + 64), empty(0);
    for (const File* file : {&unsealed, &smaller, &larger, &empty}) {
      const v1::LocalReply reply = caller.Open(size, {file->fd()});
      EXPECT_EQ(reply.status().code(), kInvalid) << reply.status().message();
    }
    EXPECT_EQ(caller.Open(size, {STDERR_FILENO}).status().code(), kInvalid);
    for (const wire::RingSize wrong : {wire::RingSize{0, 0},
                                       {0, 2048},
                                       {7, 2048},
                                       {1, 2048},
                                       {512, 2048},
                                       {1u << 31, 2048},
                                       {8, 0},
                                       {8, 2040},
                                       {8, 960},
                                       {8, 1u << 31}}) {
      EXPECT_EQ(caller.Open(wrong, {caller.file()}).status().code(), kInvalid)
          << wrong.slots << ' ' << wrong.slot_bytes;
    }
    EXPECT_EQ(Metric("sparsed_rings"), 0);
    ASSERT_EQ(caller.Open().status().code(), kOk);
    EXPECT_EQ(Metric("sparsed_rings"), 1);
    const File other(size.file_bytes());
    EXPECT_EQ(caller.Open(size, {other.fd()}).status().code(), kPrecondition);
    ExpectServed(caller);
    EXPECT_EQ(server_.engine().budget().used(engine::MemoryUse::kShared),
              static_cast<int64_t>(4096 + size.file_bytes()));
  }
  EXPECT_TRUE(NoRingIsLeft());
  EXPECT_TRUE(Eventually([&] {
    return OpenFiles() <= files &&
           server_.engine().budget().used(engine::MemoryUse::kShared) == 4096;
  }));
}

TEST_F(RingTest, CarriesNoArrays) {
  Caller caller(server_);
  ASSERT_EQ(caller.Open().status().code(), kOk);
  v1::SpmmRequest operand = Good(1), result = Good(2), neither = Good(3);
  operand.mutable_start()->mutable_b()->set_stream_array(0);
  result.mutable_start()->mutable_result()->set_stream(true);
  neither.mutable_start()->clear_result();
  for (const v1::SpmmRequest* request : {&operand, &result, &neither}) {
    caller.Put(RingMessage::kSpmm, *request);
    const auto end = caller.Next();
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->status().code(), kInvalid);
    EXPECT_THAT(end->status().message(), HasSubstr("a ring carries no arrays"));
  }
  ExpectServed(caller);
  caller.Put(RingMessage::kSpmm, ChunkOf<v1::SpmmRequest>(1, 0, 0, "1234"));
  EXPECT_EQ(caller.EndCode(), kInvalid);
}

TEST_F(RingTest, RequestsThatAreRefusedHaveTheirEnds) {
  Caller caller(server_);
  ASSERT_EQ(caller.Open().status().code(), kOk);
  v1::SpmmRequest unknown = Good(1), elsewhere = Good(2), shape = Good(3), held = Good(4);
  unknown.mutable_start()->set_matrix(std::string(200, 'm'));
  elsewhere.mutable_start()->mutable_b()->mutable_shared()->set_region("x");
  shape.mutable_start()->mutable_b()->mutable_shape()->set_rows(9);
  held.mutable_start()->mutable_b()->set_buffer("none");
  caller.Put(RingMessage::kSpmm, unknown);
  EXPECT_EQ(caller.NextCode(), kNotFound);
  caller.Put(RingMessage::kSpmm, elsewhere);
  EXPECT_EQ(caller.NextCode(), kNotFound);
  caller.Put(RingMessage::kSpmm, shape);
  EXPECT_EQ(caller.NextCode(), kInvalid);
  caller.Put(RingMessage::kSpmm, held);
  EXPECT_EQ(caller.NextCode(), kNotFound);
  ExpectServed(caller);
}

TEST_F(RingTest, WhatCannotBeEndsItAndNothingElse) {
  Caller other(server_);
  ASSERT_EQ(other.Open().status().code(), kOk);
  const std::vector<std::function<void(Caller&)>> wrongs = {
      // Counts: far ahead, backwards, taken before they were put.
      [](Caller& caller) { caller.Word(64) = 9; },
      [](Caller& caller) { caller.Word(64) = 0x80000000; },
      [](Caller& caller) { caller.Word(64) = ~uint32_t{0}; },
      [this](Caller& caller) {
        caller.Word(320) = 1;
        caller.Put(RingMessage::kSpmm, Good(1));
      },
      [this](Caller& caller) {
        caller.Word(320) = 0x80000000;
        caller.Put(RingMessage::kSpmm, Good(1));
      },
      // Bytes: more than a slot has, and those of nothing.
      [](Caller& caller) {
        reinterpret_cast<uint32_t*>(caller.RequestSlot(0))[0] = 2041;
        reinterpret_cast<uint32_t*>(caller.RequestSlot(0))[1] = 1;
        caller.Word(64) = 1;
      },
      [](Caller& caller) {
        reinterpret_cast<uint32_t*>(caller.RequestSlot(0))[0] = ~uint32_t{0};
        caller.Word(64) = 1;
      },
      // Kinds that there are not.
      [this](Caller& caller) { caller.Put(RingMessage::kReply, Good(1)); },
      [this](Caller& caller) { caller.Put(static_cast<RingMessage>(4), Good(1)); },
      // Messages: none, and garbage.
      [](Caller& caller) { caller.Put(RingMessage::kSpmm, v1::SpmmRequest()); },
      [](Caller& caller) {
        reinterpret_cast<uint32_t*>(caller.RequestSlot(0))[0] = 100;
        reinterpret_cast<uint32_t*>(caller.RequestSlot(0))[1] = 2;
        std::memset(caller.RequestSlot(0) + 8, 0xFF, 100);
        caller.Word(64) = 1;
      },
      [this](Caller& caller) {
        caller.Put(RingMessage::kSpmm, Good(1));
        EXPECT_EQ(caller.NextCode(), kOk);
        caller.Word(64) = 0;  // one less than it was
      },
  };
  for (size_t i = 0; i < wrongs.size(); ++i) {
    SCOPED_TRACE(i);
    Caller caller(server_);
    ASSERT_EQ(caller.Open().status().code(), kOk);
    wrongs[i](caller);
    caller.ring().request_bell.Wake();
    EXPECT_EQ(caller.EndCode(), kInvalid);
    ExpectServed(other, 100 + i);
    // Another one is the connection's to open, and its other requests are none the worse.
    const File fresh(caller.size().file_bytes());
    EXPECT_TRUE(Eventually(
        [&] { return caller.Open(caller.size(), {fresh.fd()}).status().code() == kOk; }));
  }
  EXPECT_TRUE(other.Untouched());
}

TEST_F(RingTest, RandomBytesHarmNobodyElse) {
  Caller other(server_);
  ASSERT_EQ(other.Open().status().code(), kOk);
  std::mt19937 random(11);
  for (int round = 0; round < 100; ++round) {
    Caller caller(server_, {.slots = 4, .slot_bytes = 1024});
    // Those before it go in their own time.
    ASSERT_TRUE(Eventually([&] { return caller.Open().status().code() == kOk; }));
    // While the server takes some, all of it may change at any time.
    for (uint64_t id = 1; id <= 3; ++id) caller.Put(RingMessage::kSpmm, Good(id));
    const size_t words = caller.size().file_bytes() / 4;
    for (int i = 0; i < 2000; ++i) caller.Word(4 * (random() % words)) = random();
    for (const size_t word : {64, 128, 192, 256, 320, 384}) {
      if (random() % 2 == 0) caller.Word(word) = random() % 8;
    }
    caller.ring().request_bell.Wake();
  }
  ExpectServed(other);
  EXPECT_TRUE(Eventually([&] { return Metric("sparsed_rings") == 1; }));
  EXPECT_TRUE(NothingIsInFlight());
}

TEST_F(RingTest, CancelAndDeadline) {
  Caller caller(server_);
  ASSERT_EQ(caller.Open().status().code(), kOk);
  {
    const BusyWorkerSlot busy(server_);
    caller.Put(RingMessage::kSpmm, Good(1));
    caller.Put(RingMessage::kSpmm, Good(2));
    caller.Put(RingMessage::kSpmm, CancelOf(99));
    caller.Put(RingMessage::kChain, CancelOf(1));  // the same field in every kind
    std::optional<v1::End> end = caller.Next();
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->request_id(), 1u);
    EXPECT_EQ(end->status().code(), 1);
    v1::SpmmRequest brief = Good(3);
    brief.mutable_start()->set_timeout_ns(1'000'000);
    caller.Put(RingMessage::kSpmm, brief);
    end = caller.Next();
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->request_id(), 3u);
    EXPECT_EQ(end->status().code(), 4);
    // An id that is used twice ends both.
    caller.Put(RingMessage::kSpmm, Good(2));
    EXPECT_EQ(caller.NextCode(), kInvalid);
    EXPECT_EQ(caller.NextCode(), kInvalid);
  }
  ExpectServed(caller);
  EXPECT_EQ(Metric("sparsed_requests_total{code=\"CANCELLED\",kind=\"work\",op=\"spmm\",tenant="
                   "\"default\"}"),
            1);
}

TEST_F(RingTest, WhoTakesNoRepliesIsNotServedOn) {
  Caller caller(server_), other(server_);
  ASSERT_EQ(caller.Open().status().code(), kOk);
  ASSERT_EQ(other.Open().status().code(), kOk);
  const uint32_t slots = caller.size().slots;
  for (uint64_t id = 1; id <= slots; ++id) caller.Put(RingMessage::kSpmm, Good(id));
  ASSERT_TRUE(Eventually([&] { return caller.Word(256) == slots; }));
  // As many again: they wait for the replies to be taken.
  for (uint64_t id = 1; id <= slots; ++id) caller.Put(RingMessage::kSpmm, Good(100 + id));
  ExpectServed(other);
  EXPECT_EQ(caller.Word(128), slots) << "taken";
  for (uint64_t id = 1; id <= slots; ++id) EXPECT_EQ(caller.Next()->request_id(), id);
  for (uint64_t id = 1; id <= slots; ++id) EXPECT_EQ(caller.Next()->request_id(), 100 + id);
  ExpectServed(caller);
}

TEST_F(RingTest, WhoseCallerGoesEndsItsRequests) {
  auto worker_slot = std::make_unique<BusyWorkerSlot>(server_);
  {
    Caller caller(server_);
    ASSERT_EQ(caller.Open().status().code(), kOk);
    for (uint64_t id = 1; id <= 4; ++id) caller.Put(RingMessage::kSpmm, Good(id));
    ASSERT_TRUE(Eventually([&] { return server_.engine().executor().in_flight() == 4; }));
  }
  // They never ran: the worker slot is busy.
  EXPECT_TRUE(NothingIsInFlight());
  EXPECT_TRUE(NoRingIsLeft());
  Caller caller(server_);
  ASSERT_EQ(caller.Open().status().code(), kOk);
  caller.Put(RingMessage::kSpmm, Good(1));
  ASSERT_TRUE(Eventually([&] { return server_.engine().executor().in_flight() == 1; }));
  caller.ring().Leave();
  EXPECT_EQ(caller.EndCode(), 1);
  EXPECT_TRUE(NothingIsInFlight());
  worker_slot.reset();
  // The connection may have another one.
  Caller again(server_);
  ASSERT_EQ(again.Open().status().code(), kOk);
  ExpectServed(again);
}

TEST_F(RingTest, DrainEndsIdleOnesAndLetsRequestsFinish) {
  Caller idle(server_), busy(server_);
  ASSERT_EQ(idle.Open().status().code(), kOk);
  ASSERT_EQ(busy.Open().status().code(), kOk);
  std::thread drain;
  {
    const BusyWorkerSlot worker_slot(server_);
    busy.Put(RingMessage::kSpmm, Good(1));
    ASSERT_TRUE(Eventually([&] { return server_.engine().executor().in_flight() == 1; }));
    drain = std::thread([&] { server_.server().Drain(std::chrono::seconds(60)); });
    EXPECT_EQ(idle.EndCode(), 14);
    busy.Put(RingMessage::kSpmm, Good(2));
    const auto refused = busy.Next();
    ASSERT_TRUE(refused.has_value());
    EXPECT_EQ(refused->request_id(), 2u);
    EXPECT_EQ(refused->status().code(), 14);
  }
  EXPECT_EQ(busy.NextCode(), kOk);
  EXPECT_EQ(busy.EndCode(), 14);
  drain.join();
  Caller late(server_);
  if (late.Open().status().code() == kOk) {
    EXPECT_EQ(late.EndCode(), 14);
  }
}

TEST(Ring, ServersGoWithOpenOnes) {
  auto server = std::make_unique<TestServer>(WithLocal);
  MakeGood(*server);
  Caller idle(*server), spoiled(*server);
  ASSERT_EQ(idle.Open().status().code(), kOk);
  ASSERT_EQ(spoiled.Open().status().code(), kOk);
  // Says that nobody sleeps, and that nothing changes.
  std::atomic<bool> stop = false;
  std::thread scribbler([&] {
    while (!stop) {
      __atomic_store_n(&spoiled.Word(192), 0, __ATOMIC_RELAXED);
      __atomic_store_n(&spoiled.Word(196), 5, __ATOMIC_RELAXED);
      std::this_thread::yield();
    }
  });
  server.reset();
  stop = true;
  scribbler.join();
  EXPECT_TRUE(idle.ring().Ended().has_value());
}

class FewRings : public RingTest {
 protected:
  FewRings()
      : RingTest([](server::Config& config) {
          config.max_rings = 2;
          config.max_requests_per_stream = 3;
          config.ring_spin_microseconds = 20;
        }) {}
};

TEST_F(FewRings, AreAllThatThereAre) {
  auto one = std::make_unique<Caller>(server_);
  Caller two(server_), three(server_);
  ASSERT_EQ(one->Open().status().code(), kOk);
  ASSERT_EQ(two.Open().status().code(), kOk);
  const v1::LocalReply refused = three.Open();
  EXPECT_EQ(refused.status().code(), kExhausted);
  EXPECT_THAT(refused.status().message(), HasSubstr("--max-rings"));
  ExpectServed(two);
  // A client does without.
  const auto client = Client::Connect(server_.address(), {.ring = true});
  ASSERT_TRUE(client.ok());
  CheckProducts(*client, ByMatrix());
  EXPECT_EQ(Metric("sparsed_ring_requests_total"), 1);
  one.reset();
  EXPECT_TRUE(Eventually([&] { return three.Open().status().code() == kOk; }));
  ExpectServed(three);
}

TEST_F(FewRings, LimitTheRequestsInFlightAsStreamsDo) {
  Caller caller(server_);
  ASSERT_EQ(caller.Open().status().code(), kOk);
  {
    const BusyWorkerSlot worker_slot(server_);
    for (uint64_t id = 1; id <= 4; ++id) caller.Put(RingMessage::kSpmm, Good(id));
    const auto end = caller.Next();
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->request_id(), 4u);
    EXPECT_EQ(end->status().code(), kExhausted);
    EXPECT_EQ(end->status().details_size(), 1) << "when to try again";
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(caller.NextCode(), kOk);
}

}  // namespace
}  // namespace sparsed::test
