// Greedy groups of rows: a permutation whose groups share columns.
#include "kernels/reorder/group_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>

#include "kernels/formats/row_panels.h"
#include "tests/generate.h"
#include "tests/kernels/counting_memory.h"
#include "tests/kernels/dense_harness.h"
#include "tests/kernels/layout_testing.h"

namespace sparsed::test {
namespace {

std::vector<int32_t> Grouped(const Pattern& pattern, int64_t size, int threads = 2) {
  const Array order = GroupRows(pattern.view(), size, OnHeap(threads)).value();
  return {order.As<int32_t>().begin(), order.As<int32_t>().end()};
}

/// Nonzeros for each column of a panel of 8 rows.
double Sharing(const Pattern& pattern, const std::vector<int32_t>& order) {
  CsrView view = pattern.view();
  view.row_order = order;
  return static_cast<double>(pattern.nnz()) /
         static_cast<double>(CountPanelSlots(view, 8, OnHeap()).value());
}

TEST(GroupRows, GivesAPermutation) {
  std::vector<NamedPattern> patterns = OddPatterns();
  patterns.push_back({"rmat", Rmat(10, 8, 2)});
  for (const auto& [name, pattern] : patterns) {
    for (const int64_t size : {2, 8, 1000}) {
      std::vector<int32_t> order = Grouped(pattern, size);
      std::sort(order.begin(), order.end());
      std::vector<int32_t> identity(pattern.rows);
      std::iota(identity.begin(), identity.end(), 0);
      EXPECT_EQ(order, identity) << name;
    }
  }
}

TEST(GroupRows, PutsEmptyRowsLast) {
  const Pattern pattern = FromCoordinates(6, 4, {{1, 0}, {3, 2}, {4, 0}});
  EXPECT_EQ(Grouped(pattern, 2), (std::vector<int32_t>{1, 4, 3, 0, 2, 5}));
}

TEST(GroupRows, RecoversGroups) {
  // 8 rows a group, all with the group's own 5 columns, shuffled.
  std::vector<std::pair<int32_t, int32_t>> entries;
  const std::vector<int32_t> shuffled = RandomOrder(800, 3);
  for (int32_t i = 0; i < 800; ++i) {
    for (int32_t j = 0; j < 5; ++j) entries.emplace_back(shuffled[i], i / 8 * 5 + j);
  }
  const Pattern groups = FromCoordinates(800, 500, std::move(entries));
  EXPECT_LT(Sharing(groups, {}), 1.2);
  EXPECT_DOUBLE_EQ(Sharing(groups, Grouped(groups, 8)), 8);

  const Pattern clusters = ShuffledClusters(1000, 16, 20'000, 36, 32, 3, 1);
  EXPECT_GT(Sharing(clusters, Grouped(clusters, 8)), 3.2);
  const Pattern grid = Stencil(300, 300);
  EXPECT_GT(Sharing(grid, Grouped(grid, 8)), 1.25 * Sharing(grid, {}));
}

TEST(GroupRows, IsTheSameForAnyTeam) {
  const Pattern pattern = Rmat(14, 8, 2);
  EXPECT_EQ(Grouped(pattern, 8, 1), Grouped(pattern, 8, 3));
}

TEST(GroupRows, StopsAndFreesItsMemory) {
  const Pattern pattern = Rmat(10, 8, 2);
  CountingMemory memory;
  BuildContext context = ContextWith(memory);
  const std::atomic<bool> stop = true;
  context.stop = &stop;
  EXPECT_TRUE(absl::IsCancelled(GroupRows(pattern.view(), 8, context).status()));
  EXPECT_EQ(memory.held(), 0);
  CountingMemory limited(pattern.nnz() * 8);
  EXPECT_TRUE(
      absl::IsResourceExhausted(GroupRows(pattern.view(), 8, ContextWith(limited)).status()));
  EXPECT_EQ(limited.held(), 0);
}

}  // namespace
}  // namespace sparsed::test
