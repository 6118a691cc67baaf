// An engine with two cards: where requests run, and what they find there.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "kernels/reference/reference.h"
#include "tests/unit/engine/calls.h"
#include "tests/unit/engine/rooms.h"

namespace sparsed::engine {
namespace {

constexpr int64_t kRows = 500, kK = 24;

class SeveralDevices : public ::testing::Test {
 protected:
  void SetUp() override {
    EngineOptions options;
    options.host_memory_bytes = options.preparation_memory_bytes = int64_t{512} << 20;
    options.gpu = DeviceOptions{.memory_bytes = int64_t{1} << 30};
    options.gpu_ordinals = {0, 1};
    options.preparation.enabled = false;
    engine_ = Engine::Open(options, observer_).value();
    if (engine_->gpus().size() < 2) GTEST_SKIP() << engine_->devices().back().unavailable;
    ASSERT_TRUE(SendMatrix(engine_->catalog(), "s", pattern_).ok());
  }

  void Hold(const std::string& name, const std::vector<float>& data) {
    auto put = engine_->dense().BeginPut(
        {"t", name, {kRows, kK, kK, ElementType::kF32}, /*zeros=*/data.empty(), false});
    ASSERT_TRUE(put.ok()) << put.status();
    ASSERT_TRUE(data.empty() || Feed(**put, 0, data).ok());
    ASSERT_TRUE((*put)->Finish().ok());
  }
  absl::StatusOr<std::shared_ptr<Call>> Begin(const std::string& b, const std::string& c,
                                              const std::shared_ptr<Result>& sink) {
    SpmmSpec spec;
    spec.tenant = std::string("t");
    spec.matrix = std::string("s");
    if (b.empty()) {
      spec.b.shape = DenseShape{kRows, kK, kK, ElementType::kF32};
    } else {
      spec.b.held = b;
    }
    spec.result.held = c;
    return engine_->executor().Begin(spec, sink);
  }
  static absl::Status Finish(Call& call, const std::vector<float>& b, Result& sink) {
    if (!b.empty()) {
      const size_t size = b.size() * sizeof(float);
      absl::StatusOr<ClaimedBytes> to = call.Claim(0, 0, size);
      if (!to.ok()) return to.status();
      std::memcpy(to->data(), b.data(), size);
      if (absl::Status s = to->Commit(); !s.ok()) return s;
    }
    call.Submit();
    return sink.Wait();
  }
  /// The device that a product of buffers ran on.
  std::string Multiply(const std::string& b, const std::string& c) {
    const auto sink = std::make_shared<Result>();
    auto call = Begin(b, c, sink);
    EXPECT_TRUE(call.ok()) << call.status();
    if (!call.ok()) return "";
    const absl::Status ended = Finish(**call, {}, *sink);
    EXPECT_TRUE(ended.ok()) << ended;
    return observer_.last();
  }

  std::vector<double> Product(const std::vector<double>& b) const {
    const std::vector<float> floats = FloatsOf(pattern_);
    const std::vector<double> values(floats.begin(), floats.end());
    std::vector<double> c(kRows * kK);
    reference::Spmm(pattern_.view(), values.data(), false, b.data(), kK, kK, 1, 0, c.data());
    return c;
  }
  static void ExpectNear(const std::vector<float>& got, const std::vector<double>& expected) {
    ASSERT_EQ(got.size(), expected.size());
    double worst = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      worst = std::max(worst, std::abs(got[i] - expected[i]) / (1 + std::abs(expected[i])));
    }
    EXPECT_LE(worst, 1e-4);
  }
  static std::vector<float> Random(uint64_t seed) {
    const std::vector<double> values = test::RandomValues(kRows * kK, seed);
    return {values.begin(), values.end()};
  }

  class Listener final : public Observer {
   public:
    void OnKernelRun(const KernelRun& run) override {
      std::lock_guard lock(mutex_);
      last_ = run.device;
      ++runs_[last_];
    }
    std::string last() {
      std::lock_guard lock(mutex_);
      return last_;
    }
    std::map<std::string, int> runs() {
      std::lock_guard lock(mutex_);
      return runs_;
    }

