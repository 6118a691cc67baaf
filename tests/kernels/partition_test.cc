// Parts of equal work.
#include "kernels/cpu/partition.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/generate.h"

namespace sparsed::cpu {
namespace {

void ExpectParts(const test::Pattern& pattern, int64_t parts) {
  const int64_t work = pattern.rows + pattern.nnz();
  Cut previous = PartBegin(pattern.row_offsets, 0, parts);
  EXPECT_EQ(previous.row, 0);
  EXPECT_EQ(previous.nonzero, 0);
  for (int64_t part = 1; part <= parts; ++part) {
    const Cut cut = PartBegin(pattern.row_offsets, part, parts);
    ASSERT_GE(cut.row, previous.row);
    ASSERT_GE(cut.nonzero, previous.nonzero);
    ASSERT_LE(cut.row, pattern.rows);
    ASSERT_GE(cut.nonzero, pattern.row_offsets[cut.row]);
    if (cut.row < pattern.rows && cut.nonzero > pattern.row_offsets[cut.row]) {
      ASSERT_LT(cut.nonzero, pattern.row_offsets[cut.row + 1]);
    }
    // A part exceeds its share by no more than the row that was not cut.
    const int64_t size = cut.row + cut.nonzero - previous.row - previous.nonzero;
    EXPECT_LE(size, 3 * (work / parts + 1) / 2 + 2);
    previous = cut;
  }
  EXPECT_EQ(previous.row, pattern.rows);
  EXPECT_EQ(previous.nonzero, pattern.nnz());
}

TEST(PartBegin, CutsIntoEqualParts) {
  std::vector<std::pair<int32_t, int32_t>> long_rows;
  for (int32_t i = 0; i < 5000; ++i) {
    long_rows.emplace_back(3, i);
    long_rows.emplace_back(4, i);
    if (i < 100) long_rows.emplace_back(9, i);
  }
  for (const test::Pattern& pattern :
       {test::FromCoordinates(1, 1, {}), test::FromCoordinates(100, 1, {}),
        test::FromCoordinates(1, 1, {{0, 0}}), test::Band(1000, 7), test::Rmat(10, 8, 1),
        test::FromCoordinates(12, 5000, long_rows), test::Uniform(1, 5000, 3000, 1)}) {
    for (const int64_t parts : {1, 2, 3, 7, 64, 1000}) ExpectParts(pattern, parts);
  }
}

TEST(PartCount, GrowsWithTheWorkUpToALimit) {
  EXPECT_EQ(PartCount(0, 0, 1), 1);
  EXPECT_EQ(PartCount(100, 1000, 1), 1);
  EXPECT_GT(PartCount(10000, 1000000, 8), 16);
  EXPECT_GE(PartCount(100000, 1000000, 64), PartCount(100000, 1000000, 32));
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max() / 4;
  EXPECT_EQ(PartCount(kHuge, kHuge, kHuge), PartCount(kHuge, kHuge, 1));
}

}  // namespace
}  // namespace sparsed::cpu
