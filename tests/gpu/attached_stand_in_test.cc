// Attached callers of a GPU that a test tells what to do (stand_in.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tests/gpu/gpu.h"
#include "tests/gpu/stand_in.h"
#include "tests/rpc/local_peer.h"
#include "tests/rpc/test_server.h"

// The client's types have names of the kernels': they come after them.
#include "sparsed/attached.h"
#include "tests/unit/client/client_matrices.h"
#include "tests/unit/client/eventually.h"

namespace sparsed::test {
namespace {

namespace stand_in = cuda::stand_in;

/// Its memory is the host's.
class StandInAttached : public testing::Test {
 protected:
  StandInAttached() {
    auto client = Client::Connect(server_.address());
    EXPECT_TRUE(client.ok()) << client.status();
    client_.emplace(*std::move(client));
    Upload(*client_, "m", s_);
    auto attached = AttachedMatrix::Attach(*client_, "m", {.gpu = 0});
    EXPECT_TRUE(attached.ok()) << attached.status();
    attached_.emplace(*std::move(attached));
  }
  ~StandInAttached() override { stand_in::Heal(); }

  absl::StatusOr<ComputeResult> Spmm(GpuStream stream = {}, const SpmmOptions& options = {}) {
    return attached_->Spmm(stream, DenseView(b_.data(), s_.cols, kWidth),
                           MutableDenseView(c_.data(), s_.rows, kWidth), options);
  }

