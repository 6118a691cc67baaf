// How dense operands lie on the device: rows that vectors can read, whatever their width.
#include "engine/execution/placed_dense.h"

#include <gtest/gtest.h>

namespace sparsed::engine {
namespace {

/// The leading dimension on the device; 0: the matrix stays as it is.
int64_t LeadingThere(int64_t cols, int64_t leading_dimension,
                     ElementType type = ElementType::kF32) {
  const auto there = PaddedShape({10, cols, leading_dimension, type});
  if (!there) return 0;
  EXPECT_EQ(there->rows, 10);
  EXPECT_EQ(there->cols, cols);
  return there->leading_dimension;
}

TEST(PaddedShape, StaysWhereVectorsDivideRows) {
  EXPECT_EQ(LeadingThere(8, 8), 0);
  EXPECT_EQ(LeadingThere(128, 136), 0) << "gaps are the caller's";
  EXPECT_EQ(LeadingThere(2, 2, ElementType::kF64), 0);
  EXPECT_EQ(LeadingThere(24, 24, ElementType::kBF16), 0);
}

TEST(PaddedShape, RoundsOddWidthsUp) {
  EXPECT_EQ(LeadingThere(33, 33), 36);
  EXPECT_EQ(LeadingThere(34, 34), 36);
  EXPECT_EQ(LeadingThere(3, 3, ElementType::kF64), 4);
  EXPECT_EQ(LeadingThere(33, 33, ElementType::kF16), 40);
  EXPECT_EQ(LeadingThere(33, 36), 36) << "gaps become zeros";
  EXPECT_EQ(LeadingThere(32, 33), 32);
}

TEST(PaddedShape, NeverMoreThanDoublesRows) {
  EXPECT_EQ(LeadingThere(2, 2), 4);
  EXPECT_EQ(LeadingThere(3, 3, ElementType::kF16), 0);
  EXPECT_EQ(LeadingThere(4, 4, ElementType::kF16), 8);
  EXPECT_EQ(LeadingThere((1 << 20) + 1, (1 << 20) + 1), 0) << "a row fits a block of staging";
}

TEST(PaddedShape, ASingleColumnHasNoGaps) {
  EXPECT_EQ(LeadingThere(1, 1), 0);
  EXPECT_EQ(LeadingThere(1, 5), 1);
}

TEST(CommonWidth, IsThatOfBothOrOfNeither) {
  const DenseShape shape = {10, 33, 33, ElementType::kF32};
  const PlacedDense padded = {nullptr, *PaddedShape(shape), true};
  const PlacedDense plain = {nullptr, shape, false};
  EXPECT_EQ(CommonWidth(padded, padded), 36);
  EXPECT_EQ(CommonWidth(padded, plain), 33);
  EXPECT_EQ(CommonWidth(plain, plain), 33);
  const DenseShape column = {10, 1, 4, ElementType::kF32};
  const PlacedDense packed = {nullptr, *PaddedShape(column), true};
  EXPECT_EQ(CommonWidth(packed, {nullptr, column, false}), 1);
}

}  // namespace
}  // namespace sparsed::engine
