#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <list>
#include <numeric>
#include <set>

#include "kernels/data_movement/lru_cache.h"
#include "kernels/data_movement/movement.h"
#include "kernels/data_movement/product_hypergraph.h"
#include "tests/generate.h"
#include "tests/kernels/layout_testing.h"

namespace sparsed {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

Movement MovementOf(const CsrView& csr, const MovementSpec& spec) {
  const auto movement = ModelMovement(csr, spec, test::OnHeap());
  EXPECT_TRUE(movement.ok()) << movement.status();
  return *movement;
}

/// What LruCache should do, as slowly as can be: a list of units and of bytes that passed.
class PlainLru {
 public:
  PlainLru(int64_t unit_bytes, int64_t capacity) : unit_bytes_(unit_bytes), capacity_(capacity) {}
  bool Touch(int64_t unit) {
    for (auto i = entries_.begin(); i != entries_.end(); ++i) {
      if (i->unit != unit) continue;
      entries_.splice(entries_.end(), entries_, i);
      return false;
    }
    entries_.push_back({unit, unit_bytes_});
    Evict();
    return true;
  }
  void Pass(int64_t bytes) {
    entries_.push_back({-1, bytes});
    Evict();
  }

 private:
  struct Entry {
    int64_t unit, bytes;
  };
  void Evict() {
    int64_t held = 0;
    for (const Entry& entry : entries_) held += entry.bytes;
    while (held > capacity_) {
      Entry& oldest = entries_.front();
      const int64_t dropped =
          oldest.unit < 0 ? std::min(oldest.bytes, held - capacity_) : oldest.bytes;
      oldest.bytes -= dropped;
      held -= dropped;
      if (oldest.bytes == 0) entries_.pop_front();
    }
  }
  const int64_t unit_bytes_, capacity_;
  std::list<Entry> entries_;
};

TEST(LruCache, DoesWhatAPlainOneDoes) {
  for (const int64_t capacity : {0, 5, 10, 37, 100, 250, 1000}) {
    LruCache cache;
    ASSERT_TRUE(cache.Open(HeapMemory(), 30, 10, capacity).ok());
    PlainLru plain(10, capacity);
    uint64_t random = 7 + static_cast<uint64_t>(capacity);
    for (int i = 0; i < 3000; ++i) {
      random = random * 6364136223846793005U + 1442695040888963407U;
      const auto number = static_cast<int64_t>(random >> 33);
      if (number % 4 == 0) {
        cache.Pass(number / 4 % 23);
        plain.Pass(number / 4 % 23);
      } else {
        const int64_t unit = number / 4 % 30;
        ASSERT_EQ(cache.Touch(unit), plain.Touch(unit)) << "capacity " << capacity << ", " << i;
      }
    }
  }
}

/// 3 x 3, rows {0, 1}, {2}, {0, 2}.
test::Pattern Small() {
  return test::FromCoordinates(3, 3, {{0, 0}, {0, 1}, {1, 2}, {2, 0}, {2, 2}});
}

TEST(Movement, SpmvOfASmallMatrixByHand) {
  // S: 5 nonzeros of 8 bytes, 4 offsets of 8; x and y 3 values of 4 bytes each.
  const Movement m = MovementOf(Small().view(), {.k = 1, .cache_bytes = 1 << 20, .line_bytes = 4});
  EXPECT_DOUBLE_EQ(m.footprint_bytes, 5 * 8 + 4 * 8 + 3 * 4 + 3 * 4);
  EXPECT_DOUBLE_EQ(m.moved_bytes, m.footprint_bytes);
  EXPECT_DOUBLE_EQ(m.partition_bytes, m.footprint_bytes);
  EXPECT_DOUBLE_EQ(m.flops, 10);
  EXPECT_EQ(m.parts, 1);
  EXPECT_DOUBLE_EQ(m.largest_row, 2.0 / 5);
  EXPECT_FALSE(m.estimate);
}

TEST(Movement, WithoutACacheEachNonzeroFetchesItsRow) {
  const Movement m = MovementOf(Small().view(), {.k = 16, .cache_bytes = 0, .line_bytes = 64});
  EXPECT_DOUBLE_EQ(m.operand_moved_bytes, 5 * 64);
  EXPECT_DOUBLE_EQ(m.operand_footprint_bytes, 3 * 64);
}

TEST(Movement, FetchesWholeLines) {
  // x[0] and x[15] are in one line, x[16] in the next.
  const test::Pattern pattern = test::FromCoordinates(1, 40, {{0, 0}, {0, 15}, {0, 16}});
  const Movement m = MovementOf(pattern.view(), {.k = 1, .cache_bytes = 1 << 20, .line_bytes = 64});
  EXPECT_DOUBLE_EQ(m.operand_footprint_bytes, 3 * 4);
  EXPECT_DOUBLE_EQ(m.operand_moved_bytes, 2 * 64);
}

TEST(Movement, SpgemmOfASmallMatrixByHand) {
  // Row 0: (0,1) with rows {0,1}, {2}: products 3, C {0,1,2}. Row 1: row 2 {0,2}: 2, C {0,2}.
  // Row 2: rows {0,1}, {0,2}: 4, C {0,1,2}.
  const Movement m = MovementOf(
      Small().view(), {.operation = Operation::kSpgemm, .cache_bytes = 1 << 20, .line_bytes = 4});
  EXPECT_DOUBLE_EQ(m.flops, 2 * 9);
  EXPECT_DOUBLE_EQ(m.result_nnz, 8);
  EXPECT_DOUBLE_EQ(m.footprint_bytes, (5 + 5 + 8) * 8 + 3 * 4 * 8);
  EXPECT_DOUBLE_EQ(m.moved_bytes, m.footprint_bytes);
  EXPECT_DOUBLE_EQ(m.partition_bytes, m.footprint_bytes);
  EXPECT_DOUBLE_EQ(m.largest_row, 4.0 / 9);
}

TEST(Movement, PartsByHand) {
  // A row of the band moves 16 + 8 + 4 bytes and asks for x of 4 bytes each, in a line each.
  const test::Pattern pattern =
      test::FromCoordinates(4, 4, {{0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 2}, {2, 3}, {3, 2}, {3, 3}});
  // Two rows and their two x: 2 * 28 + 8 = 64.
  MovementSpec spec{.k = 1, .cache_bytes = 64, .line_bytes = 4};
  EXPECT_EQ(MovementOf(pattern.view(), spec).parts, 2);
  EXPECT_DOUBLE_EQ(MovementOf(pattern.view(), spec).partition_bytes,
                   MovementOf(pattern.view(), spec).footprint_bytes);
  // In an order that takes them apart, each part asks for all of x.
  CsrView apart = pattern.view();
  const std::vector<int32_t> order = {0, 2, 1, 3};
  apart.row_order = order;
  spec.cache_bytes = 72;
  EXPECT_EQ(MovementOf(apart, spec).parts, 2);
  EXPECT_DOUBLE_EQ(MovementOf(apart, spec).partition_bytes,
                   MovementOf(apart, spec).footprint_bytes + 16);
}

TEST(Movement, ARowLargerThanTheCacheIsCut) {
  const test::Pattern pattern = test::Uniform(1, 100, 100, 1);
  // 100 nonzeros, an offset, y, and x: 800 + 8 + 4 + 400 bytes in 3 parts of 500.
  const Movement m = MovementOf(pattern.view(), {.k = 1, .cache_bytes = 500, .line_bytes = 4});
  EXPECT_EQ(m.parts, 3);
  EXPECT_DOUBLE_EQ(m.partition_bytes, m.footprint_bytes + 2 * 8);
}

TEST(Movement, OrderOfRowsDecidesWhatMoves) {
  const test::Pattern band = test::Band(4000, 4);
  const MovementSpec spec{.k = 64, .cache_bytes = 64 << 10, .line_bytes = 64};
  const Movement in_order = MovementOf(band.view(), spec);
  EXPECT_LT(in_order.moved_bytes, 1.01 * in_order.footprint_bytes);
  EXPECT_LT(in_order.partition_bytes, 1.2 * in_order.footprint_bytes);
  CsrView shuffled = band.view();
  std::vector<int32_t> order(4000);
  for (int i = 0; i < 4000; ++i) order[i] = i * 1237 % 4000;
  shuffled.row_order = order;
  const Movement random = MovementOf(shuffled, spec);
  EXPECT_DOUBLE_EQ(random.footprint_bytes, in_order.footprint_bytes);
  EXPECT_GT(random.moved_bytes, 4 * in_order.moved_bytes);
  EXPECT_GT(random.partition_bytes, 4 * in_order.footprint_bytes);
}

TEST(Movement, SamplesOfTwoOrdersAreTheSame) {
  // Each column has one row, whole lines of nonzeros a row: in any order all is fetched once.
  constexpr int32_t kLines = 4096, kLine = 16;
  std::vector<std::vector<int32_t>> rows(kLines * kLine);
  int32_t column = 0;
  for (int32_t row = 0; column < kLines * kLine; row = (row + 7 * kLine + 1) % (kLines * kLine)) {
    for (int32_t end = column + (1 + row % 5) * kLine; column < end; ++column) {
      if (column < kLines * kLine) rows[row].push_back(column);
    }
  }
  const test::Pattern pattern = test::FromRows(kLines * kLine, rows);
  CsrView shuffled = pattern.view();
  const std::vector<int32_t> order = test::RandomOrder(pattern.rows, 5);
  shuffled.row_order = order;
  for (const Operation operation : {Operation::kSpmm, Operation::kSpgemm}) {
    const MovementSpec spec{.operation = operation,
                            .k = 32,
                            .cache_bytes = 32 << 10,
                            .line_bytes = 64,
                            .max_steps = pattern.nnz() / 8};
    const Movement one = MovementOf(pattern.view(), spec);
    const Movement other = MovementOf(shuffled, spec);
    EXPECT_TRUE(one.estimate);
    EXPECT_EQ(one.moved_bytes, one.footprint_bytes);
    EXPECT_EQ(one.partition_bytes, one.footprint_bytes);
    EXPECT_EQ(other.moved_bytes, one.moved_bytes);
    EXPECT_EQ(other.partition_bytes, one.partition_bytes);
    EXPECT_EQ(other.result_nnz, one.result_nnz);
  }
}

TEST(Movement, SamplesTellWhatAnOrderGains) {
  const test::Pattern band = test::Band(20000, 4);
  CsrView shuffled = band.view();
  const std::vector<int32_t> order = test::RandomOrder(band.rows, 6);
  shuffled.row_order = order;
  for (const Operation operation : {Operation::kSpmm, Operation::kSpgemm}) {
    MovementSpec spec{.operation = operation, .k = 32, .cache_bytes = 256 << 10, .line_bytes = 64};
    const double exact =
        MovementOf(shuffled, spec).moved_bytes / MovementOf(band.view(), spec).moved_bytes;
    spec.max_steps = 20000;
    const Movement sampled = MovementOf(shuffled, spec);
    EXPECT_TRUE(sampled.estimate);
    EXPECT_GT(exact, 1.5);
    EXPECT_NEAR(sampled.moved_bytes / MovementOf(band.view(), spec).moved_bytes, exact,
                0.1 * exact);
  }
}

TEST(Movement, SampledProductsEstimate) {
  const test::Pattern pattern = test::Rmat(14, 8, 3);
  for (const Operation operation : {Operation::kSpmm, Operation::kSpgemm}) {
    MovementSpec spec{.operation = operation,
                      .k = 32,
                      .cache_bytes = 256 << 10,
                      .line_bytes = 64,
                      .max_steps = int64_t{1} << 40};
    const Movement exact = MovementOf(pattern.view(), spec);
    EXPECT_FALSE(exact.estimate);
    spec.max_steps = operation == Operation::kSpmm ? 32000 : 1 << 20;
    const Movement sampled = MovementOf(pattern.view(), spec);
    EXPECT_TRUE(sampled.estimate);
    EXPECT_DOUBLE_EQ(sampled.flops, exact.flops);
    EXPECT_NEAR(sampled.moved_bytes, exact.moved_bytes, 0.1 * exact.moved_bytes);
    EXPECT_NEAR(sampled.partition_bytes, exact.partition_bytes, 0.1 * exact.partition_bytes);
    EXPECT_NEAR(sampled.footprint_bytes, exact.footprint_bytes, 0.1 * exact.footprint_bytes);
  }
}

/// Rows that differ by turns, as those of several unknowns at each point do.
TEST(Movement, SampledProductsOfInterleavedRows) {
  std::vector<std::pair<int32_t, int32_t>> entries;
  for (int32_t row = 1; row < 4096; row += 2) {
    for (int32_t i = 0; i < 8; ++i) entries.emplace_back(row, (row + 2 * i) % 4096);
  }
  const test::Pattern pattern = test::FromCoordinates(4096, 4096, entries);
  MovementSpec spec{.operation = Operation::kSpgemm, .cache_bytes = 64 << 10, .line_bytes = 64};
  const Movement exact = MovementOf(pattern.view(), spec);
  for (const int64_t max_steps : {65536, 43690, 32768, 10000, 1000}) {
    spec.max_steps = max_steps;
    const Movement sampled = MovementOf(pattern.view(), spec);
    EXPECT_TRUE(sampled.estimate);
    EXPECT_NEAR(sampled.footprint_bytes, exact.footprint_bytes, 0.1 * exact.footprint_bytes)
        << max_steps;
  }
}

TEST(Movement, OddPatterns) {
  for (const test::Pattern& pattern :
       {test::FromCoordinates(0, 0, {}), test::FromCoordinates(3, 3, {}),
        test::FromCoordinates(1, 1, {{0, 0}})}) {
    for (const Operation operation : {Operation::kSpmm, Operation::kSpgemm}) {
      for (const int64_t cache : {0, 1, 1000}) {
        const Movement m =
            MovementOf(pattern.view(), {.operation = operation, .k = 3, .cache_bytes = cache});
        EXPECT_GE(m.moved_bytes, m.footprint_bytes);
        EXPECT_GE(m.partition_bytes, m.footprint_bytes);
        EXPECT_DOUBLE_EQ(m.flops, pattern.nnz() == 0 ? 0 : operation == Operation::kSpmm ? 6 : 2);
      }
    }
  }
}

TEST(Movement, RefusesAndStops) {
  const test::Pattern wide = test::Uniform(3, 5, 2, 1);
  const auto refused =
      ModelMovement(wide.view(), {.operation = Operation::kSpgemm}, test::OnHeap());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), HasSubstr("3 x 5"));
  const std::atomic<bool> stop = true;
  BuildContext context = test::OnHeap();
  context.stop = &stop;
  EXPECT_EQ(ModelMovement(wide.view(), {}, context).status().code(), absl::StatusCode::kCancelled);
}

