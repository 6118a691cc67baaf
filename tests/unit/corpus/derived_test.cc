// What is derived from a pattern has that pattern's entries, in another order or a part of them.
#include "tools/corpus/derived.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tools/corpus/meshes.h"
#include "tools/corpus/rectangles.h"

namespace sparsed::corpus {
namespace {

std::vector<int64_t> SortedLengths(const Pattern& p) {
  std::vector<int64_t> lengths;
  for (int64_t row = 0; row < p.rows; ++row) {
    lengths.push_back(p.row_offsets[row + 1] - p.row_offsets[row]);
  }
  std::ranges::sort(lengths);
  return lengths;
}

void ExpectValid(const Pattern& p) {
  EXPECT_TRUE(ValidateCsr(p.view(), 1).ok()) << ValidateCsr(p.view(), 1);
}

TEST(Derived, ShufflesKeepRowsOrColumns) {
  const Pattern wide = UniformRows(40, 90, 7, 1), square = Stencil({8, 9}, Neighbours::kStar);
  for (const Pattern& pattern : {wide, square}) {
    for (const auto shuffle : {ShuffledRows, ShuffledColumns, ShuffledBoth}) {
      const Pattern shuffled = shuffle(pattern, 5);
      ExpectValid(shuffled);
      EXPECT_EQ(shuffled.nnz(), pattern.nnz());
      EXPECT_EQ(SortedLengths(shuffled), SortedLengths(pattern));
      EXPECT_EQ(SortedLengths(Transpose(shuffled)), SortedLengths(Transpose(pattern)));
      EXPECT_FALSE(shuffled.column_indices == pattern.column_indices);
      EXPECT_FALSE(shuffle(pattern, 6).column_indices == shuffled.column_indices);
    }
  }
  // Rows alone: columns have what they had.
  const Pattern rows = ShuffledRows(wide, 5);
  const auto column_lengths = [](const Pattern& p) { return Transpose(p).row_offsets; };
  EXPECT_EQ(column_lengths(rows), column_lengths(wide));
  EXPECT_EQ(ShuffledColumns(square, 5).row_offsets, square.row_offsets);
  // A symmetric matrix stays one if both are shuffled alike.
  const Pattern both = ShuffledBoth(square, 5);
  EXPECT_EQ(Transpose(both).column_indices, both.column_indices);
}

TEST(Derived, WindowsAreWindows) {
  const Pattern pattern = FromRows(4, {{0, 2}, {1, 3}, {}, {0, 1, 2, 3}});
  const Pattern window = Window(pattern, 1, 3, 1, 2);
  ExpectValid(window);
  EXPECT_EQ(window.rows, 3);
  EXPECT_EQ(window.cols, 2);
  EXPECT_THAT(window.row_offsets, testing::ElementsAre(0, 1, 1, 3));
  EXPECT_THAT(window.column_indices, testing::ElementsAre(0, 0, 1));
  EXPECT_EQ(Window(pattern, 4, 0, 0, 0).nnz(), 0);
}

TEST(Derived, SubgraphsHaveTheirShare) {
  const Pattern square = Stencil({20, 20}, Neighbours::kBox);
  const Pattern sampled = Sampled(square, 700, 3);
  ExpectValid(sampled);
  EXPECT_EQ(sampled.rows, 280);
  EXPECT_EQ(sampled.cols, 280);
  EXPECT_EQ(Transpose(sampled).column_indices, sampled.column_indices);
  EXPECT_EQ(Sampled(square, 1000, 3).column_indices, square.column_indices);
  const Pattern wide = Sampled(UniformRows(40, 90, 7, 1), 500, 3);
  EXPECT_EQ(wide.rows, 20);
  EXPECT_EQ(wide.cols, 45);
}

TEST(Derived, BallsAreNear) {
  const Pattern square = Stencil({30, 30}, Neighbours::kStar);
  const Pattern ball = Ball(square, 100, 3);
  ExpectValid(ball);
  EXPECT_EQ(ball.rows, 100);
  // Nearly all of a point's neighbours are in it; of so many random points, a ninth.
  EXPECT_GT(ball.nnz(), 350);
  EXPECT_EQ(Ball(square, 5000, 3).nnz(), square.nnz());
  // Nothing leads from one of these to another.
  EXPECT_EQ(Ball(FromRows(5, {{}, {}, {}, {}, {}}), 3, 1).rows, 3);
}

}  // namespace
}  // namespace sparsed::corpus