  static constexpr int64_t kWidth = 8;
  TestServer server_{[](server::Config& config) {
    config.devices = {"cuda:0"};
    WithLocal(config);
    WithPages(config);
  }};
  CsrMatrix s_ = RandomMatrix(40, 30, 1);
  std::vector<float> b_ = RandomDense(30 * kWidth, 3), c_ = std::vector<float>(40 * kWidth);
  std::optional<Client> client_;
  std::optional<AttachedMatrix> attached_;
};

TEST_F(StandInAttached, ManyStreamsDoNotWaitForOneAnother) {
  ASSERT_TRUE(Spmm().ok());
  const stand_in::Waits before = stand_in::WaitsOfThisThread();
  for (uintptr_t i = 1; i <= 500; ++i) {
    ASSERT_TRUE(Spmm({reinterpret_cast<void*>(i)}).ok());
    ASSERT_EQ(c_, Multiply(s_, false, b_, kWidth)) << i;
  }
  EXPECT_EQ(stand_in::WaitsOfThisThread().events, before.events);
  EXPECT_EQ(attached_->runs(), 501);
}

TEST_F(StandInAttached, OfALostGpuOldValuesAreNotUsed) {
  ASSERT_TRUE(Spmm().ok());
  auto& values = std::get<std::vector<float>>(s_.values);
  for (float& value : values) value += 1;
  ASSERT_TRUE(client_->MatrixNamed("m").UpdateValues(std::span<const float>(values)).ok());
  // The server, asked for the new values, says UNAVAILABLE; it is not gone.
  stand_in::Fail(stand_in::Step::kCopy, 0, 1, absl::UnavailableError("lost"));
  const auto done = Spmm();
  if (done.ok()) {
    EXPECT_EQ(done->version, 2u);
    EXPECT_EQ(c_, Multiply(s_, false, b_, kWidth));
  }
  EXPECT_EQ(attached_->runs(), 1);
}

TEST_F(StandInAttached, TimesAreAccountedThoughValuesChangeAtEveryStep) {
  stand_in::PassAfter(2);
  auto& values = std::get<std::vector<float>>(s_.values);
  for (int step = 0; step < 10; ++step) {
    ASSERT_TRUE(client_->MatrixNamed("m").UpdateValues(std::span<const float>(values)).ok());
    ASSERT_TRUE(Spmm().ok());
  }
  EXPECT_EQ(attached_->runs(), 10);
  const std::string name =
      R"(sparsed_attached_kernel_seconds_total{device="cuda:0",op="spmm",tenant="default"} )";
  EXPECT_TRUE(Eventually([&] {
    const std::string metrics = server_.Page("/metrics");
    const size_t at = metrics.find(name);
    return at != std::string::npos && std::stod(metrics.substr(at + name.size())) > 0;
  }));
}

TEST_F(StandInAttached, WhatIsRefusedIsNotAskedForByEveryProduct) {
  std::atomic<int> refused = 0;
  server_.engine().budget().SetRefuse([&](size_t /*bytes*/, engine::MemoryUse use) {
    if (use == engine::MemoryUse::kShared) ++refused;
    return use == engine::MemoryUse::kShared;
  });
  const auto on_cpu = AttachedMatrix::Attach(*client_, "m");
  ASSERT_TRUE(on_cpu.ok()) << on_cpu.status();
  const auto product = [&] {
    const auto done = on_cpu->Spmm(DenseView(b_.data(), s_.cols, kWidth),
                                   MutableDenseView(c_.data(), s_.rows, kWidth));
    EXPECT_TRUE(done.ok()) << done.status();
  };
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 100; ++i) product();
  const auto seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(refused, 1);
  // Memory is asked for again once something was evicted.
  EXPECT_LE(refused, 2 * (1 + seconds / std::chrono::seconds(1)));
  EXPECT_EQ(on_cpu->status().code(), absl::StatusCode::kResourceExhausted) << on_cpu->status();
  EXPECT_EQ(on_cpu->runs(), 0);
  server_.engine().budget().SetRefuse(nullptr);
  EXPECT_TRUE(Eventually([&] {
    product();
    return on_cpu->runs() > 0;
  }));
  EXPECT_TRUE(on_cpu->status().ok()) << on_cpu->status();
}

TEST_F(StandInAttached, ChainsDoNotWait) {
  Chain chain;
  const auto b = chain.Input(DenseView(b_.data(), s_.cols, kWidth));
  const auto weights = chain.Scale(client_->MatrixNamed("m"), {});
  chain.Output(chain.Spmm(client_->MatrixNamed("m"), b, {.values = weights}),
               MutableDenseView(c_.data(), s_.rows, kWidth));
  const auto run = [&](uintptr_t stream) {
    std::ranges::fill(c_, -1.0F);
    const auto done = attached_->Run(GpuStream{reinterpret_cast<void*>(stream)}, chain);
    ASSERT_TRUE(done.ok()) << done.status();
    ASSERT_EQ(done->transport, Transport::kAttached);
    ASSERT_EQ(c_, Multiply(s_, false, b_, kWidth));
  };
  run(1);
  const stand_in::Waits before = stand_in::WaitsOfThisThread();
  for (int i = 0; i < 200; ++i) run(1);
  for (uintptr_t stream = 2; stream < 300; ++stream) run(stream);
  EXPECT_EQ(stand_in::WaitsOfThisThread().events, before.events);
  EXPECT_EQ(attached_->runs(), 499);
}

TEST_F(StandInAttached, AChainThatFindsNoMemoryRunsOnTheServer) {
  Chain chain;
  const auto b = chain.Input(DenseView(b_.data(), s_.cols, kWidth));
  chain.Output(chain.Sum({{chain.Spmm(client_->MatrixNamed("m"), b), 2}}),
               MutableDenseView(c_.data(), s_.rows, kWidth));
  ASSERT_TRUE(attached_->Run(GpuStream{}, chain).ok());
  ASSERT_EQ(attached_->runs(), 1);
  std::ranges::fill(c_, -1.0F);
  stand_in::Fail(stand_in::Step::kAllocate, 0, 2, absl::ResourceExhaustedError("no memory"));
  const auto done = attached_->Run(GpuStream{reinterpret_cast<void*>(uintptr_t{7})}, chain);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(attached_->runs(), 1);
  std::vector<float> expected = Multiply(s_, false, b_, kWidth);
  for (float& x : expected) x *= 2;
  EXPECT_EQ(c_, expected);
  // What fails otherwise is said.
  stand_in::Fail(stand_in::Step::kKernel, 0, 1000, absl::InternalError("broken"));
  EXPECT_EQ(attached_->Run(GpuStream{}, chain).status().code(), absl::StatusCode::kInternal);
}

TEST_F(StandInAttached, WhereThereIsNoMemoryAWorkspaceTakesThePlaceOfTheSmallerOne) {
  const auto chain_of = [&](int64_t width) {
    Chain chain;
    const auto b = chain.Input(DenseView(b_.data(), s_.cols, width));
    chain.Output(chain.Sum({{chain.Spmm(client_->MatrixNamed("m"), b), 2}}),
                 MutableDenseView(c_.data(), s_.rows, width));
    return chain;
  };
  const GpuStream stream{reinterpret_cast<void*>(uintptr_t{7})};
  ASSERT_TRUE(attached_->Run(GpuStream{}, chain_of(kWidth)).ok());
  ASSERT_TRUE(attached_->Run(stream, chain_of(1)).ok());
  ASSERT_EQ(attached_->runs(), 2);
  const stand_in::Waits before = stand_in::WaitsOfThisThread();
  stand_in::Fail(stand_in::Step::kAllocate, 0, 1, absl::ResourceExhaustedError("no memory"));
  const auto done = attached_->Run(stream, chain_of(kWidth));
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(stand_in::Failed(stand_in::Step::kAllocate), 1);
  EXPECT_EQ(done->transport, Transport::kAttached);
  EXPECT_EQ(attached_->runs(), 3);
  EXPECT_GT(stand_in::WaitsOfThisThread().streams, before.streams);
  std::vector<float> expected = Multiply(s_, false, b_, kWidth);
  for (float& x : expected) x *= 2;
  EXPECT_EQ(c_, expected);
}

TEST_F(StandInAttached, MatricesThatNoMemoryHoldsAreRefused) {
  float element = 0;
  const auto done = attached_->Spmm({}, DenseView(&element, int64_t{1} << 62, kWidth),
                                    MutableDenseView(c_.data(), s_.rows, kWidth));
  EXPECT_EQ(done.status().code(), absl::StatusCode::kResourceExhausted) << done.status();
}

}  // namespace
}  // namespace sparsed::test
