// Row sorts: the paper's definitions by hand, and the chains of nearest rows against the exact
// greedy search.
#include "kernels/reorder/sort_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <tuple>

#include "kernels/pipeline.h"
#include "tests/generate.h"
#include "tests/kernels/counting_memory.h"
#include "tests/kernels/dense_harness.h"
#include "tests/kernels/layout_testing.h"

namespace sparsed::test {
namespace {

constexpr RowSort kSorts[] = {RowSort::kPlain,     RowSort::kFlipped,  RowSort::kLpt,
                              RowSort::kWarpAware, RowSort::kCtaAware, RowSort::kHybrid1,
                              RowSort::kHybrid21,  RowSort::kHybrid22, RowSort::kHybrid23};
constexpr RowSort kNearest[] = {RowSort::kWarpAware, RowSort::kCtaAware, RowSort::kHybrid1,
                                RowSort::kHybrid21,  RowSort::kHybrid22, RowSort::kHybrid23};

using Order = std::vector<int32_t>;

Order Sorted(const Pattern& pattern, RowSort sort, const RowPolicy& policy = {}, int threads = 2) {
  const Array order = SortRows(pattern.view(), sort, policy, OnHeap(threads)).value();
  return {order.As<int32_t>().begin(), order.As<int32_t>().end()};
}

/// Rows of the given columns.
Pattern FromRows(int64_t cols, const std::vector<std::vector<int32_t>>& rows) {
  std::vector<std::pair<int32_t, int32_t>> entries;
  for (size_t row = 0; row < rows.size(); ++row) {
    for (int32_t column : rows[row]) entries.emplace_back(static_cast<int32_t>(row), column);
  }
  return FromCoordinates(static_cast<int64_t>(rows.size()), cols, std::move(entries));
}

/// Rows of the given lengths.
Pattern OfLengths(const std::vector<int32_t>& lengths) {
  std::vector<std::vector<int32_t>> rows;
  for (int32_t length : lengths) {
    rows.emplace_back(length);
    std::iota(rows.back().begin(), rows.back().end(), 0);
  }
  return FromRows(100, rows);
}

TEST(SortRows, PlainIsByLoadDescending) {
  const Pattern pattern = OfLengths({3, 0, 9, 4, 8, 1});
  EXPECT_EQ(Sorted(pattern, RowSort::kPlain), (Order{2, 4, 3, 0, 5, 1}));
  // Loads of 1, 0, 3, 1, 2, 1.
  EXPECT_EQ(Sorted(pattern, RowSort::kPlain, {.lanes = 4}), (Order{2, 4, 0, 3, 5, 1}));
}

TEST(SortRows, FlippedTurnsEverySecondRound) {
  const Pattern pattern = OfLengths({8, 7, 6, 5, 4, 3, 2, 1});
  EXPECT_EQ(Sorted(pattern, RowSort::kFlipped, {.warps = 3}), (Order{0, 1, 2, 5, 4, 3, 6, 7}));
  EXPECT_EQ(Sorted(pattern, RowSort::kFlipped, {.warps = 5}), (Order{0, 1, 2, 3, 4, 7, 6, 5}));
}

TEST(SortRows, LptGivesTheLongestToTheIdlestWarp) {
  // Warp 0 takes 9 and 2, warp 1 takes 7 and 4, warp 2 takes 5 and, 5 being least, 5.
  const Pattern pattern = OfLengths({9, 7, 5, 5, 4, 2});
  EXPECT_EQ(Sorted(pattern, RowSort::kLpt, {.warps = 3}), (Order{0, 1, 2, 5, 4, 3}));
  // Two warps of three consecutive rows: 9, 5, 2 and 7, 5, 4.
  EXPECT_EQ(Sorted(pattern, RowSort::kLpt, {.warps = 2, .run = 3}), (Order{0, 3, 5, 1, 2, 4}));
  // A warp that has all its rows takes no more, however little they are.
  EXPECT_EQ(Sorted(OfLengths({50, 1, 1, 1}), RowSort::kLpt, {.warps = 2}), (Order{0, 1, 3, 2}));
}

TEST(SortRows, RunsAreDealtToWarps) {
  // Two warps of two consecutive rows a block: 10 and 8, 9 and 7; then 6, 4 and 5.
  const Pattern pattern = OfLengths({10, 9, 8, 7, 6, 5, 4});
  EXPECT_EQ(Sorted(pattern, RowSort::kPlain, {.warps = 2, .run = 2}), (Order{0, 2, 1, 3, 4, 6, 5}));
}

TEST(SortRows, CtaAwareTakesTheNearestToTheRowBefore) {
  // From row 3, of least load: row 0 differs by one column, row 2 by two more, then row 1.
  const Pattern pattern = FromRows(10, {{0, 1, 2}, {6, 7, 8, 9}, {0, 1, 2, 3, 4}, {0, 1}});
  EXPECT_EQ(Sorted(pattern, RowSort::kCtaAware), (Order{3, 0, 2, 1}));
}

TEST(SortRows, WarpAwareTakesTheNearestToTheRowBeforeInItsWarp) {
  // Warps begin with rows 1 and 4, of least load, and find rows that share their columns.
  const Pattern pattern =
      FromRows(10, {{5, 6, 7}, {0, 1}, {0, 1, 2, 3}, {5, 6, 7, 8}, {5, 6}, {0, 1, 2}});
  EXPECT_EQ(Sorted(pattern, RowSort::kWarpAware, {.warps = 2}), (Order{1, 4, 5, 0, 2, 3}));
}

TEST(SortRows, Hybrid1BreaksTiesOfLoadByDistance) {
  const Pattern pattern = FromRows(10, {{0, 1}, {5, 6}, {2, 3}, {4, 5, 6}, {3, 4}, {9}, {5}});
  EXPECT_EQ(Sorted(pattern, RowSort::kHybrid1), (Order{3, 1, 0, 2, 4, 5, 6}));
}

TEST(SortRows, Hybrid2BreaksTiesOfDistance) {
  const Pattern pattern = FromRows(12, {{0, 1, 2}, {0, 1, 2, 3, 4}, {0}, {0, 1, 2, 5}, {0, 9, 10}});
  // From row 2, rows 0 and 4 are at 2 and of equal load: row 0; then row 3, at 1.
  EXPECT_EQ(Sorted(pattern, RowSort::kHybrid21), (Order{2, 0, 3, 1, 4}));
}

TEST(SortRows, ColumnsOfOneBitAreOne) {
  // With four columns a bit, rows 0 and 3 have the same mask, and rows 1 and 2.
  const Pattern pattern = FromRows(8, {{0, 4}, {1}, {2, 3}, {3, 5, 6}});
  EXPECT_EQ(Sorted(pattern, RowSort::kCtaAware, {.mask_columns = 4}), (Order{1, 2, 0, 3}));
}

/// The definitions, all pairs compared.
class ExactGreedy {
 public:
  ExactGreedy(const Pattern& pattern, RowSort sort, const RowPolicy& policy)
      : sort_(sort), policy_(policy) {
    for (int64_t row = 0; row < pattern.rows; ++row) {
      const int64_t begin = pattern.row_offsets[row];
      const int64_t end = pattern.row_offsets[row + 1];
      loads_.push_back((end - begin + policy.lanes - 1) / policy.lanes);
      masks_.emplace_back((pattern.cols + policy.mask_columns - 1) / policy.mask_columns, false);
      for (int64_t p = begin; p < end; ++p) {
        masks_.back()[pattern.column_indices[p] / policy.mask_columns] = true;
      }
    }
  }

