// Memory that callers allocated on a GPU themselves, with a GPU made of the CPU (stand_in.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/execution/gpu_backend.h"
#include "kernels/cuda/ipc_memory.h"
#include "kernels/reference/reference.h"
#include "tests/gpu/stand_in.h"
#include "tests/rpc/local_peer.h"
#include "tests/rpc/test_server.h"

// The client's types have names of the kernels': they come after them.
#include "sparsed/chain.h"
#include "sparsed/gpu_memory.h"

namespace sparsed::test {
namespace {

using cuda::stand_in::CallerAllocation;
using cuda::stand_in::OpenHandles;
using ::testing::HasSubstr;

constexpr int64_t kRows = 60, kCols = 50, kWidth = 4;
constexpr size_t kBytesOfB = kCols * kWidth * sizeof(float);
constexpr size_t kBytesOfC = kRows * kWidth * sizeof(float);
constexpr int kDenied = 7;

v1::LocalRequest OpenOf(const CallerAllocation& memory, size_t bytes, int card = 0) {
  const cuda::DeviceScope scope(card);
  const cuda::Allocation allocation = *cuda::AllocationOf(memory.floats());
  const cuda::IpcHandle handle = *cuda::HandleOf(allocation);
  v1::LocalRequest request;
  v1::OpenCallerMemory& open = *request.mutable_open_caller_memory();
  open.set_gpu(*cuda::DeviceUuid(card));
  open.set_handle(handle.data(), handle.size());
  open.set_bytes(bytes);
  open.set_allocation(allocation.id);
  return request;
}

/// A server of two cards that trusts its callers, one of whom has B and C.
class CallerMemory : public testing::Test {
 protected:
  explicit CallerMemory(bool trusts = true)
      : server_(std::in_place, [trusts](server::Config& config) {
          config.devices = {"cuda:0", "cuda:1"};
          config.trust_caller_gpu_memory = trusts;
          WithLocal(config);
          WithPages(config);
        }) {
    cuda::stand_in::PassAfter(0);
    values_ = MustUpload(*server_, "s", pattern_);
    const std::vector<float> x = FloatValues(kCols * kWidth, 2);
    std::ranges::copy(x, b_->floats());
    Poison();
    const std::vector<double> s(values_.begin(), values_.end()), wide(x.begin(), x.end());
    reference::Spmm(pattern_.view(), s.data(), false, wide.data(), kWidth, kWidth, 1, 0,
                    expected_.data());
  }
  ~CallerMemory() override { cuda::stand_in::Heal(); }

  void Poison() { std::fill_n(c_->floats(), kRows * kWidth, -1.0F); }
  /// And poisons it again.
  bool ResultIsThere() {
    const bool there =
        std::equal(expected_.begin(), expected_.end(), c_->floats(),
                   [](double wanted, float found) { return std::abs(wanted - found) < 1e-5; });
    Poison();
    return there;
  }
  std::string MustOpen(Peer& peer, const CallerAllocation& memory, size_t bytes) {
    const v1::LocalReply reply = peer.Ask(OpenOf(memory, bytes));
    EXPECT_EQ(reply.status().code(), kOk) << reply.status().message();
    return reply.region();
  }
  /// A product of a request that names these regions.
  int Multiply(const std::string& b, const std::string& c) {
    v1::SpmmRequest request = SpmmStartOf(1, "s", kCols, kWidth);
    v1::SpmmStart& start = *request.mutable_start();
    start.mutable_b()->mutable_shared()->set_region(b);
    auto& to = *start.mutable_result()->mutable_shared();
    to.mutable_memory()->set_region(c);
    to.mutable_shape()->set_rows(kRows);
    to.mutable_shape()->set_cols(kWidth);
    to.mutable_shape()->set_type(v1::ELEMENT_TYPE_F32);
    grpc::ClientContext context;
    const std::unique_ptr<SpmmStream> stream = server_->compute().Spmm(&context);
    stream->Write(request);
    stream->WritesDone();
    std::map<uint64_t, Answer> answers;
    EXPECT_TRUE(ReadUntilEnds(*stream, 1, &answers));
    EXPECT_TRUE(stream->Finish().ok());
    return answers[1].code();
  }
  int64_t SharedOnGpu() {
    return server_->engine().gpus().front()->budget().used(engine::MemoryUse::kShared);
  }

