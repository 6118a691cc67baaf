// GPU memory and queues as a caller at the local socket has them who says what it likes, and a GPU
// that a test tells what to do (stand_in.h).
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/execution/device_queues.h"
#include "engine/execution/gpu_backend.h"
#include "kernels/reference/reference.h"
#include "tests/gpu/stand_in.h"
#include "tests/rpc/local_peer.h"
#include "tests/rpc/test_server.h"

namespace sparsed::test {
namespace {

namespace stand_in = cuda::stand_in;

constexpr int kAborted = 10, kUnimplemented = 12, kUnavailable = 14;

std::string UuidOf(int card) { return *cuda::DeviceUuid(card); }

v1::LocalRequest AllocateOf(const std::string& gpu, uint64_t bytes) {
  v1::LocalRequest request;
  request.mutable_allocate()->set_gpu(gpu);
  request.mutable_allocate()->set_bytes(bytes);
  return request;
}

v1::LocalRequest OpenOf(const std::string& gpu) {
  v1::LocalRequest request;
  request.mutable_open_queue()->set_gpu(gpu);
  return request;
}

/// A region of a GPU's, mapped: the stand-in's is the host's.
struct Region {
  std::string name;
  float* floats = nullptr;
  size_t bytes = 0;

  ~Region() {
    if (floats != nullptr) munmap(floats, bytes);
  }
};

/// A server of two cards, and a caller at its local socket with operand, result and a queue.
class StandInQueues : public testing::Test {
 protected:
  static constexpr int64_t kRows = 60, kCols = 50, kWidth = 4;

  StandInQueues() {
    stand_in::PassAfter(0);
    values_ = MustUpload(server_, "s", pattern_);
    peer_.emplace(server_);
    peer_->Receive();
    Allocate(b_, kCols * kWidth);
    Allocate(c_, kRows * kWidth);
    x_ = FloatValues(kCols * kWidth, 2);
    std::copy(x_.begin(), x_.end(), b_.floats);
    std::fill_n(c_.floats, kRows * kWidth, -1.0F);
    queue_ = Open();
    Connect();
  }
  ~StandInQueues() override {
    stream_->WritesDone();
    stream_->Finish();
    stand_in::Heal();
  }

  void Allocate(Region& region, int64_t floats, int card = 0) {
    region.bytes = static_cast<size_t>(floats) * sizeof(float);
    const v1::LocalReply reply = peer_->Ask(AllocateOf(UuidOf(card), region.bytes));
    ASSERT_EQ(reply.status().code(), kOk) << reply.status().message();
    region.name = reply.region();
    void* const at =
        mmap(nullptr, region.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, peer_->file(), 0);
    ASSERT_NE(at, MAP_FAILED);
    region.floats = static_cast<float*>(at);
    for (int64_t i = 0; i < floats; ++i) ASSERT_EQ(region.floats[i], 0);
  }
  std::string Open() {
    const v1::LocalReply reply = peer_->Ask(OpenOf(UuidOf(0)), {page_.fd()});
    EXPECT_EQ(reply.status().code(), kOk) << reply.status().message();
    return reply.queue();
  }
  void Connect() {
    context_ = std::make_unique<grpc::ClientContext>();
    stream_ = server_.compute().Spmm(context_.get());
  }

  std::string PlaceOf(uint32_t number) const {
    std::string place = queue_;
    for (int i = 0; i < 4; ++i) place += static_cast<char>(number >> (8 * i));
    return place;
  }
  /// The caller's stream has come to that request.
  void Begin(uint32_t number) { Word(0).store(number); }
  uint32_t ended() { return Word(1).load(); }
  uint32_t failed() { return Word(2).load(); }
  std::atomic_ref<uint32_t> Word(size_t index) {
    return std::atomic_ref(reinterpret_cast<uint32_t*>(page_.floats())[index]);
  }

  v1::SpmmRequest RequestOf(uint64_t id, const std::string& place) const {
    v1::SpmmRequest request = SpmmStartOf(id, "s", kCols, kWidth);
    v1::SpmmStart& start = *request.mutable_start();
    start.mutable_b()->mutable_shared()->set_region(b_.name);
    auto& to = *start.mutable_result()->mutable_shared();
    to.mutable_memory()->set_region(c_.name);
    to.mutable_shape()->set_rows(kRows);
    to.mutable_shape()->set_cols(kWidth);
    to.mutable_shape()->set_type(v1::ELEMENT_TYPE_F32);
    start.set_queue(place);
    return request;
  }
  Answer Ask(const v1::SpmmRequest& request) {
    stream_->Write(request);
    std::map<uint64_t, Answer> answers;
    EXPECT_TRUE(ReadUntilEnds(*stream_, 1, &answers));
    return answers[request.start().request_id()];
  }
  int CodeOf(const v1::SpmmRequest& request) { return Ask(request).code(); }