TEST(Roofline, IsTheLongerOfTheTwo) {
  const Roofline roofline{100, 1000};
  EXPECT_DOUBLE_EQ(roofline.critical_intensity(), 10);
  EXPECT_DOUBLE_EQ(roofline.Seconds(1000, 10), 1);
  EXPECT_DOUBLE_EQ(roofline.Seconds(10, 1000), 10);
}

/// Figure 4 of the paper, counted from 0: S = {(0,0), (0,1), (1,2)},
/// T = {(0,0), (0,3), (1,0), (1,1), (2,0), (2,2)}.
ProductHypergraph Figure4() {
  const test::Pattern s = test::FromCoordinates(2, 3, {{0, 0}, {0, 1}, {1, 2}});
  const test::Pattern t =
      test::FromCoordinates(3, 4, {{0, 0}, {0, 3}, {1, 0}, {1, 1}, {2, 0}, {2, 2}});
  return BuildSpgemmGraph(s.view(), t.view(), 100).value();
}

TEST(ProductHypergraph, IsThatOfFigure4) {
  const ProductHypergraph graph = Figure4();
  EXPECT_EQ(graph.left, 3);
  EXPECT_EQ(graph.right, 6);
  EXPECT_EQ(graph.result, 5);
  EXPECT_FALSE(graph.sampled);
  std::vector<std::pair<int, int>> products;
  for (const auto& p : graph.products) products.emplace_back(p.row, p.column);
  EXPECT_THAT(products,
              ElementsAre(Pair(0, 0), Pair(0, 3), Pair(0, 0), Pair(0, 1), Pair(1, 0), Pair(1, 2)));
  // Both products of s_00 share its net; c_00 has two products, of different nonzeros of T.
  EXPECT_THAT(graph.products[0].nets, ElementsAre(0, 3, 9));
  EXPECT_THAT(graph.products[1].nets, ElementsAre(0, 4, 10));
  EXPECT_THAT(graph.products[2].nets, ElementsAre(1, 5, 9));
}

