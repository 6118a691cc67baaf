// An engine with two cards: where requests run, and what they find there.
#include "tests/gpu/several_devices.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace sparsed::engine {
namespace {

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
  EXPECT_FALSE(y->elements->resident()) << "it did not pass through the host";
  EXPECT_EQ(other->bytes_from_peers(), static_cast<int64_t>((*there)->bytes()));
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