  bool ResultIsThere() const {
    std::vector<double> expected(kRows * kWidth);
    const std::vector<double> s(values_.begin(), values_.end()), wide(x_.begin(), x_.end());
    reference::Spmm(pattern_.view(), s.data(), false, wide.data(), kWidth, kWidth, 1, 0,
                    expected.data());
    for (size_t i = 0; i < expected.size(); ++i) {
      if (std::abs(c_.floats[i] - expected[i]) > 1e-5) return false;
    }
    return true;
  }
  bool ResultIsUntouched() const {
    return std::all_of(c_.floats, c_.floats + kRows * kWidth, [](float x) { return x == -1; });
  }
  int64_t SharedBytes(int card = 0) {
    return server_.engine().gpus()[card]->budget().used(engine::MemoryUse::kShared);
  }
  int64_t Queues() {
    int64_t count = 0;
    for (const auto& gpu : server_.engine().executor().gpus()) {
      count += const_cast<engine::GpuBackend&>(gpu).queues().count();
    }
    return count;
  }

  TestServer server_{[](server::Config& config) {
    config.devices = {"cuda:0", "cuda:1"};
    WithLocal(config);
  }};
  const Pattern pattern_ = Uniform(kRows, kCols, 5, 3);
  std::vector<float> values_, x_;
  std::optional<Peer> peer_;
  Region b_, c_;
  File page_{4096};
  std::string queue_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<SpmmStream> stream_;
};

TEST_F(StandInQueues, ARequestBeginsWhenTheCallersStreamIsThere) {
  const Answer answer = Ask(RequestOf(1, PlaceOf(1)));
  ASSERT_EQ(answer.code(), kOk) << answer.message();
  // It has been taken, and others run meanwhile.
  EXPECT_EQ(CodeOf(RequestOf(2, PlaceOf(2))), kOk);
  MakeGood(server_);
  ExpectGood(server_);
  EXPECT_EQ(ended(), 0U);
  EXPECT_TRUE(ResultIsUntouched());
  Begin(1);
  EXPECT_TRUE(Eventually([&] { return ended() == 1; }));
  EXPECT_TRUE(ResultIsThere());
  std::fill_n(c_.floats, kRows * kWidth, -1.0F);
  Begin(2);
  EXPECT_TRUE(Eventually([&] { return ended() == 2; }));
  EXPECT_TRUE(ResultIsThere());
  // One whose turn has come is over before its answer.
  std::fill_n(c_.floats, kRows * kWidth, -1.0F);
  Begin(3);
  EXPECT_EQ(CodeOf(RequestOf(3, PlaceOf(3))), kOk);
  EXPECT_EQ(ended(), 3U);
  EXPECT_TRUE(ResultIsThere());
  EXPECT_EQ(failed(), 0U);
}

TEST_F(StandInQueues, NumbersComeInTheirOrderAndGoRound) {
  Begin(7);
  EXPECT_EQ(CodeOf(RequestOf(1, PlaceOf(5))), kOk);
  EXPECT_EQ(CodeOf(RequestOf(2, PlaceOf(5))), kInvalid) << "replayed";
  EXPECT_EQ(CodeOf(RequestOf(3, PlaceOf(4))), kInvalid);
  EXPECT_EQ(CodeOf(RequestOf(4, PlaceOf(7))), kOk);
  EXPECT_EQ(ended(), 7U);
  EXPECT_EQ(CodeOf(RequestOf(5, PlaceOf(0x7fffffff))), kOk);
  EXPECT_EQ(CodeOf(RequestOf(6, PlaceOf(0xfffffff0))), kOk);
  EXPECT_EQ(CodeOf(RequestOf(7, PlaceOf(3))), kOk);
  Begin(0x7fffffff);
  EXPECT_TRUE(Eventually([&] { return ended() == 0x7fffffff; }));
  Begin(0xfffffff0);
  EXPECT_TRUE(Eventually([&] { return ended() == 0xfffffff0; }));
  Begin(3);
  EXPECT_TRUE(Eventually([&] { return ended() == 3; }));
}

TEST_F(StandInQueues, WhatIsWrongIsRefusedAndHarmsNobody) {
  Begin(100);
  EXPECT_EQ(CodeOf(RequestOf(1, "short")), kInvalid);
  EXPECT_EQ(CodeOf(RequestOf(2, PlaceOf(1) + "x")), kInvalid);
  EXPECT_EQ(CodeOf(RequestOf(3, std::string(20, 'x'))), kNotFound);
  v1::SpmmRequest request = RequestOf(4, PlaceOf(4));
  request.mutable_start()->mutable_b()->mutable_shared()->set_offset(4);
  EXPECT_EQ(CodeOf(request), kInvalid) << "of no multiple of 64";
  request.mutable_start()->mutable_b()->mutable_shared()->set_offset(64);
  EXPECT_EQ(CodeOf(request), kInvalid) << "longer than what is left";
  request.mutable_start()->mutable_b()->mutable_shared()->set_offset(1 << 30);
  EXPECT_EQ(CodeOf(request), kInvalid);
  request.mutable_start()->mutable_b()->mutable_shared()->set_offset(0);
  request.mutable_start()->mutable_b()->mutable_shared()->set_region(std::string(16, 'x'));
  EXPECT_EQ(CodeOf(request), kNotFound);
  request = RequestOf(5, PlaceOf(5));
  request.mutable_start()->mutable_result()->set_stream(true);
  EXPECT_EQ(CodeOf(request), kInvalid) << "the result is not on the GPU";
  // Memory of the host's, and of another card.
  const File file(kCols * kWidth * sizeof(float));
  const std::string host = peer_->Share({file.fd()}).region();
  request = RequestOf(6, PlaceOf(6));
  request.mutable_start()->mutable_b()->mutable_shared()->set_region(host);
  EXPECT_EQ(CodeOf(request), kInvalid);
  Region other;
  Allocate(other, kCols * kWidth, 1);
  request.mutable_start()->mutable_b()->mutable_shared()->set_region(other.name);
  EXPECT_EQ(CodeOf(request), kInvalid);
  request.mutable_start()->clear_queue();
  std::copy(x_.begin(), x_.end(), other.floats);
  EXPECT_EQ(CodeOf(request), kOk) << "without a queue one copy does";
  EXPECT_TRUE(ResultIsThere());

  EXPECT_EQ(peer_->Ask(AllocateOf("", 64)).status().code(), kInvalid);
  EXPECT_EQ(peer_->Ask(AllocateOf(std::string(16, 'x'), 64)).status().code(), kPrecondition);
  EXPECT_EQ(peer_->Ask(AllocateOf(UuidOf(0), 0)).status().code(), kInvalid);
  EXPECT_EQ(peer_->Ask(AllocateOf(UuidOf(0), ~uint64_t{0})).status().code(), kExhausted);
  EXPECT_EQ(peer_->Ask(AllocateOf(UuidOf(0), uint64_t{1} << 40)).status().code(), kExhausted);
  EXPECT_EQ(peer_->Ask(OpenOf(UuidOf(0))).status().code(), kInvalid) << "no page";
  const File small(2048), large(8192), unsealed(4096, 0);
  EXPECT_EQ(peer_->Ask(OpenOf(UuidOf(0)), {small.fd()}).status().code(), kInvalid);
  EXPECT_EQ(peer_->Ask(OpenOf(UuidOf(0)), {large.fd()}).status().code(), kInvalid);
  EXPECT_EQ(peer_->Ask(OpenOf(UuidOf(0)), {unsealed.fd()}).status().code(), kInvalid);
  EXPECT_EQ(peer_->Ask(OpenOf("x"), {page_.fd()}).status().code(), kPrecondition);
  v1::LocalRequest close;
  close.mutable_close_queue()->set_queue(std::string(16, 'x'));
  EXPECT_EQ(peer_->Ask(close).status().code(), kNotFound);

  // A request in a queue that was closed; memory that was given back.
  EXPECT_EQ(CodeOf(RequestOf(7, PlaceOf(7))), kOk);
  close.mutable_close_queue()->set_queue(queue_);
  EXPECT_EQ(peer_->Ask(close).status().code(), kOk);
  EXPECT_EQ(CodeOf(RequestOf(8, PlaceOf(8))), kNotFound);
  EXPECT_EQ(peer_->Forget(c_.name).status().code(), kOk);
  EXPECT_EQ(CodeOf(RequestOf(9, "")), kNotFound);
  MakeGood(server_);
  ExpectGood(server_);
}

TEST_F(StandInQueues, AChainRunsInNone) {
  grpc::ClientContext context;
  auto chain = server_.compute().Chain(&context);
  v1::ChainRequest request;
  request.mutable_start()->set_request_id(1);
  request.mutable_start()->set_queue(PlaceOf(1));
  chain->Write(request);
  chain->WritesDone();
  std::map<uint64_t, Answer> answers;
  EXPECT_TRUE(ReadUntilEnds(*chain, 1, &answers));
  EXPECT_EQ(answers[1].code(), kUnimplemented);
  EXPECT_TRUE(chain->Finish().ok());
}

TEST_F(StandInQueues, ACallerThatGoesTakesWhatHasNotBegunWithIt) {
  const int64_t before = SharedBytes();
  EXPECT_GT(before, 0);
  EXPECT_EQ(Queues(), 1);
  EXPECT_EQ(CodeOf(RequestOf(1, PlaceOf(1))), kOk);
  peer_.reset();
  EXPECT_TRUE(Eventually([&] { return SharedBytes() == 0 && Queues() == 0; }));
  Begin(1);
  EXPECT_EQ(CodeOf(RequestOf(2, PlaceOf(2))), kNotFound);
  EXPECT_TRUE(ResultIsUntouched());
  EXPECT_EQ(ended(), 0U);
}

TEST_F(StandInQueues, MemoryStaysUntilTheQueueHasPassedIt) {
  EXPECT_EQ(CodeOf(RequestOf(1, PlaceOf(1))), kOk);
  v1::LocalRequest forget;
  forget.mutable_forget()->set_region(c_.name);
  const std::string asked = forget.SerializeAsString();
  const int64_t before = SharedBytes();
  peer_->Send(asked);
  // Requests do not find it any more, but one that had found it writes it.
  EXPECT_TRUE(Eventually([&] { return CodeOf(RequestOf(9, "")) == kNotFound; }));
  EXPECT_EQ(SharedBytes(), before);
  Begin(1);
  EXPECT_EQ(peer_->Receive()->status().code(), kOk) << "the answer comes when it has ended";
  EXPECT_EQ(ended(), 1U);
  EXPECT_TRUE(ResultIsThere());
  EXPECT_LT(SharedBytes(), before);
}

TEST_F(StandInQueues, AStreamThatComesTooLateBreaksItsQueueAlone) {
  v1::SpmmRequest request = RequestOf(1, PlaceOf(1));
  request.mutable_start()->set_timeout_ns(300'000'000);
  const int code = CodeOf(request);
  if (code != kOk) GTEST_SKIP() << "the machine is too slow for a third of a second";
  EXPECT_EQ(CodeOf(RequestOf(2, PlaceOf(2))), kOk);
  EXPECT_TRUE(Eventually([&] { return failed() == 2; }));
  EXPECT_TRUE(Eventually([&] { return ended() == 2; })) << "the caller's stream goes on";
  EXPECT_EQ(CodeOf(RequestOf(3, PlaceOf(3))), kAborted);
  Begin(3);
  EXPECT_TRUE(ResultIsUntouched());
  // Another queue, on a page of its own.
  const File page(4096);
  const v1::LocalReply reply = peer_->Ask(OpenOf(UuidOf(0)), {page.fd()});
  ASSERT_EQ(reply.status().code(), kOk);
  queue_ = reply.queue();
  reinterpret_cast<uint32_t*>(page.floats())[0] = 1;
  EXPECT_EQ(CodeOf(RequestOf(4, PlaceOf(1))), kOk);
  EXPECT_TRUE(ResultIsThere());
}

TEST_F(StandInQueues, AKernelThatFailsBreaksTheQueue) {
  EXPECT_EQ(CodeOf(RequestOf(1, PlaceOf(1))), kOk);
  stand_in::Fail(stand_in::Step::kKernel, 0, 1, absl::InternalError("a broken kernel"));
  Begin(1);
  EXPECT_TRUE(Eventually([&] { return failed() == 1 && ended() == 1; }));
  const Answer answer = Ask(RequestOf(2, PlaceOf(2)));
  EXPECT_EQ(answer.code(), kAborted);
  EXPECT_NE(answer.message().find("a broken kernel"), std::string::npos) << answer.message();
  stand_in::Heal();
  stand_in::PassAfter(0);
  MakeGood(server_);
  ExpectGood(server_);
}

TEST_F(StandInQueues, ALostGpuLetsTheCallersStreamGoOn) {
  EXPECT_EQ(CodeOf(RequestOf(1, PlaceOf(1))), kOk);
  stand_in::Fail(stand_in::Step::kKernel, 0, 1, absl::UnavailableError("the card is gone"));
  Begin(1);
  EXPECT_TRUE(Eventually([&] { return failed() == 1 && ended() == 1; }));
  EXPECT_EQ(CodeOf(RequestOf(2, PlaceOf(2))), kUnavailable);
}

TEST_F(StandInQueues, WithoutRoomItIsSaidBeforeAnythingIsTaken) {
  // S's values, of the request's own, need room for a copy in the layout's order; here for none.
  Region own;
  Allocate(own, pattern_.nnz());
  v1::SpmmRequest request = RequestOf(1, PlaceOf(1));
  v1::Operand& values = *request.mutable_start()->mutable_values();
  values.mutable_shared()->set_region(own.name);
  values.mutable_shape()->set_rows(pattern_.nnz());
  values.mutable_shape()->set_cols(1);
  values.mutable_shape()->set_type(v1::ELEMENT_TYPE_F32);
  Begin(10);
  EXPECT_EQ(CodeOf(request), kOk);
  EXPECT_TRUE(Eventually([&] { return ended() == 1; }));
  stand_in::Fail(stand_in::Step::kAllocate, 0, 1000, absl::ResourceExhaustedError("no room"));
  request.mutable_start()->set_request_id(2);
  request.mutable_start()->set_queue(PlaceOf(2));
  EXPECT_EQ(CodeOf(request), kExhausted);
  stand_in::Heal();
  stand_in::PassAfter(0);
  EXPECT_EQ(ended(), 1U);
  EXPECT_EQ(failed(), 0U);
  // The number is used up; the queue goes on.
  EXPECT_EQ(CodeOf(RequestOf(3, PlaceOf(3))), kOk);
  EXPECT_TRUE(ResultIsThere());
}

TEST_F(StandInQueues, AQueueTakesOnlySoMany) {
  const auto most = static_cast<uint32_t>(engine::DeviceQueue::kMostRequests);
  for (uint32_t i = 1; i <= most; ++i) ASSERT_EQ(CodeOf(RequestOf(i, PlaceOf(i))), kOk);
  EXPECT_EQ(CodeOf(RequestOf(most + 1, PlaceOf(most + 1))), kExhausted);
  Begin(most);
  EXPECT_TRUE(Eventually([&] { return ended() == most; }));
  Begin(most + 2);
  EXPECT_EQ(CodeOf(RequestOf(most + 2, PlaceOf(most + 2))), kOk);
  std::vector<std::string> more;
  for (int i = 0; i < 100; ++i) {
    const v1::LocalReply reply = peer_->Ask(OpenOf(UuidOf(0)), {page_.fd()});
    if (reply.status().code() == kExhausted) break;
    ASSERT_EQ(reply.status().code(), kOk) << reply.status().message();
    more.push_back(reply.queue());
  }
  EXPECT_EQ(more.size(), 63U) << "of one connection";
}

TEST_F(StandInQueues, ATenantLeavesAsManyToOthers) {
  std::vector<std::unique_ptr<Peer>> peers;
  size_t open = 1;  // of the first
  v1::LocalReply reply;
  for (bool refused = false; !refused;) {
    ASSERT_LT(peers.size(), 10U);
    peers.push_back(std::make_unique<Peer>(server_));
    peers.back()->Receive();
    for (int i = 0; i < 64 && !refused; ++i) {
      reply = peers.back()->Ask(OpenOf(UuidOf(0)), {page_.fd()});
      refused = reply.status().code() != kOk;
      if (!refused) ++open;
    }
  }
  EXPECT_EQ(reply.status().code(), kExhausted) << reply.status().message();
  EXPECT_EQ(open, engine::DeviceQueues::kMost / 2);
  // Another card has its own; and who closes some may open others.
  EXPECT_EQ(peers.back()->Ask(OpenOf(UuidOf(1)), {page_.fd()}).status().code(), kOk);
  peers.erase(peers.begin());
  EXPECT_TRUE(Eventually(
      [&] { return peer_->Ask(OpenOf(UuidOf(0)), {page_.fd()}).status().code() == kOk; }));
}

TEST_F(StandInQueues, TheServerClosesWithRequestsThatWait) {
  EXPECT_EQ(CodeOf(RequestOf(1, PlaceOf(1))), kOk);
  // The destructor of the server is the test.
}

}  // namespace
}  // namespace sparsed::test