  int64_t stride() const {
    return sort_ == RowSort::kWarpAware || sort_ == RowSort::kHybrid23 ? policy_.warps : 1;
  }

  Order Find() const {
    const auto rows = static_cast<int64_t>(masks_.size());
    const int64_t sign = sort_ == RowSort::kHybrid1 ? -1 : 1;
    Order left(rows);
    std::iota(left.begin(), left.end(), 0);
    std::stable_sort(left.begin(), left.end(),
                     [&](int32_t a, int32_t b) { return sign * loads_[a] < sign * loads_[b]; });
    Order order(left.begin(), left.begin() + std::min(stride(), rows));
    left.erase(left.begin(), left.begin() + std::min(stride(), rows));
    for (int64_t i = stride(); i < rows; ++i) {
      const auto key = [&](int32_t row) {
        const int64_t load = sort_ == RowSort::kHybrid1 ? -loads_[row] : 0;
        int64_t tie = 0;
        if (sort_ == RowSort::kHybrid21 || sort_ == RowSort::kHybrid23) {
          tie = std::abs(loads_[row] - loads_[order[i - 1]]);
        }
        if (sort_ == RowSort::kHybrid22 && i >= policy_.warps) {
          tie = Distance(row, order[i - policy_.warps]);
        }
        return std::tuple(load, Distance(row, order[i - stride()]), tie, row);
      };
      auto best = left.begin();
      for (auto it = left.begin(); it != left.end(); ++it) {
        if (key(*it) < key(*best)) best = it;
      }
      order.push_back(*best);
      left.erase(best);
    }
    return order;
  }

