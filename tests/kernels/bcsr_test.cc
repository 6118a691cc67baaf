// "cpu.bcsr.blocks" computes what the reference does, from blocks of every shape.
#include "kernels/formats/bcsr.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>

#include "kernels/cpu/spmm/spmm.h"
#include "kernels/pipeline.h"
#include "tests/kernels/dense_harness.h"
#include "tests/kernels/instruction_sets.h"
#include "tests/kernels/layout_testing.h"

namespace sparsed::test {
namespace {

constexpr ElementType kTypes[] = {ElementType::kF32, ElementType::kF64, ElementType::kF16,
                                  ElementType::kBF16};

/// Blocks of the shape, `count` for each row of them, with most of their places taken; the last row
/// and the last column of blocks reach over the edge.
Pattern MostlyInBlocks(BlockShape shape, int64_t block_rows, int64_t count, double fill) {
  const int64_t rows = block_rows * shape.height - (shape.height > 1 ? 1 : 0);
  const int64_t cols = block_rows * shape.width - (shape.width > 1 ? 1 : 0);
  const std::vector<double> chance = RandomValues(rows * count * shape.width, 3);
  std::vector<std::pair<int32_t, int32_t>> entries;
  size_t next = 0;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t block = (row / shape.height * 7 + i * i * 5) % block_rows;
      for (int64_t j = 0; j < shape.width; ++j) {
        const bool taken = std::abs(chance[next++]) <= fill;
        const int64_t col = block * shape.width + j;
        if (taken && col < cols) {
          entries.emplace_back(static_cast<int32_t>(row), static_cast<int32_t>(col));
        }
      }
    }
  }
  return FromCoordinates(rows, cols, std::move(entries));
}

Layout Build(const Pattern& pattern, BlockShape shape, int threads = 2) {
  return BuildBcsr(pattern.view(), shape, OnHeap(threads)).value();
}

TEST(BcsrSpmm, ComputesFromBlocksOfEveryShape) {
  int turn = 0;
  for (int64_t height = 1; height <= kMostBlockSide; ++height) {
    for (int64_t width = 1; width <= kMostBlockSide; ++width) {
      const BlockShape shape = {height, width};
      SCOPED_TRACE(testing::Message() << height << " x " << width);
      const Pattern pattern = MostlyInBlocks(shape, 23, 4, 0.8);
      const Layout layout = Build(pattern, shape);
      const std::vector<double> values = RandomValues(pattern.nnz(), 7);
      for (const int64_t k : {1, 3, 8, 16, 33, 100, 128, 257}) {
        ++turn;
        const DenseCase c = {.type = kTypes[turn % 4],
                             .k = k,
                             .threads = 1 + turn % 3,
                             .alpha = turn % 3 == 0 ? -0.75 : 1,
                             .beta = turn % 5 < 2 ? 1.5 : 0,
                             .padding = turn % 4 == 1 ? 5 : 0,
                             .offset = turn % 3 == 1 ? 1 : 0};
        SCOPED_TRACE(c);
        ExpectSpmm(cpu::BcsrSpmm(), layout, pattern, values, c);
      }
    }
  }
}

TEST(BcsrSpmm, ComputesOddPatternsAndTransposedOnesWithEveryInstructionSet) {
  WithEveryInstructionSet([] {
    int turn = 0, suited = 0;
    for (const auto& [name, pattern] : OddPatterns()) {
      SCOPED_TRACE(name);
      for (const char* pipeline :
           {"bcsr(width=1)", "bcsr(width=2,height=1)", "bcsr(width=1,height=2)",
            "transpose > bcsr(width=1,height=2)"}) {
        const BuiltLayout built =
            BuildLayout(ParsePipeline(pipeline).value(), pattern.view(), OnHeap()).value();
        if (built.skipped) continue;
        ++suited;
        SCOPED_TRACE(pipeline);
        const std::vector<double> values = RandomValues(pattern.nnz(), 7);
        for (const ElementType type : kTypes) {
          for (const int64_t k : {1, 7, 40, 128}) {
            const DenseCase c = {.type = type,
                                 .k = k,
                                 .threads = 1 + ++turn % 2,
                                 .transposed = built.layout.transposed,
                                 .alpha = 3,
                                 .beta = turn % 2 == 0 ? 2.0 : 0.0,
                                 .padding = 3};
            SCOPED_TRACE(c);
            ExpectSpmm(cpu::BcsrSpmm(), built.layout, pattern, values, c);
          }
        }
      }
    }
    EXPECT_GT(suited, 10);
  });
}

