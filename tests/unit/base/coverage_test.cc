#include "base/coverage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <utility>
#include <vector>

namespace sparsed {
namespace {

constexpr uint64_t kMost = ~uint64_t{0};
using Interval = Coverage::Interval;

TEST(Coverage, OfNothingIsComplete) {
  Coverage coverage;
  EXPECT_TRUE(coverage.complete());
  EXPECT_EQ(coverage.FirstGap(), std::nullopt);
  EXPECT_TRUE(coverage.Add(0, 0));
  EXPECT_FALSE(coverage.Add(0, 1));
  EXPECT_FALSE(coverage.Add(1, 0));
}

TEST(Coverage, RefusesWhatLeavesIt) {
  Coverage coverage(400);
  for (const auto& [offset, length] : std::vector<std::pair<uint64_t, uint64_t>>{
           {400, 1}, {399, 2}, {401, 0}, {kMost, 1}, {1, kMost}, {kMost, kMost}}) {
    EXPECT_FALSE(coverage.Contains(offset, length)) << offset << " " << length;
    EXPECT_FALSE(coverage.Add(offset, length)) << offset << " " << length;
  }
  EXPECT_TRUE(coverage.Contains(0, 400));
  EXPECT_TRUE(coverage.Contains(400, 0));
  EXPECT_EQ(coverage.covered(), 0u);
  EXPECT_EQ(coverage.intervals(), 0u);

  Coverage largest(kMost);
  EXPECT_TRUE(largest.Add(kMost - 1, 1));
  EXPECT_FALSE(largest.Add(kMost - 2, 2));
  EXPECT_EQ(largest.FirstGap(), (Interval{0, kMost - 1}));
}

TEST(Coverage, FindsWhatOverlaps) {
  Coverage coverage(400);
  ASSERT_TRUE(coverage.Add(100, 100));
  ASSERT_TRUE(coverage.Add(300, 10));
  for (const auto& [offset, length] : std::vector<std::pair<uint64_t, uint64_t>>{
           {100, 100}, {99, 2}, {199, 1}, {0, 400}, {50, 100}, {120, 10}, {150, 200}}) {
    EXPECT_EQ(coverage.FindOverlap(offset, length), (Interval{100, 200})) << offset;
    EXPECT_FALSE(coverage.Add(offset, length)) << offset;
  }
  EXPECT_EQ(coverage.FindOverlap(200, 101), (Interval{300, 310}));
  EXPECT_EQ(coverage.FindOverlap(200, 100), std::nullopt);
  EXPECT_EQ(coverage.FindOverlap(0, 100), std::nullopt);
  EXPECT_EQ(coverage.FindOverlap(310, 90), std::nullopt);
  EXPECT_EQ(coverage.covered(), 110u);
}

TEST(Coverage, NothingOverlapsNothing) {
  Coverage coverage(400);
  ASSERT_TRUE(coverage.Add(100, 100));
  for (const uint64_t offset : {0, 100, 150, 200, 400}) {
    EXPECT_EQ(coverage.FindOverlap(offset, 0), std::nullopt) << offset;
    EXPECT_TRUE(coverage.Add(offset, 0)) << offset;
  }
  EXPECT_EQ(coverage.covered(), 100u);
  EXPECT_EQ(coverage.intervals(), 1u);
}

TEST(Coverage, MergesNeighbours) {
  Coverage coverage(400);
  ASSERT_TRUE(coverage.Add(100, 100));
  ASSERT_TRUE(coverage.Add(300, 50));
  EXPECT_EQ(coverage.intervals(), 2u);
  EXPECT_FALSE(coverage.Touches(0, 99));
  EXPECT_FALSE(coverage.Touches(201, 98));
  EXPECT_TRUE(coverage.Touches(0, 100));
  EXPECT_TRUE(coverage.Touches(200, 1));
  EXPECT_TRUE(coverage.Touches(299, 1));
  ASSERT_TRUE(coverage.Add(50, 50));
  EXPECT_EQ(coverage.intervals(), 2u);
  ASSERT_TRUE(coverage.Add(200, 100));
  EXPECT_EQ(coverage.intervals(), 1u);
  EXPECT_EQ(coverage.FindOverlap(349, 1), (Interval{50, 350}));
}

TEST(Coverage, NamesTheFirstGap) {
  Coverage coverage(400);
  EXPECT_EQ(coverage.FirstGap(), (Interval{0, 400}));
  ASSERT_TRUE(coverage.Add(100, 100));
  EXPECT_EQ(coverage.FirstGap(), (Interval{0, 100}));
  ASSERT_TRUE(coverage.Add(0, 100));
  EXPECT_EQ(coverage.FirstGap(), (Interval{200, 400}));
  ASSERT_TRUE(coverage.Add(300, 100));
  EXPECT_EQ(coverage.FirstGap(), (Interval{200, 300}));
  EXPECT_FALSE(coverage.complete());
  ASSERT_TRUE(coverage.Add(200, 100));
  EXPECT_TRUE(coverage.complete());
  EXPECT_EQ(coverage.FirstGap(), std::nullopt);
}

TEST(Coverage, IsASetOfBytes) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const uint64_t size = random() % 60;
    Coverage coverage(size);
    std::vector<bool> bytes(size);
    for (int step = 0; step < 60; ++step) {
      const uint64_t offset = random() % (size + 3), length = random() % 9;
      bool free = offset + length <= size;
      for (uint64_t i = offset; free && i < offset + length; ++i) free = !bytes[i];
      ASSERT_EQ(coverage.Add(offset, length), free) << offset << " " << length;
      if (free) std::fill_n(bytes.begin() + static_cast<int64_t>(offset), length, true);

      uint64_t covered = 0, intervals = 0, gap_begin = size, gap_end = size;
      for (uint64_t i = 0; i < size; ++i) {
        covered += bytes[i];
        intervals += bytes[i] && (i == 0 || !bytes[i - 1]);
        if (!bytes[i] && gap_begin == size) gap_begin = i;
        if (bytes[i] && gap_begin < i && gap_end == size) gap_end = i;
      }
      ASSERT_EQ(coverage.covered(), covered);
      ASSERT_EQ(coverage.intervals(), intervals);
      ASSERT_EQ(coverage.complete(), covered == size);
      if (covered < size) {
        ASSERT_EQ(coverage.FirstGap(), (Interval{gap_begin, gap_end}));
      }
    }
  }
}

}  // namespace
}  // namespace sparsed
