#include "client/src/shard_cut.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace sparsed {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Rows {
  /// Each row's columns.
  explicit Rows(const std::vector<std::vector<int32_t>>& of) {
    for (const auto& row : of) {
      columns.insert(columns.end(), row.begin(), row.end());
      offsets.push_back(static_cast<int64_t>(columns.size()));
    }
  }
  CsrView View(int64_t cols) const {
    return {.rows = static_cast<int64_t>(offsets.size()) - 1,
            .cols = cols,
            .row_offsets = std::span<const int64_t>(offsets),
            .column_indices = columns,
            .values = {}};
  }
  std::vector<int64_t> offsets = {0};
  std::vector<int32_t> columns;
};

TEST(ShardCut, PartsHaveAsManyNonzerosAndARowEach) {
  const Rows even(std::vector<std::vector<int32_t>>(12, {0}));
  EXPECT_THAT(CutByNonzeros(even.View(1), 3), ElementsAre(0, 4, 8, 12));
  EXPECT_THAT(CutByNonzeros(even.View(1), 1), ElementsAre(0, 12));
  // One row has nearly all, and no other part goes without a row.
  Rows heavy({{0, 1, 2, 3, 4, 5, 6, 7}, {0}, {}, {}});
  EXPECT_THAT(CutByNonzeros(heavy.View(8), 4), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(CutByNonzeros(heavy.View(8), 2), ElementsAre(0, 1, 4));
  const Rows empty(std::vector<std::vector<int32_t>>(5));
  EXPECT_THAT(CutByNonzeros(empty.View(1), 5), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(ShardCut, APartIsAtMostARowFromItsShare) {
  std::mt19937_64 random(3);
  std::vector<std::vector<int32_t>> rows(1000);
  for (auto& row : rows) row.assign(random() % 20, 0);
  const Rows matrix(rows);
  const std::vector<int64_t> firsts = CutByNonzeros(matrix.View(1), 7);
  const double share = static_cast<double>(matrix.columns.size()) / 7;
  for (size_t i = 0; i < 7; ++i) {
    const auto nnz = static_cast<double>(matrix.offsets[firsts[i + 1]] - matrix.offsets[firsts[i]]);
    EXPECT_NEAR(nnz, share, 21) << i;
  }
}

TEST(ShardCut, APartitionSaysEachRowsShard) {
  const std::vector<int32_t> partition = {1, 0, 1, 2};
  const auto parts = CutByPartition(partition, 4, 3);
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_THAT(*parts, ElementsAre(ElementsAre(1), ElementsAre(0, 2), ElementsAre(3)));
  EXPECT_THAT(CutByPartition(partition, 5, 3).status().message(), HasSubstr("4 elements"));
  EXPECT_THAT(CutByPartition(partition, 4, 2).status().message(), HasSubstr("partition[3] = 2"));
  EXPECT_THAT(CutByPartition(partition, 4, 4).status().message(), HasSubstr("shard 3 of 4"));
  const std::vector<int32_t> negative = {0, -1};
  EXPECT_TRUE(absl::IsInvalidArgument(CutByPartition(negative, 2, 1).status()));
}

TEST(ShardCut, AShardHasTheColumnsThatItsRowsName) {
  const Rows matrix({{7, 2}, {}, {9, 2}, {0}});
  std::vector<int32_t> seen(10);
  const std::vector<int32_t> rows = {0, 2};
  // Its node has two rows of operands, of which none is named.
  const std::vector<int32_t> own = {4, 5};
  const std::vector<double> places = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  const OperandRows operand{.own = own, .places = places};
  const CutRows cut = Cut(matrix.View(10), rows, operand, seen);
  EXPECT_THAT(cut.columns, ElementsAre(2, 7, 9));
  EXPECT_THAT(cut.row_offsets, ElementsAre(0, 2, 4));
  // In the order that they had.
  EXPECT_THAT(cut.column_indices, ElementsAre(1, 0, 2, 0));
  EXPECT_THAT(cut.begins, ElementsAre(0, 2));
  EXPECT_THAT(seen, testing::Each(0));
  const std::vector<int32_t> none = {1};
  const CutRows empty = Cut(matrix.View(10), none, operand, seen);
  EXPECT_TRUE(empty.columns.empty());
  EXPECT_THAT(empty.row_offsets, ElementsAre(0, 0));
}

TEST(ShardCut, OwnRowsOfOperandsAreTogetherWhereMostAreNamed) {
  const Rows matrix({{0, 2, 5, 8}});
  std::vector<int32_t> seen(10);
  const std::vector<int32_t> rows = {0};
  // Columns 2, 5, 6 and 8 are its node's, 0 and 9 another's before, the others one's behind.
  const std::vector<int32_t> own = {2, 5, 6, 8};
  const std::vector<double> places = {0, 20, 10, 21, 22, 11, 12, 23, 13, 1};
  const CutRows cut = Cut(matrix.View(10), rows, {.own = own, .places = places}, seen);
  EXPECT_THAT(cut.columns, ElementsAre(0, 2, 5, 6, 8));
  EXPECT_THAT(cut.column_indices, ElementsAre(0, 1, 2, 4));
  EXPECT_THAT(seen, testing::Each(0));
  // By place, not by number.
  std::vector<double> turned = places;
  std::swap(turned[0], turned[9]);
  for (const int32_t column : own) turned[static_cast<size_t>(column)] *= -1;
  EXPECT_THAT(Cut(matrix.View(10), rows, {.own = own, .places = turned}, seen).columns,
              ElementsAre(8, 6, 5, 2, 0));
  // One of three is too few; so are two of which three others are named.
  const std::vector<int32_t> three = {2, 3, 4};
  EXPECT_THAT(Cut(matrix.View(10), rows, {.own = three, .places = turned}, seen).columns,
              ElementsAre(0, 2, 5, 8));
  const Rows wide({{0, 1, 2, 5, 8}});
  const std::vector<int32_t> two = {2, 5};
  EXPECT_THAT(Cut(wide.View(10), rows, {.own = two, .places = turned}, seen).columns,
              ElementsAre(0, 1, 2, 5, 8));
  EXPECT_THAT(seen, testing::Each(0));
}

TEST(ShardCut, WhatIsNoMatrixIsSaid) {
  Rows matrix({{0, 1}, {1}});
  EXPECT_TRUE(CheckCut(matrix.View(2)).ok());
  EXPECT_THAT(CheckCut(matrix.View(1)).message(), HasSubstr("column_indices[1] = 1"));
  matrix.columns[0] = -1;
  EXPECT_THAT(CheckCut(matrix.View(2)).message(), HasSubstr("column_indices[0] = -1"));
  Rows descending({{0, 1}, {1}});
  descending.offsets[1] = 4;
  EXPECT_THAT(CheckCut(descending.View(2)).message(), HasSubstr("row_offsets[1] = 4 is above"));
  Rows short_of({{0, 1}, {1}});
  short_of.offsets.back() = 2;
  EXPECT_THAT(CheckCut(short_of.View(2)).message(), HasSubstr("from 0 to 2"));
}

}  // namespace
}  // namespace sparsed
