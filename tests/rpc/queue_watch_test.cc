// Which queues stand still.
#include "server/telemetry/queue_watch.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace sparsed::server {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;

QueueStalls::Clock::time_point At(int second) {
  return QueueStalls::Clock::time_point(seconds(1000 + second));
}

TEST(QueueStalls, WhatWaitsWhileNothingRunsStandsStill) {
  QueueStalls stalls(seconds(10));
  EXPECT_THAT(stalls.Look({{"cpu", 3, 7.5}}, At(0)), IsEmpty());
  EXPECT_THAT(stalls.Look({{"cpu", 1, 7.5}}, At(9)), IsEmpty());
  EXPECT_THAT(stalls.Look({{"cpu", 1, 7.5}}, At(10)), ElementsAre("cpu"));
  EXPECT_THAT(stalls.Look({{"cpu", 9, 7.5}}, At(60)), ElementsAre("cpu"));
  // It goes on.
  EXPECT_THAT(stalls.Look({{"cpu", 9, 7.6}}, At(61)), IsEmpty());
  EXPECT_THAT(stalls.Look({{"cpu", 9, 7.6}}, At(70)), IsEmpty());
  EXPECT_THAT(stalls.Look({{"cpu", 9, 7.6}}, At(71)), ElementsAre("cpu"));
}

TEST(QueueStalls, AnEmptyQueueNeverDoes) {
  QueueStalls stalls(seconds(10));
  for (int second = 0; second < 100; second += 5) {
    EXPECT_THAT(stalls.Look({{"cpu", 0, 7.5}}, At(second)), IsEmpty());
  }
  // What comes after a long pause has its time.
  EXPECT_THAT(stalls.Look({{"cpu", 1, 7.5}}, At(100)), IsEmpty());
  EXPECT_THAT(stalls.Look({{"cpu", 1, 7.5}}, At(104)), IsEmpty());
  EXPECT_THAT(stalls.Look({{"cpu", 1, 7.5}}, At(105)), ElementsAre("cpu"));
}

TEST(QueueStalls, EachDeviceIsLookedAtByItself) {
  QueueStalls stalls(seconds(10));
  stalls.Look({{"cpu", 1, 1}, {"cuda:0", 1, 1}}, At(0));
  EXPECT_THAT(stalls.Look({{"cpu", 1, 2}, {"cuda:0", 1, 1}}, At(10)), ElementsAre("cuda:0"));
  EXPECT_THAT(stalls.Look({{"cpu", 1, 2}, {"cuda:0", 1, 1}}, At(20)), ElementsAre("cpu", "cuda:0"));
}

TEST(QueueWatch, SaysWhatStandsStillUntilItMoves) {
  std::atomic<double> busy = 0;
  std::atomic<int> changes = 0;
  const QueueWatch watch({.interval = std::chrono::milliseconds(1),
                          .patience = std::chrono::milliseconds(20),
                          .look =
                              [&] {
                                return std::vector<QueueState>{{"cpu", 0, 0}, {"cuda:0", 1, busy}};
                              },
                          .changed = [&] { ++changes; }});
  const auto sample = [&](size_t device) {
    const prometheus::MetricFamily family = watch.Metric();
    return family.metric.size() == 2 ? family.metric[device].gauge.value : -1;
  };
  while (changes < 1) std::this_thread::yield();
  EXPECT_THAT(watch.Reason(), testing::HasSubstr("requests wait for cuda:0, where nothing"));
  EXPECT_EQ(sample(0), 0);
  EXPECT_EQ(sample(1), 1);
  // Every look finds that something ran.
  while (changes < 2) busy = busy + 1;
  while (!watch.Reason().empty()) busy = busy + 1;
  EXPECT_EQ(sample(0), 0);
}

}  // namespace
}  // namespace sparsed::server