  /// Sum of the distances that the chains have.
  int64_t Cost(const Order& order) const {
    int64_t cost = 0;
    for (size_t i = stride(); i < order.size(); ++i) {
      cost += Distance(order[i], order[i - stride()]);
    }
    return cost;
  }

 private:
  int64_t Distance(int32_t a, int32_t b) const {
    int64_t distance = 0;
    for (size_t i = 0; i < masks_[a].size(); ++i) {
      distance += static_cast<int64_t>(masks_[a][i] != masks_[b][i]);
    }
    return distance;
  }

  const RowSort sort_;
  const RowPolicy policy_;
  std::vector<int64_t> loads_;
  std::vector<std::vector<char>> masks_;
};

TEST(SortRows, ChainsAreExactWhereColumnsAreShort) {
  const Pattern pattern = Stencil(12, 11);
  for (const RowSort sort : {RowSort::kWarpAware, RowSort::kCtaAware, RowSort::kHybrid1,
                             RowSort::kHybrid21, RowSort::kHybrid23}) {
    for (const int64_t warps : {1, 2, 5}) {
      const RowPolicy policy{.warps = warps};
      EXPECT_EQ(Sorted(pattern, sort, policy), ExactGreedy(pattern, sort, policy).Find())
          << static_cast<int>(sort) << " " << warps;
    }
  }
}

TEST(SortRows, ChainsComeNearTheExactGreedySearch) {
  // A factor of 1 is the exact search; where few columns have very many rows each, a window sees
  // little of them.
  const struct {
    std::string name;
    Pattern pattern;
    double factor;
  } patterns[] = {
      {"uniform", Uniform(500, 500, 10, 1), 1.15},
      {"few columns", Uniform(500, 60, 8, 2), 1.6},
      {"clusters", ShuffledClusters(32, 16, 600, 12, 9, 1, 3), 1.15},
      {"power law", PowerLaw(500, 5000, 2.5, 4), 1.15},
      {"R-MAT", Rmat(9, 8, 5), 1.15},
      {"band", Band(500, 6), 1.15},
      {"tall", Uniform(1000, 24, 5, 6), 1.6},
  };
  for (const auto& [name, pattern, factor] : patterns) {
    for (const RowPolicy& policy :
         {RowPolicy{}, RowPolicy{.warps = 8, .lanes = 4, .mask_columns = 4}}) {
      for (const RowSort sort : kNearest) {
        const ExactGreedy exact(pattern, sort, policy);
        const auto cost = static_cast<double>(exact.Cost(Sorted(pattern, sort, policy)));
        const auto best = static_cast<double>(exact.Cost(exact.Find()));
        EXPECT_LE(cost, factor * best) << name << " " << static_cast<int>(sort);
      }
    }
  }
}

TEST(SortRows, GivesAPermutation) {
  for (const auto& [name, pattern] : OddPatterns()) {
    for (const RowSort sort : kSorts) {
      for (const RowPolicy& policy :
           {RowPolicy{}, RowPolicy{.warps = 3, .run = 7, .lanes = 32, .mask_columns = 32},
            RowPolicy{.warps = (1LL << 31) - 1, .run = (1LL << 31) - 1},
            RowPolicy{.warps = 1, .lanes = (1LL << 31) - 1, .mask_columns = (1LL << 31) - 1}}) {
        Order order = Sorted(pattern, sort, policy);
        std::sort(order.begin(), order.end());
        Order identity(pattern.rows);
        std::iota(identity.begin(), identity.end(), 0);
        EXPECT_EQ(order, identity) << name << " " << static_cast<int>(sort);
      }
    }
  }
}

TEST(SortRows, IsTheSameForAnyTeam) {
  const Pattern pattern = Rmat(15, 8, 2);
  for (const RowSort sort : kSorts) {
    EXPECT_EQ(Sorted(pattern, sort, {}, 1), Sorted(pattern, sort, {}, 4));
  }
}

TEST(SortRows, StopsAndFreesItsMemory) {
  const Pattern pattern = Rmat(10, 8, 2);
  for (const RowSort sort : kSorts) {
    CountingMemory memory;
    BuildContext context = OnHeap();
    context.memory = &memory;
    const std::atomic<bool> stop = true;
    context.stop = &stop;
    const RowPolicy policy{.mask_columns = 2};
    EXPECT_TRUE(absl::IsCancelled(SortRows(pattern.view(), sort, policy, context).status()));
    EXPECT_EQ(memory.held(), 0);
    // Each allocation may be the one that fails.
    context.stop = nullptr;
    ASSERT_TRUE(SortRows(pattern.view(), sort, policy, context).ok());
    const int64_t peak = memory.peak();
    for (int64_t limit = 0; limit < peak; limit += peak / 40) {
      CountingMemory limited(limit);
      context.memory = &limited;
      EXPECT_TRUE(
          absl::IsResourceExhausted(SortRows(pattern.view(), sort, policy, context).status()));
      EXPECT_EQ(limited.held(), 0);
    }
  }
}

TEST(SortRows, AreStepsOfPipelines) {
  const Pattern pattern = Rmat(9, 8, 2);
  const RowPolicy policy{.warps = 8, .lanes = 4, .mask_columns = 2};
  const std::pair<std::string, RowSort> steps[] = {
      {"plain_sort(warps=8,lanes=4)", RowSort::kPlain},
      {"flipped_sort(warps=8,lanes=4)", RowSort::kFlipped},
      {"lpt_sort(warps=8,lanes=4)", RowSort::kLpt},
      {"warp_sort(warps=8,lanes=4,mask_columns=2)", RowSort::kWarpAware},
      {"cta_sort(warps=8,lanes=4,mask_columns=2)", RowSort::kCtaAware},
      {"hybrid1_sort(warps=8,lanes=4,mask_columns=2)", RowSort::kHybrid1},
      {"hybrid21_sort(warps=8,lanes=4,mask_columns=2)", RowSort::kHybrid21},
      {"hybrid22_sort(warps=8,lanes=4,mask_columns=2)", RowSort::kHybrid22},
      {"hybrid23_sort(warps=8,lanes=4,mask_columns=2)", RowSort::kHybrid23}};
  for (const auto& [text, sort] : steps) {
    const BuiltLayout built =
        BuildLayout(ParsePipeline(text).value(), pattern.view(), OnHeap()).value();
    const auto order = ViewCsr(built.layout).row_order;
    EXPECT_EQ(Order(order.begin(), order.end()), Sorted(pattern, sort, policy)) << text;
  }
}

}  // namespace
}  // namespace sparsed::test