/// What is not in the pattern does not reach C, infinities and NaN included.
template <typename T>
void ExpectPaddingUntouched() {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  // Of each block of 3 x 2 two diagonal places are left out.
  std::vector<std::pair<int32_t, int32_t>> entries;
  for (int32_t row = 0; row < 30; ++row) {
    for (int32_t col = 0; col < 20; ++col) {
      if (row % 3 != col % 2) entries.emplace_back(row, col);
    }
  }
  const Pattern pattern = FromCoordinates(30, 20, std::move(entries));
  const Layout layout = Build(pattern, {3, 2});
  constexpr int64_t kWidth = 21;
  const std::vector<T> ones(pattern.nnz(), T(1.0F));
  std::vector<T> values(layout.value_slots), b(20 * kWidth, T(1.0F)), c(30 * kWidth, T(nan));
  PlaceValues(layout, ElementTypeOf<T>(), ones.data(), values.data(), 1);
  // Row 4 of B is even, so that rows 0 and 3 and so on leave it out.
  for (int64_t j = 0; j < kWidth; ++j) {
    b[4 * kWidth + j] = T(j % 3 == 0 ? nan : j % 3 == 1 ? INFINITY : 1.0F);
  }
  const Problem problem = {.type = ElementTypeOf<T>(), .k = kWidth};
  ASSERT_TRUE(cpu::BcsrSpmm()
                  .run({}, problem,
                       {layout,
                        values.data(),
                        {b.data(), 20, kWidth, kWidth},
                        {c.data(), 30, kWidth, kWidth}})
                  .ok());
  for (int64_t row = 0; row < 30; ++row) {
    const float sum = row % 3 == 2 ? 20 : 10;
    for (int64_t j = 0; j < kWidth; ++j) {
      const auto got = static_cast<float>(c[row * kWidth + j]);
      if (row % 3 == 0 || j % 3 == 2) {
        EXPECT_EQ(got, sum) << row << ", " << j;
      } else if (j % 3 == 0) {
        EXPECT_TRUE(std::isnan(got)) << row << ", " << j;
      } else {
        EXPECT_EQ(got, INFINITY) << row << ", " << j;
      }
    }
  }
}

TEST(BcsrSpmm, PaddingTakesNoInfinitiesAndNoNaN) {
  WithEveryInstructionSet([] {
    ExpectPaddingUntouched<float>();
    ExpectPaddingUntouched<double>();
    ExpectPaddingUntouched<Float16>();
    ExpectPaddingUntouched<BFloat16>();
  });
}

TEST(BcsrSpmm, GivesTheSameBitsForAnyTeam) {
  const Pattern pattern = MostlyInBlocks({3, 2}, 900, 9, 0.9);
  const Layout layout = Build(pattern, {3, 2});
  ExpectSameArrays(Build(pattern, {3, 2}, 1), layout);
  const std::vector<double> values = RandomValues(pattern.nnz(), 7);
  DenseCase c = {.k = 40, .threads = 1, .beta = 0.5};
  const std::string one = ExpectSpmm(cpu::BcsrSpmm(), layout, pattern, values, c);
  for (c.threads = 2; c.threads < 5; ++c.threads) {
    EXPECT_EQ(ExpectSpmm(cpu::BcsrSpmm(), layout, pattern, values, c), one);
  }
}

TEST(BcsrSpmm, RefusesWhatItCannotDoAndStops) {
  const Pattern pattern = MostlyInBlocks({2, 2}, 50, 4, 0.9);
  const Layout layout = Build(pattern, {2, 2});
  const SpmmKernel kernel = cpu::BcsrSpmm();
  EXPECT_TRUE(kernel.supports({.k = 8}, layout));
  EXPECT_FALSE(kernel.supports({.transposed = true, .k = 8}, layout));
  EXPECT_FALSE(kernel.supports({.operation = Operation::kSddmm, .k = 8}, layout));
  EXPECT_FALSE(kernel.supports({.k = 8, .device = DeviceKind::kCuda}, layout));
  EXPECT_FALSE(kernel.supports({.k = 8}, PlainLayout(pattern)));
  const std::atomic<bool> stop = true;
  std::vector<float> b(pattern.cols * 8), c(pattern.rows * 8), values(layout.value_slots);
  EXPECT_TRUE(absl::IsCancelled(kernel.run(
      {.workspace = {}, .stop = &stop}, {.k = 8},
      {layout, values.data(), {b.data(), pattern.cols, 8, 8}, {c.data(), pattern.rows, 8, 8}})));
}