TEST(ProductHypergraph, CostsOfFigure4ByHand) {
  const ProductHypergraph graph = Figure4();
  const NetBytes bytes = SpgemmNetBytes(4);
  // 4 bytes a word: 2 * (3 + 6 + 5) words at the least, also by rows of C.
  const std::vector<int32_t> one(6, 0), by_row = {0, 0, 0, 0, 1, 1}, by_inner = {0, 0, 1, 1, 2, 2};
  EXPECT_DOUBLE_EQ(CostOf(graph, one, 1, bytes).upper_bound_bytes, 4 * 28);
  const PartitionCost rows = CostOf(graph, by_row, 2, bytes);
  EXPECT_DOUBLE_EQ(rows.footprint_bytes, 4 * 28);
  EXPECT_DOUBLE_EQ(rows.upper_bound_bytes, 4 * 28);
  EXPECT_DOUBLE_EQ(rows.largest_part_bytes, 4 * 2 * (2 + 4 + 3));
  // c_00 is added to by two parts: 2 * 3 + 2 * 6 + 3 * 6 - 5 words.
  const PartitionCost inner = CostOf(graph, by_inner, 3, bytes);
  EXPECT_DOUBLE_EQ(inner.upper_bound_bytes, 4 * 31);
  EXPECT_DOUBLE_EQ(inner.largest_part_bytes, 4 * 2 * (1 + 2 + 2));
}