   private:
    std::mutex mutex_;
    std::string last_;
    std::map<std::string, int> runs_;
  };

  const test::Pattern pattern_ = test::Uniform(kRows, kRows, 6, 12);
  Listener observer_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(SeveralDevices, AChainStaysWhereItsOperandsAre) {
  const std::vector<float> x = Random(1);
  Hold("x", x);
  Hold("y", {});
  Hold("z", {});
  const std::string first = Multiply("x", "y");
  const auto out = [&] {
    int64_t bytes = 0;
    for (const auto& gpu : engine_->gpus()) bytes += gpu->bytes_out();
    return bytes;
  };
  const int64_t before = out();
  std::vector<double> expected(x.begin(), x.end());
  expected = Product(expected);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(Multiply("y", "z"), first);
    EXPECT_EQ(Multiply("z", "y"), first);
    expected = Product(Product(expected));
  }
  EXPECT_EQ(out(), before) << "nothing left the card";
  const HeldDenseLease y = engine_->dense().Find("t", "y").value();
  ExpectNear(Elements<float>(y->elements->Get()), expected);
}

TEST_F(SeveralDevices, WhatIsOnlyOnOneCardReachesTheOther) {
  const std::vector<float> x = Random(2);
  Hold("x", x);
  Hold("y", {});
  const std::string first = Multiply("x", "y");
  const HeldDenseLease y = engine_->dense().Find("t", "y").value();
  Device* other = nullptr;
  for (const auto& gpu : engine_->gpus()) {
    if (gpu->name() != first) other = gpu.get();
  }
  ASSERT_NE(other, nullptr);
  EXPECT_EQ(other->residency().PresenceOf(y->elements), Residency::Presence::kNothing);
  const auto there = other->residency().Place(y->elements);
  ASSERT_TRUE(there.ok()) << there.status();
  const auto host = other->ToHost(**there, engine_->budget().Source(MemoryUse::kRequests));
  ExpectNear(Elements<float>(host), Product({x.begin(), x.end()}));
}

TEST_F(SeveralDevices, OthersGoToTheShorterQueue) {
  const std::vector<float> b = Random(3);
  std::vector<std::shared_ptr<Result>> sinks;
  std::vector<std::shared_ptr<Call>> calls;
  for (int i = 0; i < 8; ++i) {
    sinks.push_back(std::make_shared<Result>());
    auto call = Begin("", "", sinks.back());
    ASSERT_TRUE(call.ok()) << call.status();
    calls.push_back(*std::move(call));
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    const absl::Status ended = Finish(*calls[i], b, *sinks[i]);
    ASSERT_TRUE(ended.ok()) << ended;
    ExpectNear(sinks[i]->Elements<float>(), Product({b.begin(), b.end()}));
  }
  const std::map<std::string, int> runs = observer_.runs();
  ASSERT_EQ(runs.size(), 2U);
  for (const auto& [device, count] : runs) EXPECT_EQ(count, 4) << device;
}

TEST_F(SeveralDevices, ManyThreadsGetRightResultsFromBoth) {
  const std::vector<float> b = Random(4);
  const std::vector<double> expected = Product({b.begin(), b.end()});
  Hold("b", b);
  std::vector<std::thread> threads;
  constexpr int kThreads = 6;
  for (int t = 0; t < kThreads; ++t) {
    const std::string c = fmt::format("c{}", t);
    Hold(c, {});
    threads.emplace_back([&, c] {
      for (int i = 0; i < 30; ++i) {
        const auto sink = std::make_shared<Result>();
        auto call = Begin(i % 3 == 0 ? "" : "b", i % 2 == 0 ? c : "", sink);
        ASSERT_TRUE(call.ok()) << call.status();
        const absl::Status ended = Finish(**call, i % 3 == 0 ? b : std::vector<float>(), *sink);
        ASSERT_TRUE(ended.ok()) << ended;
        if (i % 2 == 0) {
          const HeldDenseLease held = engine_->dense().Find("t", c).value();
          ExpectNear(Elements<float>(held->elements->Get()), expected);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(observer_.runs().size(), 2U);
}

}  // namespace
}  // namespace sparsed::engine
