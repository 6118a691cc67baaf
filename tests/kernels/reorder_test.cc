// Row reordering: its parts, Algorithm 3 against a transcription, and what its caps lose.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>

#include "kernels/features/dense_tiles.h"
#include "kernels/features/similarity.h"
#include "kernels/reorder/lsh_cluster.h"
#include "kernels/reorder/lsh_pairs.h"
#include "kernels/reorder/pair_set.h"
#include "kernels/reorder/radix_sort.h"
#include "tests/generate.h"
#include "tests/kernels/clustering.h"
#include "tests/kernels/counting_memory.h"
#include "tests/kernels/layout_testing.h"

namespace sparsed::test {
namespace {

using Pairs = std::vector<std::pair<int32_t, int32_t>>;

CandidatePairs MakePairs(const Pattern& pattern, const Pairs& pairs) {
  PairSet set;
  EXPECT_TRUE(set.Allocate(HeapMemory(), static_cast<int64_t>(pairs.size())).ok());
  for (const auto& [i, j] : pairs) {
    set.Insert(RowPair::Make(i, j), JaccardSimilarity(pattern.view(), i, j));
  }
  return set.Take(HeapMemory(), pattern.rows, 1).value();
}

std::vector<int32_t> Order(const RowOrder& result) {
  const auto order = result.row_order.As<int32_t>();
  return {order.begin(), order.end()};
}

std::vector<int32_t> Cluster(const Pattern& pattern, const Pairs& pairs, int64_t max_cluster,
                             ClusterOrder order) {
  const ClusterOptions options{max_cluster, order, 0};
  return Order(ClusterRows(pattern.view(), MakePairs(pattern, pairs), options, OnHeap()).value());
}

void ExpectPermutation(const std::vector<int32_t>& order, int64_t rows) {
  std::vector<int32_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  std::vector<int32_t> identity(rows);
  std::iota(identity.begin(), identity.end(), 0);
  EXPECT_EQ(sorted, identity);
}

double DenseRatio(const Pattern& pattern, const std::vector<int32_t>& order) {
  CsrView view = pattern.view();
  view.row_order = order;
  return DenseTileRatio(view, 64, 2, OnHeap()).value();
}

/// Pairs of all rows that share a column.
Pairs AllPairs(const Pattern& pattern) {
  Pairs pairs;
  for (int32_t i = 0; i < pattern.rows; ++i) {
    for (int32_t j = i + 1; j < pattern.rows; ++j) {
      if (JaccardSimilarity(pattern.view(), i, j) > 0) pairs.emplace_back(i, j);
    }
  }
  return pairs;
}

TEST(RadixSort, IsStableAndTheSameForAnyTeam) {
  std::mt19937_64 random(1);
  for (const size_t count : {0, 1, 2, 1000, 100'000}) {
    std::vector<uint64_t> items(count);
    for (size_t i = 0; i < count; ++i) items[i] = (random() % 5000) << 20 | i;
    std::vector<uint64_t> expected = items;
    std::stable_sort(expected.begin(), expected.end(),
                     [](uint64_t a, uint64_t b) { return a >> 20 < b >> 20; });
    for (const int threads : {1, 2, 3, 7}) {
      std::vector<uint64_t> sorted = items;
      std::vector<uint64_t> scratch(count);
      RadixSort(sorted, scratch, 20, 33, threads);
      EXPECT_EQ(sorted, expected) << count << " items, " << threads << " threads";
    }
  }
}

TEST(Similarity, IsJaccards) {
  const Pattern paper = FromCoordinates(6, 6, PaperExample());
  EXPECT_FLOAT_EQ(JaccardSimilarity(paper.view(), 0, 4), 2.0F / 3);
  EXPECT_FLOAT_EQ(JaccardSimilarity(paper.view(), 2, 4), 1.0F / 4);
  EXPECT_EQ(JaccardSimilarity(FromCoordinates(2, 1, {}).view(), 0, 1), 0);
  EXPECT_EQ(AverageConsecutiveSimilarity(FromCoordinates(1, 1, {{0, 0}}).view(), 2), 0);
  // Fig. 7a: identical rows in threes.
  const Pattern clustered = FromCoordinates(6, 6,
                                            {{0, 0},
                                             {0, 3},
                                             {1, 0},
                                             {1, 3},
                                             {2, 0},
                                             {2, 3},
                                             {3, 1},
                                             {3, 4},
                                             {4, 1},
                                             {4, 4},
                                             {5, 1},
                                             {5, 4}});
  EXPECT_DOUBLE_EQ(AverageConsecutiveSimilarity(clustered.view(), 3), 0.8);
}

TEST(PairSet, KeepsTheMostSimilarWhateverTheOrder) {
  std::vector<uint64_t> reference;
  for (int run = 0; run < 3; ++run) {
    PairSet set;
    ASSERT_TRUE(set.Allocate(HeapMemory(), 5000).ok());
    for (const int32_t row : RandomOrder(5000, run)) {
      const uint64_t pair = RowPair::Make(row, row + 1);
      set.Insert(pair, static_cast<float>(row % 10) / 10);
      set.Insert(pair, static_cast<float>(row % 10) / 10);
    }
    EXPECT_EQ(set.count(), 5000);
    const float floor = set.KeepBest(HeapMemory(), 1250).value();
    EXPECT_NEAR(floor, 0.7, 0.001);
    EXPECT_NEAR(static_cast<double>(set.count()), 1250, 60);
    const CandidatePairs kept = set.Take(HeapMemory(), 5001, 2).value();
    const std::vector<uint64_t> pairs(kept.pairs.data(), kept.pairs.data() + kept.count);
    EXPECT_TRUE(std::is_sorted(pairs.begin(), pairs.end()));
    if (run == 0) reference = pairs;
    EXPECT_EQ(pairs, reference);
  }
}

TEST(PairSet, KeepsToItsLimitAmongEqualsRoundAfterRound) {
  // Those that it picked before are picked again, and must neither add up past the limit, which
  // would fill the table until no probe ends, nor crowd a part of it.
  constexpr int64_t kKept = 60'000, kAdded = 80'000;
  PairSet set;
  ASSERT_TRUE(set.Allocate(HeapMemory(), kKept + kAdded).ok());
  for (int64_t round = 0; round < 16; ++round) {
    for (int64_t i = 0; i < kAdded; ++i) {
      set.Insert(RowPair::Make(round * kAdded + i, 1 << 30), 0.1F);
    }
    ASSERT_TRUE(set.KeepBest(HeapMemory(), kKept).ok());
    ASSERT_LE(set.count(), kKept);
    ASSERT_GE(set.count(), kKept - 10);
  }
}

TEST(Clustering, FollowsThePapersExample) {
  const Pattern paper = FromCoordinates(6, 6, PaperExample());
  EXPECT_THAT(Cluster(paper, {{0, 4}, {2, 4}}, 256, ClusterOrder::kAscending),
              testing::ElementsAre(0, 2, 4, 1, 3, 5));
  // Merged: 4 joined 0 before 2 did.
  EXPECT_THAT(Cluster(paper, {{0, 4}, {2, 4}}, 256, ClusterOrder::kMerged),
              testing::ElementsAre(0, 4, 2, 1, 3, 5));
  // Fig. 4b: of 13 nonzeros, 2 are in dense tiles of three rows before, 9 after.
  EXPECT_NEAR(DenseTileRatio(paper.view(), 3, 2, OnHeap()).value(), 2.0 / 13, 1e-9);
  CsrView view = paper.view();
  const std::vector<int32_t> order = {0, 2, 4, 1, 3, 5};
  view.row_order = order;
  EXPECT_NEAR(DenseTileRatio(view, 3, 2, OnHeap()).value(), 9.0 / 13, 1e-9);
}

TEST(Clustering, IsAlgorithm3OnRandomInputs) {
  std::mt19937_64 random(7);
  for (int trial = 0; trial < 300; ++trial) {
    const int64_t rows = 2 + static_cast<int64_t>(random() % 60);
    const Pattern pattern = Uniform(rows, 24, 1 + static_cast<int64_t>(random() % 9), random());
    Pairs pairs;
    for (uint64_t p = random() % 200; p > 0; --p) {
      const auto i = static_cast<int32_t>(random() % rows);
      const auto j = static_cast<int32_t>(random() % rows);
      if (i != j) pairs.emplace_back(std::min(i, j), std::max(i, j));
    }
    std::sort(pairs.begin(), pairs.end());
    pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
    for (const int64_t max_cluster : {2, 3, 5, 256}) {
      const auto order = Cluster(pattern, pairs, max_cluster, ClusterOrder::kAscending);
      EXPECT_EQ(order, ClusterAsPrinted(pattern.view(), pairs, max_cluster))
          << "trial " << trial << ", threshold " << max_cluster;
      ExpectPermutation(Cluster(pattern, pairs, max_cluster, ClusterOrder::kMerged), rows);
    }
  }
}

TEST(Clustering, DoesNotDependOnTheTeam) {
  for (const Pattern& pattern : {ShuffledClusters(300, 16, 4000, 36, 32, 3, 1), Rmat(13, 8, 2),
                                 PowerLaw(20'000, 150'000, 2.3, 3)}) {
    LshOptions lsh;
    lsh.pairs_per_row = 2;  // so that some are dropped
    std::vector<int32_t> reference;
    for (const int threads : {1, 2, 3, 5, 2}) {
      const auto result = LshClusterRows(pattern.view(), lsh, {}, OnHeap(threads)).value();
      ExpectPermutation(Order(result), pattern.rows);
      if (reference.empty()) reference = Order(result);
      EXPECT_EQ(Order(result), reference) << threads << " threads";
    }
  }
}

TEST(Lsh, PairsAreExactAndSorted) {
  const Pattern pattern = ShuffledClusters(40, 8, 500, 20, 16, 2, 5);
  const CandidatePairs pairs = FindCandidatePairs(pattern.view(), {}, OnHeap()).value();
  ASSERT_GT(pairs.count, 0);
  for (int64_t p = 0; p < pairs.count; ++p) {
    const int32_t i = RowPair::First(pairs.pairs[p]);
    const int32_t j = RowPair::Second(pairs.pairs[p]);
    EXPECT_LT(i, j);
    EXPECT_LT(j, pattern.rows);
    EXPECT_EQ(pairs.similarities[p], JaccardSimilarity(pattern.view(), i, j));
    EXPECT_GE(pairs.similarities[p], LshOptions().min_similarity);
    if (p > 0) {
      EXPECT_LT(pairs.pairs[p - 1], pairs.pairs[p]);
    }
  }
}

TEST(Lsh, FindsSimilarRowsWithTheProbabilityItShould) {
  // Two rows of similarity s share one of 64 bands of two with 1 - (1 - s^2)^64.
  const Pattern pattern = ShuffledClusters(2000, 2, 1'000'000, 12, 12, 6, 9);
  const CandidatePairs pairs = FindCandidatePairs(pattern.view(), {}, OnHeap()).value();
  double expected = 0;
  int64_t similar = 0;
  for (const auto& [i, j] : AllPairs(pattern)) {
    const double s = JaccardSimilarity(pattern.view(), i, j);
    if (s < 0.1) continue;
    expected += 1 - std::pow(1 - s * s, 64);
    ++similar;
  }
  int64_t found = 0;
  for (int64_t p = 0; p < pairs.count; ++p) found += pairs.similarities[p] >= 0.1F;
  EXPECT_GT(similar, 1500);
  EXPECT_NEAR(static_cast<double>(found), expected, 0.05 * expected);
}

TEST(Lsh, EqualRowsAndRowsOfOneNonzeroWasteNoBands) {
  // 100 rows of one nonzero each of two columns, 50 equal rows of three, empty rows between.
  std::vector<std::pair<int32_t, int32_t>> coordinates;
  for (int32_t r = 0; r < 100; ++r) coordinates.emplace_back(3 * r, r % 2);
  for (int32_t r = 0; r < 50; ++r) {
    for (int32_t column : {0, 5, 9}) coordinates.emplace_back(3 * r + 1, column);
  }
  const Pattern pattern = FromCoordinates(300, 10, coordinates);
  const CandidatePairs pairs = FindCandidatePairs(pattern.view(), {}, OnHeap()).value();
  EXPECT_EQ(pairs.count, 98 + 49);
  const auto result = LshClusterRows(pattern.view(), {}, {}, OnHeap()).value();
  EXPECT_EQ(result.moved, 98 + 49);
}

TEST(Lsh, OddPatterns) {
  for (const Pattern& pattern :
       {FromCoordinates(0, 0, {}), FromCoordinates(1, 1, {}), FromCoordinates(1, 1, {{0, 0}}),
        FromCoordinates(5, 0, {}), FromCoordinates(100, 3, {}), Uniform(3, 2000, 1500, 1),
        Uniform(2000, 1, 1, 1)}) {
    for (const int bsize : {1, 2, 3, 16}) {
      LshOptions lsh;
      lsh.bsize = bsize;
      lsh.siglen = 48;
      ExpectPermutation(Order(LshClusterRows(pattern.view(), lsh, {}, OnHeap()).value()),
                        pattern.rows);
    }
  }
}

/// What the cap on bucket pairs loses against all pairs of a bucket, and LSH against all pairs that
/// there are: the share of nonzeros in dense tiles after reordering.
TEST(Lsh, CapsLoseLittleOnSmallMatrices) {
  struct Case {
    const char* name;
    Pattern pattern;
  };
  for (const auto& [name, pattern] :
       {Case{"clusters", ShuffledClusters(125, 16, 20'000, 36, 32, 3, 1)},
        Case{"looser clusters", ShuffledClusters(100, 16, 20'000, 30, 14, 6, 2)},
        Case{"large clusters", ShuffledClusters(6, 300, 20'000, 30, 20, 2, 3)},
        Case{"power law", PowerLaw(2000, 20'000, 2.5, 4)}}) {
    SCOPED_TRACE(name);
    const ClusterOptions cluster;
    LshOptions uncapped;
    uncapped.neighbours = pattern.rows;
    uncapped.pairs_per_row = pattern.rows;
    const auto ratio_of = [&](const LshOptions& lsh) {
      return DenseRatio(pattern,
                        Order(LshClusterRows(pattern.view(), lsh, cluster, OnHeap()).value()));
    };
    std::vector<int32_t> identity(pattern.rows);
    std::iota(identity.begin(), identity.end(), 0);
    const double before = DenseRatio(pattern, identity);
    const double capped = ratio_of({});
    const double all_in_bucket = ratio_of(uncapped);
    const double exact = DenseRatio(
        pattern, Cluster(pattern, AllPairs(pattern), cluster.max_cluster, cluster.order));
    RecordProperty(
        name, testing::PrintToString(std::vector<double>{before, capped, all_in_bucket, exact}));
    EXPECT_GT(capped, all_in_bucket - 0.05);
    EXPECT_GT(capped, exact - 0.05);
    EXPECT_GE(capped, before);
  }
}

TEST(Lsh, StopsAndReportsProgress) {
  const Pattern pattern = ShuffledClusters(300, 16, 4000, 36, 32, 3, 1);
  CountingMemory memory;
  std::atomic<bool> stop = false;
  BuildContext context;
  context.threads = 2;
  context.memory = &memory;
  context.stop = &stop;
  std::vector<std::string> stages;
  context.progress = [&](std::string_view stage, int64_t done, int64_t total) {
    EXPECT_LE(done, total);
    if (stages.empty() || stages.back() != stage) stages.emplace_back(stage);
  };
  ASSERT_TRUE(LshClusterRows(pattern.view(), {}, {}, context).ok());
  EXPECT_THAT(stages, testing::ElementsAre("lsh_pairs", "lsh_cluster"));
  for (const std::string_view where : {"lsh_pairs", "lsh_cluster"}) {
    stop = false;
    context.progress = [&](std::string_view stage, int64_t, int64_t) {
      if (stage == where) stop = true;
    };
    EXPECT_TRUE(absl::IsCancelled(LshClusterRows(pattern.view(), {}, {}, context).status()));
    EXPECT_EQ(memory.held(), 0);
  }
}

}  // namespace
}  // namespace sparsed::test
