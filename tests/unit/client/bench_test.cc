// The load of `bench`: what it counts, when it ends, and that nothing is left out at a rate.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "client/cli/bench_load.h"
#include "client/cli/latency_histogram.h"

namespace sparsed::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

TEST(LatencyHistogram, QuantilesAreNearAndNeverTooSmall) {
  std::mt19937_64 random(1);
  std::vector<int64_t> times;
  LatencyHistogram histogram, other;
  for (int i = 0; i < 20'000; ++i) {
    // Of all sizes, from nanoseconds to hours.
    times.push_back(static_cast<int64_t>(random() >> (20 + random() % 43)));
    (i % 2 == 0 ? histogram : other).Add(nanoseconds(times.back()));
  }
  histogram.Add(other);
  std::ranges::sort(times);
  EXPECT_EQ(histogram.count(), 20'000);
  EXPECT_EQ(histogram.max().count(), times.back());
  for (const double share : {0.001, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0}) {
    const auto exact = times[static_cast<size_t>(std::max(1.0, share * 20'000)) - 1];
    const int64_t told = histogram.Quantile(share).count();
    EXPECT_GE(told, exact) << share;
    EXPECT_LE(static_cast<double>(told), 1.016 * static_cast<double>(exact) + 1) << share;
  }
}

TEST(LatencyHistogram, TakesEverything) {
  LatencyHistogram histogram;
  EXPECT_EQ(histogram.Quantile(0.5).count(), 0);
  EXPECT_EQ(histogram.mean().count(), 0);
  histogram.Add(nanoseconds(-5));
  histogram.Add(nanoseconds::max());
  EXPECT_EQ(histogram.Quantile(0.5).count(), 0);
  EXPECT_EQ(histogram.Quantile(1), nanoseconds::max());
}

TEST(IsSteady, WantsEnoughThatAgree) {
  double error = 0;
  EXPECT_FALSE(IsSteady({}, 0.01, &error));
  EXPECT_FALSE(IsSteady(std::vector<double>(11, 100), 0.01, &error)) << "too few";
  EXPECT_TRUE(IsSteady(std::vector<double>(12, 100), 0.01, &error));
  EXPECT_EQ(error, 0);
  std::vector<double> windows(12, 100);
  windows[3] = 200;
  EXPECT_FALSE(IsSteady(windows, 0.01, &error));
  EXPECT_GT(error, 0.01);
  EXPECT_FALSE(IsSteady(std::vector<double>(20, 0), 0.01, &error)) << "nothing happens";
  // It drifts, however many there are.
  std::vector<double> drift;
  for (int i = 0; i < 1000; ++i) drift.push_back(100 + 0.05 * i);
  EXPECT_FALSE(IsSteady(drift, 0.01, &error));
}

LoadSample Sample() {
  return {.timings = {.kernel = nanoseconds(1000), .total = nanoseconds(2000)},
          .plan = "csr / k",
          .transport = Transport::kHeld};
}

TEST(ConfidenceFactor, IsStudents) {
  // Of tables: 4, 11, 29 degrees of freedom, and without end.
  EXPECT_NEAR(ConfidenceFactor(5), 2.776, 0.02);
  EXPECT_NEAR(ConfidenceFactor(12), 2.201, 0.005);
  EXPECT_NEAR(ConfidenceFactor(30), 2.045, 0.002);
  EXPECT_NEAR(ConfidenceFactor(1'000'000), 1.960, 0.001);
}

TEST(Load, CountsWhatEndsInItsTime) {
  const std::atomic<bool> stop = false;
  std::atomic<int> running = 0, most = 0;
  const auto result = RunLoad(
      {.workers = 3, .seconds = 0.5},
      [&](int, int64_t) -> absl::StatusOr<LoadSample> {
        most = std::max<int>(most, ++running);
        std::this_thread::sleep_for(milliseconds(2));
        --running;
        return Sample();
      },
      stop);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_LE(most, 3);
  EXPECT_GE(result->seconds, 0.5);
  EXPECT_GT(result->latency.count(), 0);
  EXPECT_GE(result->latency.Quantile(0.01), milliseconds(2));
  EXPECT_EQ(result->phases.back().max(), nanoseconds(2000));
  EXPECT_EQ(result->phases.back().count(), result->latency.count());
  EXPECT_EQ(result->plans.at("csr / k"), result->latency.count());
  EXPECT_EQ(result->transport, Transport::kHeld);
}

TEST(Load, AtARateAStallIsFeltByAllThatWereDueInIt) {
  const std::atomic<bool> stop = false;
  const auto begun = std::chrono::steady_clock::now();
  // From 0.9 s to 1.4 s nothing ends: 100 of the requests were due meanwhile, though one waits.
  const auto result = RunLoad(
      {.workers = 1, .rate = 200, .seconds = 1.5},
      [&](int, int64_t) -> absl::StatusOr<LoadSample> {
        const auto now = std::chrono::steady_clock::now() - begun;
        if (now >= milliseconds(900) && now < milliseconds(1400)) {
          std::this_thread::sleep_for(milliseconds(1400) - now);
        }
        return Sample();
      },
      stop);
  ASSERT_TRUE(result.ok()) << result.status();
  // A closed loop would have seen one slow request.
  int slow = 0;
  for (double share = 0; share < 1; share += 0.01) {
    slow += result->latency.Quantile(share + 0.01) >= milliseconds(100) ? 1 : 0;
  }
  EXPECT_GE(slow, 10) << "percent of the requests waited";
}

TEST(Load, EndsAtAFailureThatWouldHappenAgain) {
  const std::atomic<bool> stop = false;
  std::atomic<int> calls = 0;
  const auto result = RunLoad(
      {.workers = 2},
      [&](int, int64_t) -> absl::StatusOr<LoadSample> {
        ++calls;
        return absl::NotFoundError("there is no matrix");
      },
      stop);
  EXPECT_TRUE(absl::IsNotFound(result.status())) << result.status();
  EXPECT_LE(calls, 100);
}

TEST(Load, CountsFailuresThatMayPass) {
  const std::atomic<bool> stop = false;
  std::atomic<int> calls = 0;
  const auto result = RunLoad(
      {.workers = 1, .seconds = 0.3},
      [&](int, int64_t) -> absl::StatusOr<LoadSample> {
        std::this_thread::sleep_for(milliseconds(1));
        if (++calls % 2 == 0) return absl::ResourceExhaustedError("full");
        return Sample();
      },
      stop);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(result->failed.at("RESOURCE_EXHAUSTED"), 0);
  EXPECT_EQ(result->first_failure, "full");
}

TEST(Load, OfAScheduleEachIsMadeOnceWhenItIsDue) {
  const std::atomic<bool> stop = false;
  std::vector<nanoseconds> schedule;
  for (int i = 0; i < 40; ++i) schedule.push_back(milliseconds(5 * i));
  std::vector<std::atomic<int>> made(schedule.size());
  std::vector<std::chrono::steady_clock::time_point> times(schedule.size());
  const auto begun = std::chrono::steady_clock::now();
  const auto result = RunLoad(
      {.workers = 4, .schedule = schedule},
      [&](int, int64_t number) -> absl::StatusOr<LoadSample> {
        ++made[static_cast<size_t>(number)];
        times[static_cast<size_t>(number)] = std::chrono::steady_clock::now();
        if (number == 7) return absl::NotFoundError("of this one alone");
        return Sample();
      },
      stop);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->latency.count(), 39);
  EXPECT_EQ(result->waited.count(), 39);
  EXPECT_EQ(result->failed.at("NOT_FOUND"), 1);
  for (size_t i = 0; i < schedule.size(); ++i) {
    EXPECT_EQ(made[i], 1) << i;
    EXPECT_GE(times[i] - begun, schedule[i]) << i;
  }
}

TEST(Load, OfAScheduleWhoWaitsForOthersIsTold) {
  const std::atomic<bool> stop = false;
  // All are due at once, and one worker makes them in 2 ms each.
  const auto result = RunLoad(
      {.workers = 1, .schedule = std::vector<nanoseconds>(20)},
      [&](int, int64_t) -> absl::StatusOr<LoadSample> {
        std::this_thread::sleep_for(milliseconds(2));
        return Sample();
      },
      stop);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GE(result->waited.max(), milliseconds(38));
  EXPECT_GE(result->latency.max(), milliseconds(40));
}

TEST(Load, StopsWhenItIsTold) {
  std::atomic<bool> stop = false;
  std::atomic<int> calls = 0;
  const auto result = RunLoad(
      {.workers = 1, .seconds = 3600},
      [&](int, int64_t) -> absl::StatusOr<LoadSample> {
        std::this_thread::sleep_for(milliseconds(10));
        if (++calls == 120) stop = true;
        return Sample();
      },
      stop);
  // What was measured until then is told.
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(result->latency.count(), 0);
}

}  // namespace
}  // namespace sparsed::cli
