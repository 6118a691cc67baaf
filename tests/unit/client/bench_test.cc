// The load of `bench`: what it counts, when it ends, and that nothing is left out at a rate.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
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

TEST(Median, HasAnIntervalByOrderStatistics) {
  EXPECT_EQ(MedianOf({}).value, 0);
  EXPECT_EQ(MedianOf({3, 1, 2}).value, 2);
  EXPECT_EQ(MedianOf({4, 1, 2, 3}).value, 2.5);
  // Of fewer than six no two are around the true one in 95 of 100 cases.
  EXPECT_TRUE(std::isinf(MedianOf(std::vector<double>(5, 100)).interval));
  EXPECT_EQ(MedianOf(std::vector<double>(6, 100)).interval, 0);
  EXPECT_EQ(MedianOf(std::vector<double>(6, 0)).interval, 0);
  // Tables have for 6, 9, 20, 30 and 100: the 1st, 2nd, 6th, 10th and 40th from each end.
  for (const auto& [n, rank] : {std::pair(6, 1), {9, 2}, {20, 6}, {30, 10}, {100, 40}}) {
    std::vector<double> numbers(static_cast<size_t>(n));
    std::iota(numbers.begin(), numbers.end(), 1);
    const Median median = MedianOf(numbers);
    EXPECT_EQ(median.value, (n + 1) / 2.0);
    EXPECT_DOUBLE_EQ(median.interval * median.value, (n + 1) / 2.0 - rank) << n;
  }
}

TEST(Median, OneThatIsFarAwayChangesNothing) {
  std::vector<double> numbers(20, 100);
  numbers[3] = 1e9;
  EXPECT_EQ(MedianOf(numbers).value, 100);
  EXPECT_EQ(MedianOf(numbers).interval, 0);
}

TEST(Median, CoversTheTrueOneAsOftenAsItSays) {
  std::mt19937_64 random(7);
  std::lognormal_distribution<double> times(0, 0.3);  // its median is 1
  int covered = 0;
  for (int repetition = 0; repetition < 2000; ++repetition) {
    std::vector<double> numbers(25);
    for (double& number : numbers) number = times(random);
    const Median median = MedianOf(numbers);
    covered += std::abs(median.value - 1) <= median.interval * median.value ? 1 : 0;
  }
  EXPECT_GE(covered, 1850);  // it is as wide to both sides, and the times are not
}

TEST(Median, AgreesWhereIntervalsMeet) {
  EXPECT_TRUE(Agree({100, 0}, {101, 0}, 0.01));
  EXPECT_FALSE(Agree({100, 0}, {103, 0}, 0.01));
  EXPECT_TRUE(Agree({100, 0.02}, {103, 0.02}, 0.01));
  EXPECT_FALSE(Agree({100, 0.01}, {110, 0.01}, 0.01));
  EXPECT_TRUE(Agree({0, 0}, {0, 0}, 0.01));
  EXPECT_TRUE(Agree({100, std::numeric_limits<double>::infinity()}, {1, 0}, 0.01));
}

LoadSample Sample() {
  return {.timings = {.kernel = nanoseconds(1000), .total = nanoseconds(2000)},
          .plan = "csr / k",
          .transport = Transport::kHeld};
}

/// The same for all windows.
LoadSetup Once(LoadRequest request) {
  return [request = std::move(request)] { return request; };
}

/// Each takes so long, and is well.
LoadSetup Taking(milliseconds time) {
  return Once([time](int, int64_t) -> absl::StatusOr<LoadSample> {
    std::this_thread::sleep_for(time);
    return Sample();
  });
}