TEST(ProductHypergraph, PartsDoubleUntilTheyFit) {
  const ProductHypergraph graph = Figure4();
  const NetBytes bytes = SpgemmNetBytes(4);
  std::vector<int> asked;
  const auto by_row = [&asked](const ProductHypergraph& g, int parts) {
    asked.push_back(parts);
    std::vector<int32_t> part_of;
    for (size_t v = 0; v < g.products.size(); ++v) {
      part_of.push_back(static_cast<int32_t>(v) * parts / static_cast<int32_t>(g.products.size()));
    }
    return absl::StatusOr<std::vector<int32_t>>(part_of);
  };
  EXPECT_EQ(PartitionForCache(graph, 4 * 28, bytes, 64, by_row)->parts, 1);
  EXPECT_TRUE(asked.empty());
  // 112 bytes cannot fit 48 twice; four parts of 2, 1, 2 and 1 products are 40 at most.
  EXPECT_EQ(PartitionForCache(graph, 48, bytes, 64, by_row)->parts, 4);
  EXPECT_THAT(asked, ElementsAre(4));
  asked.clear();
  EXPECT_EQ(PartitionForCache(graph, 1, bytes, 8, by_row)->parts, 8);
  EXPECT_THAT(asked, ElementsAre(8));
}

TEST(ProductHypergraph, SamplesRows) {
  const test::Pattern band = test::Band(100, 1);
  const auto whole = BuildSpgemmGraph(band.view(), band.view(), 1'000'000).value();
  const auto sampled = BuildSpgemmGraph(band.view(), band.view(), 100).value();
  EXPECT_TRUE(sampled.sampled);
  EXPECT_LE(sampled.products.size(), 100);
  EXPECT_GE(sampled.products.size(), 50);
  EXPECT_DOUBLE_EQ(sampled.all_products, static_cast<double>(whole.products.size()));
  const test::Pattern wide = test::Uniform(3, 5, 2, 1);
  EXPECT_EQ(BuildSpgemmGraph(wide.view(), wide.view(), 10).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ProductHypergraph, OfSpmmByHand) {
  const ProductHypergraph graph = BuildSpmmGraph(Small().view(), 100);
  EXPECT_EQ(graph.nets(), 5 + 3 + 3);
  EXPECT_THAT(graph.products[3].nets, ElementsAre(3, 5 + 0, 8 + 2));
  // K = 2: 8 bytes a nonzero, a row of B and a row of C.
  const NetBytes bytes = SpmmNetBytes(2, 4);
  EXPECT_DOUBLE_EQ(CostOf(graph, std::vector<int32_t>(5, 0), 1, bytes).upper_bound_bytes,
                   8 * (5 + 3 + 3));
  // By rows b_0 and b_2 are read twice; nonzeros of row 2 in two parts read and write c_2 again.
  EXPECT_DOUBLE_EQ(CostOf(graph, std::vector<int32_t>{0, 0, 1, 2, 2}, 3, bytes).upper_bound_bytes,
                   8 * (5 + 5 + 3));
  EXPECT_DOUBLE_EQ(CostOf(graph, std::vector<int32_t>{0, 0, 1, 0, 1}, 2, bytes).upper_bound_bytes,
                   8 * (5 + 3 + 3 + 2));
  EXPECT_TRUE(BuildSpmmGraph(Small().view(), 2).sampled);
}

TEST(MajorityOrder, PutsRowsThatMultiplyTogetherNextToEachOther) {
  // Two cliques, rows of which alternate; row 6 is empty.
  std::vector<std::pair<int32_t, int32_t>> coordinates;
  for (const int32_t first : {0, 1}) {
    for (int32_t i = first; i < 6; i += 2) {
      for (int32_t j = first; j < 6; j += 2) coordinates.emplace_back(i, j);
    }
  }
  const test::Pattern pattern = test::FromCoordinates(7, 7, coordinates);
  const auto graph = BuildSpgemmGraph(pattern.view(), pattern.view(), 1000).value();
  std::vector<int32_t> part_of;
  for (const auto& product : graph.products) part_of.push_back(1 - product.row % 2);
  EXPECT_THAT(MajorityOrder(graph, pattern.view(), part_of, 2), ElementsAre(1, 3, 5, 6, 0, 2, 4));
  // Of the first row alone there are products: it votes for its columns, and they are its clique.
  const auto first = BuildSpgemmGraph(pattern.view(), pattern.view(), 9).value();
  EXPECT_EQ(first.products.size(), 9);
  EXPECT_THAT(MajorityOrder(first, pattern.view(), std::vector<int32_t>(9, 1), 2),
              ElementsAre(1, 3, 5, 6, 0, 2, 4));
}

TEST(MajorityOrder, IsAPermutationForAnyPartition) {
  const test::Pattern pattern = test::Rmat(7, 4, 5);
  for (const int64_t most : {200, 1'000'000}) {
    const auto graph = BuildSpgemmGraph(pattern.view(), pattern.view(), most).value();
    std::vector<int32_t> part_of(graph.products.size());
    for (size_t v = 0; v < part_of.size(); ++v) part_of[v] = static_cast<int32_t>(v * 7 % 5);
    std::vector<int32_t> order = MajorityOrder(graph, pattern.view(), part_of, 5);
    std::sort(order.begin(), order.end());
    std::vector<int32_t> all(static_cast<size_t>(pattern.rows));
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(order, all);
  }
}

}  // namespace
}  // namespace sparsed