TEST(Bcsr, TheShapeIsFoundByASample) {
  const auto shape_of = [](const Pattern& pattern) {
    const absl::StatusOr<ChosenBlocks> chosen = ChooseBlockShape(pattern.view());
    return chosen.ok() && chosen->cost < 1 ? chosen->shape : BlockShape{0, 0};
  };
  const Pattern places = Uniform(400, 400, 5, 3);
  for (const BlockShape shape : {BlockShape{3, 3}, {3, 1}, {4, 4}, {4, 6}}) {
    SCOPED_TRACE(testing::Message() << shape.height << " x " << shape.width);
    const Pattern pattern =
        InBlocks(places, static_cast<int32_t>(shape.height), static_cast<int32_t>(shape.width));
    EXPECT_EQ(shape_of(pattern), shape);
    const BuiltLayout built =
        BuildLayout(ParsePipeline("bcsr").value(), pattern.view(), OnHeap()).value();
    ASSERT_FALSE(built.skipped) << built.notes;
    EXPECT_EQ(ViewBcsr(built.layout).shape, shape);
    EXPECT_EQ(built.layout.pipeline, "bcsr(width=0)");
  }
  // Blocks that save too little.
  EXPECT_EQ(shape_of(InBlocks(places, 1, 2)), (BlockShape{0, 0}));
  EXPECT_EQ(shape_of(InBlocks(places, 2, 1)), (BlockShape{0, 0}));
  const Pattern scattered = Uniform(3000, 3000, 5, 1);
  const auto built = [&](const char* pipeline) {
    return BuildLayout(ParsePipeline(pipeline).value(), scattered.view(), OnHeap()).value();
  };
  EXPECT_TRUE(built("bcsr").skipped);
  EXPECT_EQ(built("bcsr").notes,
            "by a sample blocks of 1 x 1 suit best, 100 % of whose places are nonzeros: no better "
            "than single nonzeros");
  EXPECT_FALSE(built("bcsr(force)").skipped);
  EXPECT_TRUE(built("bcsr(force,width=3)").skipped) << "they would take too much memory";
  EXPECT_TRUE(built("plain_sort > bcsr").skipped);
  // A few long rows, in blocks far from the first columns alone.
  std::vector<std::vector<int32_t>> rows(6);
  for (int32_t row = 0; row < 6; ++row) {
    for (int32_t i = 0; i < 3000; ++i) rows[row].push_back(2 * i + (row * 7 + i) % 2);
    for (int32_t i = 6000; i < 90'000; ++i) rows[row].push_back(i);
  }
  EXPECT_EQ(shape_of(FromRows(90'000, rows)).height, 6);
  EXPECT_EQ(shape_of(scattered), (BlockShape{0, 0}));
  EXPECT_EQ(shape_of(FromRows(3, {{}, {}})), (BlockShape{0, 0}));
  EXPECT_EQ(ChooseBlockShape(MostlyInBlocks({3, 3}, 400, 5, 0.9).view())->shape,
            (BlockShape{3, 3}));
  EXPECT_NEAR(ChooseBlockShape(MostlyInBlocks({3, 3}, 400, 5, 0.9).view())->fill, 0.9, 0.02);
}

/// Layouts that were stored when all blocks were square have no height.
TEST(Bcsr, OfAWidthAloneIsSquare) {
  Layout layout = Build(MostlyInBlocks({3, 3}, 50, 4, 1), {3, 3});
  std::erase_if(layout.parameters, [](const auto& p) { return p.first == "height"; });
  EXPECT_EQ(ViewBcsr(layout).shape, (BlockShape{3, 3}));
}

}  // namespace
}  // namespace sparsed::test
