#include "engine/memory/processor.h"

#include <gtest/gtest.h>

namespace sparsed::engine {
namespace {

std::vector<CopyTry> Tries(std::initializer_list<double> rates, double processor_share = 1,
                           double process_share = 1) {
  std::vector<CopyTry> tries;
  for (const double rate : rates) tries.push_back({rate, processor_share, process_share});
  return tries;
}

TEST(MemoryRate, IsTheBestTryAndQuietIfTriesAgree) {
  MemoryRate rate(1);
  EXPECT_GT(rate.bytes_per_second(), 0);
  rate.Take(Tries({19.5e15, 20e15, 19e15, 12e15, 20e15}));
  EXPECT_EQ(rate.bytes_per_second(), 20e15);
  EXPECT_TRUE(rate.quiet());
}

TEST(MemoryRate, IsOnlyRaisedWhileOthersRun) {
  MemoryRate rate(1);
  rate.Take(Tries({20e15, 20e15, 20e15}));
  rate.Take(Tries({8e15, 6e15, 5e15, 4e15, 9e15}));
  EXPECT_FALSE(rate.quiet()) << "tries differ";
  EXPECT_EQ(rate.bytes_per_second(), 20e15) << "of others' making";
  rate.Take(Tries({9e15, 9e15, 9e15}, 0.5));
  EXPECT_FALSE(rate.quiet()) << "others had half of the processors";
  rate.Take(Tries({9e15, 9e15, 9e15}, 1, 1.5));
  EXPECT_FALSE(rate.quiet()) << "other threads of ours ran";
  EXPECT_EQ(rate.bytes_per_second(), 20e15);
  rate.Take(Tries({30e15, 10e15, 10e15}));
  EXPECT_EQ(rate.bytes_per_second(), 30e15) << "there is so much";
}

TEST(MemoryRate, IsReplacedByAQuietMeasurement) {
  MemoryRate rate(1);
  rate.Take(Tries({90e15, 20e15, 10e15}));
  rate.Take(Tries({18e15, 18e15, 17e15}));
  EXPECT_EQ(rate.bytes_per_second(), 18e15);
  EXPECT_TRUE(rate.quiet());
}

TEST(MemoryRate, IsNeverBelowWhatAKernelReached) {
  MemoryRate rate(1);
  rate.Take(Tries({18e15, 18e15, 17e15}));
  rate.Saw(25e15);
  rate.Saw(20e15);
  EXPECT_EQ(rate.bytes_per_second(), 25e15);
  rate.Take(Tries({19e15, 19e15, 19e15}));
  EXPECT_EQ(rate.bytes_per_second(), 25e15) << "copies are slower than that kernel";
  rate.Take(Tries({26e15, 26e15, 26e15}));
  EXPECT_EQ(rate.bytes_per_second(), 26e15);
}

TEST(LastLevelCache, HasASize) { EXPECT_GT(LastLevelCacheBytes(), 1 << 18); }

TEST(ProcessorName, IsKnown) { EXPECT_FALSE(ProcessorName().empty()); }

}  // namespace
}  // namespace sparsed::engine