  void Connect() {
    auto client = Client::Connect(server_->address());
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    auto memory = GpuMemory::Open(*client_, 0);
    ASSERT_TRUE(memory.ok()) << memory.status();
    memory_ = *std::move(memory);
  }
  absl::StatusOr<QueuedResult> Queue(const float* b, float* c) {
    return QueuedMatrix(*memory_, client_->MatrixNamed("s"))
        .Spmm({}, DenseView(b, kCols, kWidth), MutableDenseView(c, kRows, kWidth));
  }
  absl::StatusOr<QueuedResult> Queue() { return Queue(b_->floats(), c_->floats()); }

  std::optional<TestServer> server_;
  const Pattern pattern_ = Uniform(kRows, kCols, 5, 3);
  std::vector<float> values_;
  std::vector<double> expected_ = std::vector<double>(kRows * kWidth);
  /// 64 bytes more than they need.
  std::optional<CallerAllocation> b_{std::in_place, kBytesOfB + 64},
      c_{std::in_place, kBytesOfC + 64};
  std::optional<Client> client_;
  std::optional<GpuMemory> memory_;
};

class UntrustedCallerMemory : public CallerMemory {
 protected:
  UntrustedCallerMemory() : CallerMemory(/*trusts=*/false) {}
};

TEST_F(CallerMemory, RequestsNameIt) {
  {
    Peer peer(*server_);
    peer.Receive();
    const std::string b = MustOpen(peer, *b_, kBytesOfB), c = MustOpen(peer, *c_, kBytesOfC);
    EXPECT_EQ(OpenHandles(), 2);
    EXPECT_EQ(SharedOnGpu(), 0) << "it is the caller's";
    EXPECT_EQ(Multiply(b, c), kOk);
    EXPECT_TRUE(ResultIsThere());
    EXPECT_EQ(Multiply(c, b), kInvalid) << "they are of other sizes";
    EXPECT_EQ(peer.Forget(b).status().code(), kOk);
    EXPECT_EQ(OpenHandles(), 1) << "the answer comes when it is closed";
    EXPECT_EQ(Multiply(b, c), kNotFound);
  }
  EXPECT_TRUE(Eventually([] { return OpenHandles() == 0; })) << "the caller has gone";
}

TEST_F(CallerMemory, OneHandleIsOpenedOnceForAll) {
  Peer one(*server_), other(*server_);
  one.Receive();
  other.Receive();
  const std::string b = MustOpen(one, *b_, kBytesOfB), again = MustOpen(one, *b_, kBytesOfB),
                    others = MustOpen(other, *b_, kBytesOfB), c = MustOpen(one, *c_, kBytesOfC);
  EXPECT_EQ(OpenHandles(), 2);
  for (const std::string& name : {b, again, others}) {
    EXPECT_EQ(Multiply(name, c), kOk);
    EXPECT_TRUE(ResultIsThere());
  }
  EXPECT_EQ(other.Forget(b).status().code(), kNotFound) << "it is another connection's";
  EXPECT_EQ(one.Forget(b).status().code(), kOk);
  EXPECT_EQ(one.Forget(again).status().code(), kOk);
  EXPECT_EQ(Multiply(others, c), kOk);
  EXPECT_TRUE(ResultIsThere());
  EXPECT_EQ(other.Forget(others).status().code(), kOk);
  EXPECT_EQ(OpenHandles(), 1);
  EXPECT_EQ(Multiply(MustOpen(one, *b_, kBytesOfB), c), kOk) << "opened anew";
}

TEST_F(CallerMemory, WhatIsWrongIsRefusedAndHarmsNobody) {
  Peer peer(*server_);
  peer.Receive();
  const auto code_of = [&](const auto& change) {
    v1::LocalRequest request = OpenOf(*b_, kBytesOfB);
    change(*request.mutable_open_caller_memory());
    return peer.Ask(request).status().code();
  };
  using Open = v1::OpenCallerMemory;
  EXPECT_EQ(code_of([](Open& open) { open.set_gpu(""); }), kInvalid);
  EXPECT_EQ(code_of([](Open& open) { open.set_gpu(std::string(16, 'x')); }), kPrecondition);
  EXPECT_EQ(code_of([](Open& open) { open.set_gpu(*cuda::DeviceUuid(1)); }), kInvalid)
      << "it is of the other card";
  EXPECT_EQ(code_of([](Open& open) { open.set_handle(""); }), kInvalid);
  EXPECT_EQ(code_of([](Open& open) { open.set_handle(std::string(64, 0)); }), kInvalid);
  EXPECT_EQ(code_of([](Open& open) { open.set_handle(open.handle() + "x"); }), kInvalid);
  EXPECT_EQ(code_of([](Open& open) { open.mutable_handle()->front() = 'x'; }), kInvalid);
  EXPECT_EQ(code_of([](Open& open) { open.set_bytes(0); }), kInvalid);
  EXPECT_EQ(code_of([](Open& open) { open.set_bytes(kBytesOfB + 65); }), kInvalid);
  EXPECT_EQ(code_of([](Open& open) { open.set_bytes(~uint64_t{0}); }), kInvalid);
  EXPECT_EQ(OpenHandles(), 0);
  const v1::LocalRequest stale = OpenOf(*b_, kBytesOfB);
  b_.reset();
  const v1::LocalReply reply = peer.Ask(stale);
  EXPECT_EQ(reply.status().code(), kInvalid);
  EXPECT_THAT(reply.status().message(), HasSubstr("the handle does not open"));
  // Names and offsets.
  b_.emplace(kBytesOfB);
  const std::string b = MustOpen(peer, *b_, kBytesOfB);
  EXPECT_EQ(Multiply(b, std::string(16, 'x')), kNotFound);
  EXPECT_EQ(Multiply(b, b), kInvalid);
  MakeGood(*server_);
  ExpectGood(*server_);
}

TEST_F(CallerMemory, AnotherAllocationInItsPlaceIsNotTakenForIt) {
  Peer peer(*server_);
  peer.Receive();
  const std::string b = MustOpen(peer, *b_, kBytesOfB), c = MustOpen(peer, *c_, kBytesOfC);
  b_->Reallocate();
  EXPECT_EQ(peer.Ask(OpenOf(*b_, kBytesOfB)).status().code(), kPrecondition);
  EXPECT_EQ(Multiply(b, c), kOk) << "what was freed is there until it is forgotten";
  EXPECT_EQ(peer.Forget(b).status().code(), kOk);
  EXPECT_EQ(Multiply(MustOpen(peer, *b_, kBytesOfB), c), kOk);
}

TEST_F(CallerMemory, RegionsOfAConnectionAreBounded) {
  Peer peer(*server_);
  peer.Receive();
  for (int i = 0; i < 1024; ++i) MustOpen(peer, *b_, kBytesOfB);
  EXPECT_EQ(peer.Ask(OpenOf(*b_, kBytesOfB)).status().code(), kExhausted);
  EXPECT_EQ(OpenHandles(), 1);
}

TEST_F(UntrustedCallerMemory, IsRefusedWithTheFlagsName) {
  Peer peer(*server_);
  peer.Receive();
  const v1::LocalReply reply = peer.Ask(OpenOf(*b_, kBytesOfB));
  EXPECT_EQ(reply.status().code(), kDenied);
  EXPECT_THAT(reply.status().message(), HasSubstr("--trust-caller-gpu-memory"));
}

TEST_F(UntrustedCallerMemory, IsCopied) {
  Connect();
  for (int i = 0; i < 3; ++i) {
    const auto done = Queue();
    ASSERT_TRUE(done.ok()) << done.status();
    EXPECT_TRUE(done->queued);
    EXPECT_EQ(done->copied_bytes, kBytesOfB + kBytesOfC);
    EXPECT_EQ(done->in_place_bytes, 0);
    EXPECT_TRUE(ResultIsThere());
  }
  EXPECT_EQ(OpenHandles(), 0);
  // A request would have the host read it.
  const auto plain = client_->MatrixNamed("s").Spmm(DenseView(b_->floats(), kCols, kWidth),
                                                    MutableDenseView(c_->floats(), kRows, kWidth));
  EXPECT_EQ(plain.status().code(), absl::StatusCode::kFailedPrecondition) << plain.status();
  EXPECT_THAT(plain.status().message(), HasSubstr("--trust-caller-gpu-memory"));
}

TEST_F(CallerMemory, QueuedProductsUseItWhereItIs) {
  Connect();
  for (int i = 0; i < 3; ++i) {
    const auto done = Queue();
    ASSERT_TRUE(done.ok()) << done.status();
    EXPECT_TRUE(done->queued);
    EXPECT_EQ(done->copied_bytes, 0);
    EXPECT_EQ(done->in_place_bytes, kBytesOfB + kBytesOfC);
    EXPECT_TRUE(ResultIsThere());
  }
  EXPECT_EQ(OpenHandles(), 2);
  EXPECT_EQ(SharedOnGpu(), 0);
  EXPECT_THAT(server_->Page("/metrics"),
              HasSubstr("sparsed_transfer_bytes_total{direction=\"in\",path=\"shared_device\"} " +
                        std::to_string(3 * kBytesOfB)));
  client_.reset();
  memory_.reset();
  EXPECT_TRUE(Eventually([] { return OpenHandles() == 0; }));
}

TEST_F(CallerMemory, WhatCannotBeUsedWhereItIsIsCopied) {
  Connect();
  // At no multiple of 64 bytes, and on the other card.
  const std::vector<float> x(b_->floats(), b_->floats() + kCols * kWidth);
  std::ranges::copy(x, b_->floats() + 1);
  const auto done = Queue(b_->floats() + 1, c_->floats());
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->copied_bytes, kBytesOfB);
  EXPECT_EQ(done->in_place_bytes, kBytesOfC);
  EXPECT_TRUE(ResultIsThere());
  const CallerAllocation other(kBytesOfB, 1);
  std::ranges::copy(x, other.floats());
  const auto from_other = Queue(other.floats(), c_->floats());
  ASSERT_TRUE(from_other.ok()) << from_other.status();
  EXPECT_EQ(from_other->copied_bytes, kBytesOfB);
  EXPECT_EQ(from_other->in_place_bytes, kBytesOfC);
  EXPECT_TRUE(ResultIsThere());
  // In parts that begin at one.
  std::ranges::copy(x, b_->floats() + 16);
  const auto behind = Queue(b_->floats() + 16, c_->floats());
  ASSERT_TRUE(behind.ok()) << behind.status();
  EXPECT_EQ(behind->copied_bytes, 0);
  EXPECT_TRUE(ResultIsThere());
}

TEST_F(CallerMemory, PlainRequestsAndChainsUseItWhereItIs) {
  Connect();
  const Matrix matrix = client_->MatrixNamed("s");
  const DenseView b(b_->floats(), kCols, kWidth);
  const MutableDenseView c(c_->floats(), kRows, kWidth);
  const auto plain = matrix.Spmm(b, c);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_TRUE(ResultIsThere());
  Chain chain;
  chain.Output(chain.Spmm(matrix, chain.Input(b)), c);
  const auto chained = client_->Run(chain);
  ASSERT_TRUE(chained.ok()) << chained.status();
  EXPECT_TRUE(ResultIsThere());
  EXPECT_EQ(OpenHandles(), 2);
}

TEST_F(CallerMemory, WhatWasFreedIsForgotten) {
  Connect();
  ASSERT_TRUE(Queue().ok());
  EXPECT_EQ(OpenHandles(), 2);
  b_.reset();
  EXPECT_TRUE(Eventually([] { return OpenHandles() == 1; }));
}

TEST_F(CallerMemory, AnotherAllocationInItsPlaceIsHandedOverAnew) {
  Connect();
  for (int i = 0; i < 5; ++i) {
    const auto done = Queue();
    ASSERT_TRUE(done.ok()) << done.status();
    EXPECT_EQ(done->copied_bytes + done->in_place_bytes, kBytesOfB + kBytesOfC);
    EXPECT_TRUE(ResultIsThere());
    b_->Reallocate();
  }
  EXPECT_TRUE(Eventually([&] {
    const auto done = Queue();
    return done.ok() && done->copied_bytes == 0;
  }));
}

TEST_F(CallerMemory, TheServerKnowsABoundedNumber) {
  Connect();
  std::vector<std::unique_ptr<CallerAllocation>> many;
  for (int i = 0; i < 300; ++i) {
    many.push_back(std::make_unique<CallerAllocation>(kBytesOfB));
    const auto done = Queue(many.back()->floats(), c_->floats());
    ASSERT_TRUE(done.ok()) << done.status();
    EXPECT_EQ(done->copied_bytes, 0);
  }
  EXPECT_TRUE(Eventually([] { return OpenHandles() <= 256; }));
}

TEST_F(CallerMemory, ManyThreadsUseIt) {
  Connect();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this] {
      for (int j = 0; j < 20; ++j) {
        const CallerAllocation own(kBytesOfC);
        EXPECT_TRUE(Queue(b_->floats(), own.floats()).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(Eventually([] { return OpenHandles() <= 1; }));
}

TEST_F(CallerMemory, WithoutTheServerProductsEndWithAnError) {
  Connect();
  ASSERT_TRUE(Queue().ok());
  server_.reset();
  EXPECT_FALSE(Queue().ok());
  EXPECT_EQ(OpenHandles(), 0);
}

}  // namespace
}  // namespace sparsed::test
