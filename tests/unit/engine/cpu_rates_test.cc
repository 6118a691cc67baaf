#include "engine/preparation/cpu_rates.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <vector>

#include "engine/execution/calibrate.h"

namespace sparsed::engine {
namespace {

const CpuRates::Key kKey = {CpuRates::kCache, 4};
constexpr auto kStart = CpuRates::Clock::time_point() + std::chrono::hours(1);

std::vector<RateTry> Tries(std::initializer_list<double> rates, double process_share = 1) {
  std::vector<RateTry> tries;
  for (const double rate : rates) tries.push_back({rate, {1, process_share}});
  return tries;
}

TEST(CpuRates, AreCertainWhereTriesAgree) {
  CpuRates rates;
  EXPECT_EQ(rates.Known(kKey, kStart), 0);
  EXPECT_FALSE(rates.certain(kKey));
  rates.Take(kKey, Tries({19, 20, 19, 20}), kStart);
  EXPECT_TRUE(rates.certain(kKey));
  EXPECT_EQ(rates.Known(kKey, kStart + std::chrono::hours(24)), 20);
  EXPECT_EQ(rates.Known({CpuRates::kCache, 2}, kStart), 0) << "other threads have another rate";
}

/// Four tries that other worker slots made equally low.
TEST(CpuRates, AreNotCertainBesideOtherWork) {
  CpuRates rates;
  rates.Take(kKey, Tries({9, 9, 9, 9}, /*process_share=*/1.5), kStart);
  EXPECT_FALSE(rates.certain(kKey));
  EXPECT_EQ(rates.Known(kKey, kStart + std::chrono::seconds(59)), 9);
  EXPECT_EQ(rates.Known(kKey, kStart + CpuRates::kAgainAfter), 0) << "to be measured again";
  rates.Take(kKey, Tries({8, 8, 8, 8}, 1.5), kStart);
  EXPECT_EQ(rates.Known(kKey, kStart), 9) << "there is so much";
  rates.Take(kKey, Tries({20, 20, 20, 20}), kStart);
  EXPECT_TRUE(rates.certain(kKey));
  rates.Take(kKey, Tries({30, 8, 8, 8}, 1.5), kStart);
  EXPECT_TRUE(rates.certain(kKey));
  EXPECT_EQ(rates.Known(kKey, kStart), 20);
}

TEST(CpuRates, AreNotCertainWhereTriesDiffer) {
  CpuRates rates;
  rates.Take(kKey, Tries({20, 12, 20, 20}), kStart);
  EXPECT_FALSE(rates.certain(kKey));
  EXPECT_EQ(rates.Known(kKey, kStart), 20);
}

TEST(CpuRates, AreMeasured) {
  CpuRates rates;
  int calls = 0;
  const double measured = rates.Measure({"f32", 1}, [&calls] {
    const auto end = CpuRates::Clock::now() + std::chrono::milliseconds(2);
    while (CpuRates::Clock::now() < end) {
    }
    ++calls;
    return 1e6;
  });
  EXPECT_EQ(calls, 4);
  EXPECT_GT(measured, 0);
  EXPECT_LE(measured, 1e6 / 2e-3);
}

TEST(CacheRate, IsOfHalfTheCacheButNoMoreThanAThreadHas) {
  constexpr int64_t kMiB = 1 << 20;
  EXPECT_EQ(CacheRateBytes(32 * kMiB, 64), 16 * kMiB);
  EXPECT_EQ(CacheRateBytes(512 * kMiB, 2), 8 * kMiB);
  EXPECT_EQ(CacheRateBytes(0, 2), kMiB);
}

}  // namespace
}  // namespace sparsed::engine
