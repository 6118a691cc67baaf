#include "kernels/reorder/breadth_first.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>

#include "kernels/cpu/multiply_add.h"
#include "kernels/data_movement/movement.h"
#include "tests/generate.h"
#include "tests/kernels/dense_harness.h"
#include "tests/kernels/layout_testing.h"

namespace sparsed::test {
namespace {

std::vector<int32_t> Ordered(const Pattern& pattern) {
  const Array order = BreadthFirst(pattern.view(), OnHeap()).value();
  return {order.As<int32_t>().begin(), order.As<int32_t>().end()};
}

TEST(BreadthFirst, GivesAPermutation) {
  std::vector<NamedPattern> patterns = OddPatterns();
  patterns.push_back({"rmat", Rmat(10, 8, 2)});
  for (const auto& [name, pattern] : patterns) {
    std::vector<int32_t> order = Ordered(pattern);
    std::sort(order.begin(), order.end());
    std::vector<int32_t> identity(pattern.rows);
    std::iota(identity.begin(), identity.end(), 0);
    EXPECT_EQ(order, identity) << name;
  }
}

TEST(BreadthFirst, FollowsColumnsByHand) {
  // 0 shares column 0 with 3, which shares column 2 with 1; 2 is empty; 4 stands alone.
  const Pattern pattern = FromCoordinates(5, 4, {{0, 0}, {1, 2}, {3, 0}, {3, 2}, {4, 3}});
  EXPECT_THAT(Ordered(pattern), ::testing::ElementsAre(0, 3, 1, 2, 4));
}

TEST(BreadthFirst, UndoesAShuffle) {
  // A band whose rows and columns were renamed.
  const std::vector<int32_t> names = RandomOrder(4000, 3);
  std::vector<std::pair<int32_t, int32_t>> entries;
  for (int32_t i = 0; i < 4000; ++i) {
    for (int32_t j = std::max(0, i - 4); j < std::min(4000, i + 5); ++j) {
      entries.emplace_back(names[i], names[j]);
    }
  }
  const Pattern shuffled = FromCoordinates(4000, 4000, entries);
  const MovementSpec spec{.k = 64, .cache_bytes = 64 << 10};
  const Movement before = ModelMovement(shuffled.view(), spec, OnHeap()).value();
  CsrView view = shuffled.view();
  const std::vector<int32_t> order = Ordered(shuffled);
  view.row_order = order;
  const Movement after = ModelMovement(view, spec, OnHeap()).value();
  EXPECT_GT(before.moved_bytes, 4 * before.footprint_bytes);
  EXPECT_LT(after.moved_bytes, 1.1 * after.footprint_bytes);
}

TEST(BreadthFirst, Stops) {
  const std::atomic<bool> stop = true;
  BuildContext context = OnHeap();
  context.stop = &stop;
  EXPECT_TRUE(absl::IsCancelled(BreadthFirst(Rmat(8, 4, 1).view(), context).status()));
}

TEST(MultiplyAdd, CountsWhatItDoes) {
  const double f32 = cpu::MultiplyAdd(ElementType::kF32, 1000, 1);
  // Two operations a lane of ten vectors; a vector holds twice as many f32 as f64.
  EXPECT_GE(f32, 2 * 10 * 1000 * 4);
  EXPECT_DOUBLE_EQ(cpu::MultiplyAdd(ElementType::kBF16, 1000, 1), f32);
  EXPECT_DOUBLE_EQ(cpu::MultiplyAdd(ElementType::kF64, 1000, 1), f32 / 2);
  EXPECT_DOUBLE_EQ(cpu::MultiplyAdd(ElementType::kF32, 1000, 3), 3 * f32);
}

}  // namespace
}  // namespace sparsed::test
