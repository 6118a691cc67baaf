#include "kernels/spgemm_blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

namespace sparsed {
namespace {

using testing::ElementsAre;

std::vector<RowRange> Blocks(const std::vector<int64_t>& bounds, int64_t max_entries) {
  std::vector<RowRange> blocks;
  const auto rows = static_cast<int64_t>(bounds.size());
  for (int64_t row = 0; row < rows; row = blocks.back().end) {
    blocks.push_back(NextRowBlock(bounds, row, max_entries));
  }
  return blocks;
}

MATCHER_P2(Rows, begin, end, "") { return arg.begin == begin && arg.end == end; }

TEST(SpgemmBlocksTest, FillsBlocksUpToTheLimit) {
  EXPECT_THAT(Blocks({3, 4, 3, 1, 9, 0, 1}, 10), ElementsAre(Rows(0, 3), Rows(3, 6), Rows(6, 7)));
}

TEST(SpgemmBlocksTest, GivesARowAboveTheLimitABlockOfItsOwn) {
  EXPECT_THAT(Blocks({1, 100, 1, 100, 100}, 10),
              ElementsAre(Rows(0, 1), Rows(1, 2), Rows(2, 3), Rows(3, 4), Rows(4, 5)));
  EXPECT_THAT(Blocks({5}, 0), ElementsAre(Rows(0, 1)));
}

TEST(SpgemmBlocksTest, EndsWithTheRows) {
  const RowRange none = NextRowBlock({}, 0, 10);
  EXPECT_EQ(none.begin, none.end);
  EXPECT_THAT(Blocks({0, 0, 0}, 10), ElementsAre(Rows(0, 3)));
}

TEST(SpgemmBlocksTest, LimitsRowsToo) {
  const std::vector<int64_t> bounds(2 * kMaxBlockRows + 5, 0);
  EXPECT_THAT(Blocks(bounds, 10),
              ElementsAre(Rows(0, kMaxBlockRows), Rows(kMaxBlockRows, 2 * kMaxBlockRows),
                          Rows(2 * kMaxBlockRows, 2 * kMaxBlockRows + 5)));
}

TEST(SpgemmBlocksTest, DoesNotOverflow) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max() / 2 + 1;
  EXPECT_THAT(Blocks({kHuge, kHuge, kHuge}, std::numeric_limits<int64_t>::max()),
              ElementsAre(Rows(0, 1), Rows(1, 2), Rows(2, 3)));
}

TEST(SpgemmBlocksTest, PlacesRowsByTheirBounds) {
  const std::vector<int64_t> bounds = {7, 3, 0, 5, 8};
  std::vector<int64_t> row_begin(4, -1);
  EXPECT_EQ(PlaceRowBlock(bounds, {1, 4}, row_begin), 8);
  EXPECT_THAT(row_begin, ElementsAre(0, 3, 3, 8));
}

template <typename T>
void ExpectCompacts(const std::vector<int64_t>& bounds, const std::vector<int64_t>& nnz,
                    bool in_place, int threads) {
  std::vector<int64_t> row_begin(bounds.size() + 1);
  const int64_t room = PlaceRowBlock(bounds, {0, static_cast<int64_t>(bounds.size())}, row_begin);
  std::vector<int32_t> columns(room, -7);
  std::vector<T> values(room, std::numeric_limits<T>::quiet_NaN());
  std::vector<int32_t> expected_columns;
  std::vector<T> expected_values;
  for (size_t row = 0; row < nnz.size(); ++row) {
    for (int64_t i = 0; i < nnz[row]; ++i) {
      const auto id = static_cast<int32_t>(expected_columns.size());
      expected_columns.push_back(columns[row_begin[row] + i] = id);
      expected_values.push_back(values[row_begin[row] + i] = static_cast<T>(0.5) * id);
    }
  }
  // Exactly as large as the result: writing past its end shows under a sanitizer.
  std::vector<int32_t> to_columns(expected_columns.size());
  std::vector<T> to_values(expected_values.size());
  const RowBlock block = {row_begin, nnz, columns.data(), values.data(), ElementTypeOf<T>()};
  const auto total = static_cast<int64_t>(expected_columns.size());
  if (in_place) {
    ASSERT_EQ(CompactRowBlock(block, threads, columns.data(), values.data()), total);
    to_columns.assign(columns.begin(), columns.begin() + total);
    to_values.assign(values.begin(), values.begin() + total);
  } else {
    ASSERT_EQ(CompactRowBlock(block, threads, to_columns.data(), to_values.data()), total);
  }
  EXPECT_EQ(to_columns, expected_columns);
  EXPECT_EQ(to_values, expected_values);
}

TEST(SpgemmBlocksTest, CompactsIntoOtherArraysAndInPlace) {
  std::vector<int64_t> bounds;
  std::vector<int64_t> nnz;
  for (int64_t row = 0; row < 500; ++row) {
    bounds.push_back(row * 37 % 61 + (row % 97 == 0 ? 400 : 0));
    nnz.push_back(row % 5 == 0 ? bounds.back() : bounds.back() / (1 + row % 4));
  }
  const std::vector<int64_t> zeros(9, 0);
  for (const bool in_place : {false, true}) {
    for (const int threads : {1, 2, 3, 8}) {
      ExpectCompacts<float>(bounds, nnz, in_place, threads);
      ExpectCompacts<double>(bounds, nnz, in_place, threads);
      ExpectCompacts<double>(bounds, std::vector<int64_t>(bounds.size(), 0), in_place, threads);
      ExpectCompacts<float>(bounds, bounds, in_place, threads);
      ExpectCompacts<float>(zeros, zeros, in_place, threads);
      ExpectCompacts<float>({}, {}, in_place, threads);
      ExpectCompacts<float>({5}, {3}, in_place, threads);
    }
  }
}

}  // namespace
}  // namespace sparsed