TEST(Load, CountsWhatEndsInItsTime) {
  const std::atomic<bool> stop = false;
  std::atomic<int> running = 0, most = 0;
  const auto result =
      RunLoad({.workers = 3, .seconds = 0.5}, Once([&](int, int64_t) -> absl::StatusOr<LoadSample> {
                most = std::max<int>(most, ++running);
                std::this_thread::sleep_for(milliseconds(2));
                --running;
                return Sample();
              }),
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

TEST(Load, RequestsThatTakeLongerThanAWindowCountWhole) {
  const std::atomic<bool> stop = false;
  const auto result = RunLoad({.workers = 1, .seconds = 0.5, .longest_window = 0.02},
                              Taking(milliseconds(100)), stop);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GE(result->latency.count(), 2);
  EXPECT_LE(result->rate, 10);
  EXPECT_LE(static_cast<double>(result->latency.count()), 10 * result->seconds * 1.001);
}

TEST(Load, OneThatWasUnderWayBeforeItsWindowCountsFromItsBeginning) {
  const std::atomic<bool> stop = false;
  const auto result = RunLoad({.workers = 1, .seconds = 0.5, .longest_window = 0.02},
                              Taking(milliseconds(700)), stop);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_LE(result->rate, 1.001 / 0.7);
}

TEST(Load, OneThatDoesNotEndInTimeIsNotWaitedForTwice) {
  const std::atomic<bool> stop = false;
  std::atomic<int> calls = 0;
  const auto result = RunLoad({.workers = 1, .seconds = 0.05, .longest_window = 0.02},
                              Once([&](int, int64_t) -> absl::StatusOr<LoadSample> {
                                ++calls;
                                std::this_thread::sleep_for(milliseconds(1200));
                                return Sample();
                              }),
                              stop);
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(absl::IsUnknown(result.status())) << result.status();
}

TEST(Load, AtARateAStallIsFeltByAllThatWereDueInIt) {
  const std::atomic<bool> stop = false;
  const auto begun = std::chrono::steady_clock::now();
  // From 0.9 s to 1.4 s nothing ends: 100 of the requests were due meanwhile, though one waits.
  const auto result = RunLoad({.workers = 1, .rate = 200, .seconds = 1.5},
                              Once([&](int, int64_t) -> absl::StatusOr<LoadSample> {
                                const auto now = std::chrono::steady_clock::now() - begun;
                                if (now >= milliseconds(900) && now < milliseconds(1400)) {
                                  std::this_thread::sleep_for(milliseconds(1400) - now);
                                }
                                return Sample();
                              }),
                              stop);
  ASSERT_TRUE(result.ok()) << result.status();
  // A closed loop would have seen one slow request.
  int slow = 0;
  for (double share = 0; share < 1; share += 0.01) {
    slow += result->latency.Quantile(share + 0.01) >= milliseconds(100) ? 1 : 0;
  }
  EXPECT_GE(slow, 10) << "percent of the requests waited";
}

TEST(Load, AtARateWhatTheWarmUpLeftIsWaitedFor) {
  const std::atomic<bool> stop = false;
  std::atomic<int> calls = 0;
  // The first ones meet a cold server: requests pile up behind them.
  const auto result = RunLoad({.workers = 16, .rate = 50, .seconds = 1},
                              Once([&](int, int64_t) -> absl::StatusOr<LoadSample> {
                                const bool cold = ++calls <= 16;
                                std::this_thread::sleep_for(milliseconds(cold ? 1500 : 1));
                                return Sample();
                              }),
                              stop);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_LT(result->latency.max(), milliseconds(1500)) << "a request of the warm-up counts";
  EXPECT_GE(result->warmup_seconds, 1.5);
  EXPECT_GE(result->latency.count(), 45);
  EXPECT_LE(result->rate, 50.0001) << "no more than were due";
}

TEST(Load, AtARateTheWorkerThatEndedLastGoesOn) {
  const std::atomic<bool> stop = false;
  std::vector<std::atomic<int>> by(32);
  const auto result = RunLoad({.workers = 32, .rate = 100, .seconds = 0.5},
                              Once([&](int worker, int64_t) -> absl::StatusOr<LoadSample> {
                                ++by[static_cast<size_t>(worker)];
                                return Sample();
                              }),
                              stop);
  ASSERT_TRUE(result.ok()) << result.status();
  // One is enough; on a busy machine a few.
  const auto used = std::ranges::count_if(by, [](const auto& count) { return count > 0; });
  EXPECT_LT(used, 32);
}

TEST(Load, AtARateThatIsTooHighItIsToldHowManyWaited) {
  const std::atomic<bool> stop = false;
  const auto result =
      RunLoad({.workers = 2, .rate = 1000, .seconds = 0.5}, Taking(milliseconds(50)), stop);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(result->not_begun, 200);
  EXPECT_LE(result->rate, 40.1);
  EXPECT_GE(result->latency.count(), 2);
}

TEST(Load, OneThatTakesLongerThanItsTimeCountsAtARate) {
  const std::atomic<bool> stop = false;
  std::atomic<int> calls = 0;
  const auto result = RunLoad({.workers = 1, .rate = 10, .seconds = 0.3},
                              Once([&](int, int64_t) -> absl::StatusOr<LoadSample> {
                                std::this_thread::sleep_for(milliseconds(++calls > 2 ? 700 : 1));
                                return Sample();
                              }),
                              stop);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GE(result->latency.max(), milliseconds(700));
}

TEST(Load, EndsAtAFailureThatWouldHappenAgain) {
  const std::atomic<bool> stop = false;
  std::atomic<int> calls = 0;
  const auto result = RunLoad({.workers = 2}, Once([&](int, int64_t) -> absl::StatusOr<LoadSample> {
                                ++calls;
                                return absl::NotFoundError("there is no matrix");
                              }),
                              stop);
  EXPECT_TRUE(absl::IsNotFound(result.status())) << result.status();
  EXPECT_LE(calls, 100);
}

TEST(Load, CountsFailuresThatMayPass) {
  const std::atomic<bool> stop = false;
  std::atomic<int> calls = 0;
  const auto result =
      RunLoad({.workers = 1, .seconds = 0.3}, Once([&](int, int64_t) -> absl::StatusOr<LoadSample> {
                std::this_thread::sleep_for(milliseconds(1));
                if (++calls % 2 == 0) return absl::ResourceExhaustedError("full");
                return Sample();
              }),
              stop);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(result->failed.at("RESOURCE_EXHAUSTED"), 0);
  EXPECT_EQ(result->first_failure, "full");
}

TEST(Load, OfWhichNoneWentWellFailsAsTheFirstDid) {
  const std::atomic<bool> stop = false;
  const auto result =
      RunLoad({.workers = 1, .seconds = 0.1}, Once([](int, int64_t) -> absl::StatusOr<LoadSample> {
                std::this_thread::sleep_for(milliseconds(1));
                return absl::UnavailableError("node-3 is not there");
              }),
              stop);
  EXPECT_TRUE(absl::IsUnavailable(result.status())) << result.status();
  EXPECT_EQ(result.status().message(), "no request went well: node-3 is not there");
}

TEST(Load, OfAScheduleEachIsMadeOnceWhenItIsDue) {
  const std::atomic<bool> stop = false;
  std::vector<nanoseconds> schedule;
  for (int i = 0; i < 40; ++i) schedule.push_back(milliseconds(5 * i));
  std::vector<std::atomic<int>> made(schedule.size());
  std::vector<std::chrono::steady_clock::time_point> times(schedule.size());
  const auto begun = std::chrono::steady_clock::now();
  const auto result = RunLoad({.workers = 4, .schedule = schedule},
                              Once([&](int, int64_t number) -> absl::StatusOr<LoadSample> {
                                ++made[static_cast<size_t>(number)];
                                times[static_cast<size_t>(number)] =
                                    std::chrono::steady_clock::now();
                                if (number == 7) return absl::NotFoundError("of this one alone");
                                return Sample();
                              }),
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
  const auto result = RunLoad({.workers = 1, .schedule = std::vector<nanoseconds>(20)},
                              Taking(milliseconds(2)), stop);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GE(result->waited.max(), milliseconds(38));
  EXPECT_GE(result->latency.max(), milliseconds(40));
}

TEST(Load, StopsWhenItIsTold) {
  std::atomic<bool> stop = false;
  std::atomic<int> calls = 0;
  const auto result = RunLoad({.workers = 1, .seconds = 3600},
                              Once([&](int, int64_t) -> absl::StatusOr<LoadSample> {
                                std::this_thread::sleep_for(milliseconds(10));
                                if (++calls == 120) stop = true;
                                return Sample();
                              }),
                              stop);
  // What was measured until then is told.
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(result->latency.count(), 0);
}

TEST(Load, EachWindowHasAConnectionOfItsOwn) {
  const std::atomic<bool> stop = false;
  int connected = 0;
  std::atomic<int> open = 0;
  const auto result = RunLoad(
      {.workers = 2, .seconds = 0.5, .window = 0.01},
      [&]() -> absl::StatusOr<LoadRequest> {
        ++connected;
        EXPECT_EQ(open, 0) << "the last one's is still there";
        ++open;
        const std::shared_ptr<void> connection(nullptr, [&open](void*) { --open; });
        return [connection](int, int64_t) -> absl::StatusOr<LoadSample> {
          std::this_thread::sleep_for(milliseconds(1));
          LoadSample sample = Sample();
          sample.flops = 10;
          return sample;
        };
      },
      stop);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(connected, result->windows);
  EXPECT_EQ(result->kernel.value, 1000);
  EXPECT_GT(result->rate, 0);
  EXPECT_LT(result->rate, 2000);
  EXPECT_EQ(result->flops, 10 * static_cast<double>(result->latency.count()));
}

TEST(Load, WhatWasAnotherTimesIsLeftOut) {
  const std::atomic<bool> stop = false;
  // The kernel is slow at first, and says so itself: how fast this machine is makes no difference.
  int connected = 0;
  const auto result = RunLoad(
      {.workers = 1, .window = 0.01, .precision = 0.5},
      [&]() -> absl::StatusOr<LoadRequest> {
        const nanoseconds kernel(++connected <= 10 ? 3000 : 1000);
        return [kernel](int, int64_t) -> absl::StatusOr<LoadSample> {
          std::this_thread::sleep_for(milliseconds(5));
          LoadSample sample = Sample();
          sample.timings.kernel = kernel;
          return sample;
        };
      },
      stop);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->kernel.value, 1000);
  EXPECT_LE(result->windows, connected);
}

TEST(Load, WhereNothingBecameSteadyAllOfItCounts) {
  const std::atomic<bool> stop = false;
  // Slower and slower, as its kernel says itself: every half of it is unlike the other.
  int connected = 0;
  std::atomic<int64_t> requests = 0;
  const auto result = RunLoad(
      {.workers = 1, .most_seconds = 1.5, .window = 0.01},
      [&]() -> absl::StatusOr<LoadRequest> {
        const nanoseconds kernel(1000 * ++connected);
        return [kernel, &requests](int, int64_t) -> absl::StatusOr<LoadSample> {
          std::this_thread::sleep_for(milliseconds(1));
          ++requests;
          LoadSample sample = Sample();
          sample.timings.kernel = kernel;
          return sample;
        };
      },
      stop);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_FALSE(result->steady);
  EXPECT_EQ(result->unsteady_seconds, 0);
  EXPECT_GE(result->windows, connected - 1);
}

TEST(Load, SaysThatItIsNotKnown) {
  const std::atomic<bool> stop = false;
  int connected = 0;
  const auto result = RunLoad(
      {.workers = 1, .seconds = 0.3, .window = 0.01},
      [&]() -> absl::StatusOr<LoadRequest> {
        const nanoseconds kernel(++connected % 2 == 0 ? 3000 : 1000);
        return [kernel](int, int64_t) -> absl::StatusOr<LoadSample> {
          std::this_thread::sleep_for(milliseconds(1));
          LoadSample sample = Sample();
          sample.timings.kernel = kernel;
          return sample;
        };
      },
      stop);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_FALSE(result->steady);
  EXPECT_GT(result->kernel.interval, 0.3);
}

TEST(Load, WithoutAConnectionItEnds) {
  const std::atomic<bool> stop = false;
  int connected = 0;
  const auto run = [&](int least) {
    return RunLoad(
        {.workers = 1, .window = 0.01},
        [&]() -> absl::StatusOr<LoadRequest> {
          if (++connected > least) return absl::UnavailableError("no server");
          return [](int, int64_t) -> absl::StatusOr<LoadSample> {
            std::this_thread::sleep_for(milliseconds(1));
            return Sample();
          };
        },
        stop);
  };
  EXPECT_TRUE(absl::IsUnavailable(run(0).status()));
  connected = 0;
  const auto result = run(2);  // what was measured until then is told
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->windows, 2);
  EXPECT_EQ(result->failed.at("UNAVAILABLE"), 1);
  EXPECT_EQ(result->first_failure, "no server");
}

}  // namespace
}  // namespace sparsed::cli
