// Generators give valid patterns, the same bits on every machine, and what their names promise.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>
#include <xxhash.h>

#include <algorithm>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "tools/corpus/graphs.h"
#include "tools/corpus/integers.h"
#include "tools/corpus/meshes.h"
#include "tools/corpus/random.h"
#include "tools/corpus/rectangles.h"
#include "tools/corpus/systems.h"

namespace sparsed::corpus {
namespace {

std::string DigestOf(const Pattern& p) {
  const uint64_t offsets = XXH3_64bits(p.row_offsets.data(), p.row_offsets.size() * 8);
  return fmt::format("{:016x}", XXH3_64bits_withSeed(p.column_indices.data(),
                                                     p.column_indices.size() * 4, offsets));
}

std::vector<int64_t> Lengths(const Pattern& p) {
  std::vector<int64_t> lengths;
  for (int64_t row = 0; row < p.rows; ++row) {
    lengths.push_back(p.row_offsets[row + 1] - p.row_offsets[row]);
  }
  return lengths;
}

bool IsSymmetric(const Pattern& p) {
  const Pattern t = Transpose(p);
  return t.row_offsets == p.row_offsets && t.column_indices == p.column_indices;
}

bool HasDiagonal(const Pattern& p) {
  for (int64_t row = 0; row < p.rows; ++row) {
    const auto begin = p.column_indices.begin() + p.row_offsets[row];
    const auto end = p.column_indices.begin() + p.row_offsets[row + 1];
    if (!std::binary_search(begin, end, static_cast<int32_t>(row))) return false;
  }
  return true;
}

std::vector<int32_t> Order(int64_t count) {
  Random random(3);
  return Shuffled(count, random);
}

struct Case {
  std::string name;
  std::function<Pattern()> make;
  std::string digest;

  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};

// A digest that changes means that the corpus is another one: its measurements are of no use then.
const std::vector<Case>& Cases() {
  static const auto* const cases = new std::vector<Case>{
      {"Rmat", [] { return Rmat(8, 2000, {}, 1); }, "2dad7c22383a7ee1"},
      {"RmatSymmetricOrdered",
       [] { return Rmat(8, 1000, {.shuffled = false, .symmetric = true}, 1); }, "8abe109e68cb900f"},
      {"BarabasiAlbert", [] { return BarabasiAlbert(300, 4, 1); }, "fdc2316fb0fd9a3d"},
      {"StochasticBlocks", [] { return StochasticBlocks(300, 8, {}, 1); }, "e6843845d73c8209"},
      {"StochasticBlocksUneven",
       [] { return StochasticBlocks(300, 8, {.blocks = 5, .uneven = true, .shuffled = true}, 1); },
       "1f8c042a89225012"},
      {"SmallWorld", [] { return SmallWorld(300, 6, 100, 1); }, "515ccafbdd020541"},
      {"ChungLuHalf", [] { return ChungLu(300, 2000, Falloff::kHalf, 1); }, "b81b82fe8bde6140"},
      {"ChungLuThreeQuarters", [] { return ChungLu(300, 2000, Falloff::kThreeQuarters, 1); },
       "fbfaa918ce8e8a1a"},
      {"ChungLuOne", [] { return ChungLu(300, 2000, Falloff::kOne, 1); }, "15b9f380a1f099d8"},
      {"RoadGrid", [] { return RoadGrid(30, 20, 800, 50, 1); }, "195c565133ccc023"},
      {"RandomGeometric", [] { return RandomGeometric(500, 8, 1); }, "98c00b9590fe0dd3"},
      {"Stencil",
       [] {
         return Stencil({7, 6, 5}, Neighbours::kBox);
       },
       "94c60025f94ba746"},
      {"StencilPeriodic",
       [] {
         return Stencil({9, 8}, Neighbours::kStar, true);
       },
       "98d6b2e58456a8f5"},
      {"TriangleMesh", [] { return TriangleMesh(40, 30, 3, 1); }, "dd7150a79b6721aa"},
      {"TetrahedronMesh",
       [] {
         return TetrahedronMesh({20, 8, 7}, 2, 1);
       },
       "7a35e211892c0500"},
      {"WithUnknowns",
       [] {
         return WithUnknowns(Stencil({5, 4}, Neighbours::kStar), 3);
       },
       "e4ca84320776a9e7"},
      {"Band", [] { return Band(200, 5); }, "5c343ca075d117f7"},
      {"ThinBand", [] { return ThinBand(200, 20, 150, 1); }, "1b85ff68dc0ad3d4"},
      {"Diagonals", [] { return Diagonals(200, 7, 60, 1); }, "ddf8d9be53c291f0"},
      {"PowerGrid", [] { return PowerGrid(500, 300, 1); }, "a944b0010364e011"},
      {"Circuit", [] { return Circuit(500, 5, 2, 100, 1); }, "efd3524589aaa58c"},
      {"BlockAngular",
       [] {
         return BlockAngular({5, 8, 20, 3}, 4, 300, 1);
       },
       "70e61b00d0689702"},
      {"Staircase",
       [] {
         return Staircase({6, 8, 12, 2}, 1);
       },
       "08286155e48edd1c"},
      {"Kkt", [] { return Kkt(400, 100, 4, true, 1); }, "e355673ae7af864c"},
      {"BlockTridiagonal",
       [] {
         return BlockTridiagonal({20, 5, 600, true}, 1);
       },
       "37b863074d89b003"},
      {"Arrow",
       [] {
         return Arrow({20, 6, 500}, 3, 1);
       },
       "59fa21e8176c5b51"},
      {"Ratings",
       [] {
         return Ratings({300, 80, 3000}, 1);
       },
       "fc23a5aa0549f1fa"},
      {"RandomWeights", [] { return RandomWeights(64, 96, 100, true, 1); }, "f280ff31cd9b2e0a"},
      {"BlockWeights", [] { return BlockWeights(64, 100, 16, 8, 300, 1); }, "3373d8ddb7396c9d"},
      {"GroupWeights", [] { return GroupWeights(64, 96, 4, 2, 1); }, "369e2a7814460400"},
      {"UniformRows", [] { return UniformRows(200, 150, 9, 1); }, "a2506c76edb17b27"},
      {"FewRows", [] { return FewRows(256, 16, 20, 1); }, "1c29d507b628e5dc"},
      {"Groups", [] { return Groups(Order(256), 32, 1); }, "a63885b6145ba647"},
  };
  return *cases;
}

class Generator : public testing::TestWithParam<Case> {};

TEST_P(Generator, GivesTheSameValidPatternEverywhere) {
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  const Pattern alone = GetParam().make();
  omp_set_num_threads(3);
  const Pattern pattern = GetParam().make();
  omp_set_num_threads(threads);
  EXPECT_TRUE(ValidateCsr(pattern.view(), 1).ok()) << ValidateCsr(pattern.view(), 1);
  EXPECT_GT(pattern.nnz(), 0);
  EXPECT_TRUE(alone.row_offsets == pattern.row_offsets);
  EXPECT_TRUE(alone.column_indices == pattern.column_indices);
  EXPECT_EQ(DigestOf(pattern), GetParam().digest);
}

INSTANTIATE_TEST_SUITE_P(All, Generator, testing::ValuesIn(Cases()),
                         [](const auto& c) { return c.param.name; });

TEST(Generators, TakeSeeds) {
  EXPECT_NE(DigestOf(Rmat(8, 2000, {}, 1)), DigestOf(Rmat(8, 2000, {}, 2)));
  EXPECT_NE(DigestOf(TriangleMesh(40, 30, 0, 1)), DigestOf(TriangleMesh(40, 30, 0, 2)));
}

TEST(Graphs, HaveEachEdgeInBothDirections) {
  EXPECT_TRUE(IsSymmetric(Rmat(8, 1000, {.symmetric = true}, 1)));
  EXPECT_TRUE(IsSymmetric(BarabasiAlbert(300, 4, 1)));
  EXPECT_TRUE(IsSymmetric(StochasticBlocks(300, 8, {.shuffled = true}, 1)));
  EXPECT_TRUE(IsSymmetric(SmallWorld(300, 6, 100, 1)));
  EXPECT_TRUE(IsSymmetric(RoadGrid(30, 20, 800, 50, 1)));
  EXPECT_TRUE(IsSymmetric(RandomGeometric(500, 8, 1)));
  EXPECT_TRUE(IsSymmetric(PowerGrid(500, 300, 1)));
}

TEST(Graphs, FollowTheirLaws) {
  // Of a ring of which nothing is rewired each row has its six neighbours.
  EXPECT_THAT(Lengths(SmallWorld(100, 6, 0, 1)), testing::Each(6));
  // Blocks that no edge leaves.
  const Pattern blocks = StochasticBlocks(400, 10, {.blocks = 4, .inside = 1000}, 1);
  for (int64_t row = 0; row < blocks.rows; ++row) {
    for (int64_t p = blocks.row_offsets[row]; p < blocks.row_offsets[row + 1]; ++p) {
      ASSERT_EQ(blocks.column_indices[p] / 100, row / 100);
    }
  }
  // The old have more edges than the young.
  const Pattern grown = BarabasiAlbert(2000, 3, 1);
  const auto edges_of = [&](int64_t begin, int64_t end) {
    return grown.row_offsets[end] - grown.row_offsets[begin];
  };
  EXPECT_GT(edges_of(0, 100), 3 * edges_of(1900, 2000));
  // About the degree that was asked for, a little less at the border.
  const Pattern near = RandomGeometric(20'000, 12, 1);
  EXPECT_NEAR(static_cast<double>(near.nnz()) / 20'000, 12, 1.2);
}

TEST(Popularity, FallsAsItSays) {
  // Ranks 0 and 72 stand for 8 and 80: ten times.
  for (const auto& [falloff, ratio] :
       {std::pair(Falloff::kHalf, 3.16), std::pair(Falloff::kThreeQuarters, 5.62),
        std::pair(Falloff::kOne, 10.0)}) {
    const Popularity popularity(100, falloff);
    const Dice dice(1);
    double first = 0, later = 0;
    for (int64_t i = 0; i < 400'000; ++i) {
      const int32_t rank = popularity.Draw(dice.Bits(i));
      ASSERT_LT(rank, 100);
      first += rank == 0 ? 1 : 0;
      later += rank == 72 ? 1 : 0;
    }
    EXPECT_NEAR(first / later, ratio, 0.1 * ratio);
  }
}

TEST(Meshes, HaveTheirPoints) {
  EXPECT_EQ(Stencil({10, 10}, Neighbours::kStar).nnz(), 5 * 100 - 4 * 10);
  EXPECT_EQ(Stencil({10, 10}, Neighbours::kBox).nnz(), 28 * 28);
  EXPECT_EQ(Stencil({6, 6, 6}, Neighbours::kBox).nnz(), 16 * 16 * 16);
  EXPECT_THAT(Lengths(Stencil({6, 5, 4}, Neighbours::kStar, true)), testing::Each(7));
  // Every edge of a triangulated rectangle twice, and the points themselves.
  const Pattern mesh = TriangleMesh(20, 10, 0, 1);
  EXPECT_TRUE(IsSymmetric(mesh));
  EXPECT_TRUE(HasDiagonal(mesh));
  EXPECT_EQ(mesh.nnz(), 200 + 2 * (19 * 10 + 20 * 9 + 19 * 9));
  const Pattern solid = TetrahedronMesh({5, 5, 5}, 0, 1);
  EXPECT_TRUE(IsSymmetric(solid));
  EXPECT_EQ(std::ranges::max(Lengths(solid)), 15);
  const Pattern holes = TriangleMesh(100, 100, 5, 1);
  EXPECT_LT(holes.rows, 10'000);
  EXPECT_TRUE(IsSymmetric(holes));
  const Pattern three = WithUnknowns(mesh, 3);
  EXPECT_EQ(three.nnz(), 9 * mesh.nnz());
  EXPECT_EQ(three.rows, 3 * mesh.rows);
}

TEST(Systems, HaveTheirShape) {
  EXPECT_TRUE(HasDiagonal(ThinBand(200, 20, 0, 1)));
  EXPECT_EQ(ThinBand(200, 20, 0, 1).nnz(), 200);
  EXPECT_EQ(ThinBand(200, 20, 1000, 1).nnz(), Band(200, 20).nnz());
  EXPECT_TRUE(HasDiagonal(PowerGrid(500, 300, 1)));
  EXPECT_FALSE(IsSymmetric(Circuit(500, 5, 2, 100, 1)));
  const Pattern kkt = Kkt(400, 100, 4, false, 1);
  for (int64_t p = kkt.row_offsets[400]; p < kkt.nnz(); ++p) {
    ASSERT_LT(kkt.column_indices[p], 400) << "the lower right block is empty";
  }
  EXPECT_TRUE(HasDiagonal(Kkt(400, 100, 4, true, 1)));
  EXPECT_THAT(Lengths(BlockTridiagonal({10, 4, 1000, true}, 1)), testing::Each(12));
  const Pattern arrow = Arrow({10, 4, 1000}, 2, 1);
  EXPECT_EQ(arrow.nnz(), 10 * 16 + 2 * 2 * 40 + 4);
  EXPECT_TRUE(IsSymmetric(arrow));
  // All of a block's columns are in its rows, or in the linking ones.
  const Pattern program = BlockAngular({5, 8, 20, 3}, 4, 300, 1);
  EXPECT_EQ(program.rows, 44);
  EXPECT_EQ(program.cols, 100);
  for (int64_t row = 0; row < 40; ++row) {
    for (int64_t p = program.row_offsets[row]; p < program.row_offsets[row + 1]; ++p) {
      ASSERT_EQ(program.column_indices[p] / 20, row / 8);
    }
  }
}

TEST(Rectangles, KeepTheirShares) {
  EXPECT_NEAR(static_cast<double>(RandomWeights(400, 500, 100, false, 1).nnz()), 20'000, 800);
  EXPECT_THAT(Lengths(GroupWeights(64, 96, 4, 1, 1)), testing::Each(24));
  const Pattern blocks = BlockWeights(64, 96, 8, 16, 300, 1);
  EXPECT_EQ(blocks.nnz() % (8 * 16), 0);
  EXPECT_THAT(Lengths(UniformRows(50, 60, 60, 1)), testing::Each(60));
}

TEST(Integers, AreRoots) {
  for (const uint64_t root : {0ULL, 1ULL, 2ULL, 46'341ULL, 4'294'967'295ULL}) {
    EXPECT_EQ(SquareRoot(root * root), root);
    if (root > 0) {
      EXPECT_EQ(SquareRoot(root * root - 1), root - 1);
    }
  }
  EXPECT_EQ(CubeRoot(26), 2U);
  EXPECT_EQ(CubeRoot(27), 3U);
  EXPECT_EQ(CubeRoot(999'999'999), 999U);
}

}  // namespace
}  // namespace sparsed::corpus
