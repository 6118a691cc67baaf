// "cpu.csr.dot" and "cpu.csr.slab_dot" against the reference.
#include "kernels/cpu/sddmm/sddmm.h"

#include <gtest/gtest.h>

#include <atomic>

#include "tests/kernels/dense_harness.h"
#include "tests/kernels/instruction_sets.h"
#include "tests/matrix_market.h"

namespace sparsed::test {
namespace {

constexpr int64_t kWidths[] = {1,  2,  3,  7,  8,   15,  16,  17,  31, 32,
                               33, 64, 65, 97, 100, 128, 129, 257, 512};

std::string Expect(const SddmmKernel& kernel, const Layout& layout, const Pattern& pattern,
                   const DenseCase& c) {
  SCOPED_TRACE(c);
  return ExpectSddmm(kernel, layout, pattern, RandomValues(pattern.nnz(), 7), c);
}

/// For any size: its own `supports` also asks whether column blocks may pay.
SddmmKernel AnySizeSlabSddmm() {
  SddmmKernel kernel = cpu::CsrSlabSddmm();
  kernel.supports = [](const Problem& problem, const Layout& layout) {
    return !IsHalf(problem.type) && cpu::CsrSddmm().supports(problem, layout);
  };
  return kernel;
}

/// Those that the kernel computes with.
std::vector<ElementType> TypesOf(const SddmmKernel& kernel) {
  std::vector<ElementType> types = {ElementType::kF32, ElementType::kF64};
  if (kernel.name == cpu::CsrSddmm().name) {
    types.insert(types.end(), {ElementType::kF16, ElementType::kBF16});
  }
  return types;
}

class SddmmTest : public testing::TestWithParam<SddmmKernel> {};
INSTANTIATE_TEST_SUITE_P(Kernels, SddmmTest, testing::Values(cpu::CsrSddmm(), AnySizeSlabSddmm()),
                         [](const auto& info) {
                           return info.param.name == cpu::CsrSddmm().name ? "Dot" : "SlabDot";
                         });

TEST_P(SddmmTest, ComputesOddPatternsAtEveryWidth) {
  for (const auto& [name, pattern] : OddPatterns()) {
    SCOPED_TRACE(name);
    const Layout layout = PlainLayout(pattern);
    int turn = 0;
    for (const int64_t k : kWidths) {
      for (const ElementType type : TypesOf(GetParam())) {
        ++turn;
        Expect(GetParam(), layout, pattern,
               {.type = type,
                .k = k,
                .threads = 1 + turn % 4,
                .padding = turn % 4 == 1 ? 5 : 0,
                .offset = turn % 3 == 1 ? 1 : 0,
                .unscaled = turn % 5 == 0});
      }
    }
  }
}

TEST_P(SddmmTest, ComputesWithEveryInstructionSet) {
  const Pattern pattern = Rmat(8, 6, 3);
  const Layout layout = PlainLayout(pattern);
  WithEveryInstructionSet([&] {
    for (const int64_t k : kWidths) {
      for (const ElementType type : TypesOf(GetParam())) {
        Expect(GetParam(), layout, pattern, {.type = type, .k = k, .padding = 3});
      }
    }
  });
}

TEST(CsrSddmm, PutsResultsOfPermutedAndTransposedLayoutsInCsrOrder) {
  for (const Pattern& pattern : {Rmat(8, 6, 3), Uniform(130, 70, 9, 4), Band(90, 4)}) {
    Layout wide_source = PermutedLayout(pattern, RandomOrder(pattern.rows, 5));
    Array& source = wide_source.arrays.back();
    const std::vector<int64_t> wide(source.As<int32_t>().begin(), source.As<int32_t>().end());
    source = MakeArray(kValueSource, wide);
    const Layout layouts[] = {PermutedLayout(pattern, RandomOrder(pattern.rows, 5)), wide_source,
                              PermutedLayout(pattern, {}, true),
                              PermutedLayout(pattern, RandomOrder(pattern.cols, 6), true)};
    for (const Layout& layout : layouts) {
      for (const int64_t k : {1, 5, 16, 33, 128, 1000}) {
        for (const ElementType type : TypesOf(cpu::CsrSddmm())) {
          Expect(cpu::CsrSddmm(), layout, pattern, {.type = type, .k = k, .threads = 3});
          Expect(cpu::CsrSddmm(), layout, pattern,
                 {.type = type, .k = k, .threads = 1, .unscaled = true});
        }
      }
    }
  }
}

TEST_P(SddmmTest, PrefetchesLargeOperands) {
  const Pattern pattern = Uniform(20001, 19999, 5, 8);
  for (const int64_t k : {80, 600}) {
    Expect(GetParam(), PlainLayout(pattern), pattern, {.k = k, .threads = 2, .padding = 3});
  }
}

TEST_P(SddmmTest, GivesTheSameBitsForAnyTeam) {
  std::vector<NamedPattern> patterns = OddPatterns();
  patterns.push_back({"larger R-MAT", Rmat(12, 16, 13)});
  for (const auto& [name, pattern] : patterns) {
    SCOPED_TRACE(name);
    const Layout layout = PlainLayout(pattern);
    for (const int64_t k : {33, 520}) {
      DenseCase c = {.k = k};
      const std::string expected = Expect(GetParam(), layout, pattern, c);
      for (c.threads = 2; c.threads <= 4; ++c.threads) {
        EXPECT_TRUE(Expect(GetParam(), layout, pattern, c) == expected) << c;
      }
    }
  }
}

TEST_P(SddmmTest, ReturnsWhenStopped) {
  const Pattern pattern = Uniform(1000, 1000, 20, 9);
  const Layout layout = PlainLayout(pattern);
  const std::vector<float> values(pattern.nnz(), 1);
  const std::vector<float> operand(1000 * 64, 1);
  std::vector<float> out(pattern.nnz());
  const std::atomic<bool> stop = true;
  const Problem problem = {.operation = Operation::kSddmm, .k = 64};
  std::vector<std::byte> workspace(GetParam().workspace(problem, layout, 2));
  const absl::Status status =
      GetParam().run({.threads = 2, .workspace = workspace, .stop = &stop}, problem,
                     {layout,
                      values.data(),
                      {operand.data(), 1000, 64, 64},
                      {operand.data(), 1000, 64, 64},
                      out.data()});
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
}

TEST_P(SddmmTest, ComputesRealMatrices) {
  const std::optional<Matrix> matrix =
      ReadMatrixMarket(std::string(SPARSED_TEST_DATA) + "/delaunay_n16.mtx.gz");
  ASSERT_TRUE(matrix.has_value());
  ExpectSddmm(GetParam(), PlainLayout(matrix->pattern), matrix->pattern, matrix->values,
              {.k = 33, .threads = 2, .padding = 1});
  for (const char* name : {"arrow_46500", "fit2d_A", "w8a", "BlogCatalog", "gowalla_R"}) {
    const std::optional<Matrix> shared =
        ReadMatrixMarket(std::string(SPARSED_SHARED_DATA) + "/" + name + ".mtx.gz");
    if (!shared.has_value()) GTEST_SKIP() << "the shared matrices are not here";
    SCOPED_TRACE(name);
    ExpectSddmm(GetParam(), PlainLayout(shared->pattern), shared->pattern, shared->values,
                {.k = 20, .threads = 2});
  }
}

TEST(CsrSddmm, SupportsItsOperationAlone) {
  const Layout layout = PlainLayout(Band(10, 1));
  Layout other = layout;
  other.kind = "aspt";
  const Problem problem = {.operation = Operation::kSddmm, .k = 4};
  EXPECT_TRUE(cpu::CsrSddmm().supports(problem, layout));
  EXPECT_FALSE(cpu::CsrSddmm().supports(problem, other));
  EXPECT_FALSE(cpu::CsrSddmm().supports({.k = 4}, layout));
  EXPECT_FALSE(cpu::CsrSddmm().supports(
      {.operation = Operation::kSddmm, .type = ElementType::kI64, .k = 4}, layout));
}

TEST(CsrSlabSddmm, SupportsWideOperandsBeyondTheCacheInCsrOrder) {
  const Pattern pattern = Uniform(2000, 3000, 30, 8);
  const Problem problem = {.operation = Operation::kSddmm, .k = 512};
  EXPECT_TRUE(cpu::CsrSlabSddmm().supports(problem, PlainLayout(pattern)));
  EXPECT_FALSE(cpu::CsrSlabSddmm().supports({.k = 512}, PlainLayout(pattern)));
  EXPECT_FALSE(
      cpu::CsrSlabSddmm().supports(problem, PermutedLayout(pattern, RandomOrder(pattern.rows, 5))));
  EXPECT_FALSE(cpu::CsrSlabSddmm().supports(problem, PermutedLayout(pattern, {}, true)));
}

}  // namespace
}  // namespace sparsed::test
