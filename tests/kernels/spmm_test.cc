// "cpu.csr.row_balanced", "cpu.csr.slab" and "cpu.csr.scatter" against the reference.
#include "kernels/cpu/spmm/spmm.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <iterator>
#include <limits>

#include "tests/kernels/dense_harness.h"
#include "tests/kernels/instruction_sets.h"
#include "tests/matrix_market.h"

namespace sparsed::test {
namespace {

constexpr int64_t kWidths[] = {1,  2,  3,  7,  8,   15,  16,  17,  31, 32,
                               33, 64, 65, 97, 100, 128, 129, 257, 512};

/// For any size: its own `supports` also asks whether column blocks may pay.
SpmmKernel AnySizeSlabSpmm() {
  SpmmKernel kernel = cpu::CsrSlabSpmm();
  kernel.supports = [](const Problem& problem, const Layout& layout) {
    return !IsHalf(problem.type) && cpu::CsrSpmm().supports(problem, layout);
  };
  return kernel;
}

/// Those that the kernel computes with.
std::vector<ElementType> TypesOf(const SpmmKernel& kernel) {
  std::vector<ElementType> types = {ElementType::kF32, ElementType::kF64};
  if (kernel.name == cpu::CsrSpmm().name) {
    types.insert(types.end(), {ElementType::kF16, ElementType::kBF16});
  }
  return types;
}

struct SpmmParam {
  const char* name;
  SpmmKernel plain;  ///< for problems that are not transposed
  bool transposed;
};

class SpmmTest : public testing::TestWithParam<SpmmParam> {
 protected:
  /// The kernel for an operation on a layout, whose transpositions cancel out.
  static SpmmKernel KernelFor(const Layout& layout, const DenseCase& c) {
    return c.transposed == layout.transposed ? GetParam().plain : cpu::CsrTransposedSpmm();
  }
  static std::string Expect(const Layout& layout, const Pattern& pattern, const DenseCase& c) {
    SCOPED_TRACE(c);
    return ExpectSpmm(KernelFor(layout, c), layout, pattern, RandomValues(pattern.nnz(), 7), c);
  }
};

TEST_P(SpmmTest, ComputesOddPatternsAtEveryWidth) {
  for (const auto& [name, pattern] : OddPatterns()) {
    SCOPED_TRACE(name);
    const Layout layout = PlainLayout(pattern);
    int turn = 0;
    for (const int64_t k : kWidths) {
      for (const ElementType type : TypesOf(GetParam().plain)) {
        ++turn;
        Expect(layout, pattern,
               {.type = type,
                .k = k,
                .threads = 1 + turn % 4,
                .transposed = GetParam().transposed,
                .alpha = turn % 3 == 0 ? -0.75 : 1,
                .beta = turn % 5 == 0 ? 1.5 : 0,
                .padding = turn % 4 == 1 ? 5 : 0,
                .offset = turn % 3 == 1 ? 1 : 0});
      }
    }
  }
}

TEST_P(SpmmTest, ComputesWithEveryInstructionSet) {
  const Pattern pattern = Rmat(8, 6, 3);
  const Layout layout = PlainLayout(pattern);
  WithEveryInstructionSet([&] {
    for (const int64_t k : kWidths) {
      for (const ElementType type : TypesOf(GetParam().plain)) {
        for (const double beta : {0.0, 2.0}) {
          Expect(layout, pattern,
                 {.type = type,
                  .k = k,
                  .transposed = GetParam().transposed,
                  .alpha = 3,
                  .beta = beta,
                  .padding = 3});
        }
      }
    }
  });
}

/// One column: rows of every length, a row over many parts, permuted rows, strided vectors.
TEST_P(SpmmTest, ComputesASingleColumnWithEveryInstructionSet) {
  std::vector<NamedPattern> patterns = OddPatterns();
  patterns.push_back({"long rows", Uniform(70, 4000, 900, 3)});
  patterns.push_back({"long among short ones", [] {
                        std::vector<std::pair<int32_t, int32_t>> entries;
                        for (int32_t row = 0; row < 3000; ++row) {
                          const int32_t length = row % 97 == 5 ? 1500 : row % 4;
                          for (int32_t i = 0; i < length; ++i) entries.emplace_back(row, 3 * i);
                        }
                        return FromCoordinates(3000, 5000, std::move(entries));
                      }()});
  for (const auto& [name, pattern] : patterns) {
    SCOPED_TRACE(name);
    const Layout layouts[] = {PlainLayout(pattern),
                              PermutedLayout(pattern, RandomOrder(pattern.rows, 5))};
    WithEveryInstructionSet([&] {
      for (const Layout& layout : layouts) {
        for (const ElementType type : TypesOf(GetParam().plain)) {
          for (const int64_t padding : {0, 3}) {
            Expect(layout, pattern,
                   {.type = type,
                    .k = 1,
                    .threads = 2,
                    .transposed = GetParam().transposed,
                    .alpha = 0.5,
                    .beta = padding == 0 ? 0 : -2.0,
                    .padding = padding,
                    .offset = padding});
          }
        }
      }
    });
  }
  // Parts, and a row that reaches over some.
  std::vector<std::pair<int32_t, int32_t>> entries;
  for (int32_t row = 0; row < 60'000; ++row) {
    entries.insert(entries.end(), {{row, row}, {row, (row * 7) % 200'000}, {row, 199'999}});
  }
  for (int32_t column = 0; column < 200'000; ++column) entries.emplace_back(30'000, column);
  const Pattern pattern = FromCoordinates(60'000, 200'000, std::move(entries));
  for (const ElementType type : TypesOf(GetParam().plain)) {
    Expect(PlainLayout(pattern), pattern,
           {.type = type, .k = 1, .threads = 2, .transposed = GetParam().transposed});
  }
}

/// What a row does not name does not reach it, NaN and infinities included.
template <typename T>
void ExpectOthersUntouched() {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const int32_t length : {1, 3, 9, 17, 31, 40}) {
    std::vector<std::pair<int32_t, int32_t>> entries;
    for (int32_t row = 0; row < 50; ++row) {
      for (int32_t i = 0; i < length; ++i) entries.emplace_back(row, 2 * i + row % 2);
    }
    const Layout layout = PlainLayout(FromCoordinates(50, 90, std::move(entries)));
    const std::vector<T> values(layout.nnz, T(1.0F));
    std::vector<T> x(90, T(1.0F)), y(50, T(nan));
    for (int32_t i = 0; i < 90; i += 2) x[i] = T(i % 4 == 0 ? nan : INFINITY);
    const Problem problem = {.type = ElementTypeOf<T>(), .k = 1};
    std::vector<std::byte> workspace(cpu::CsrSpmm().workspace(problem, layout, 1));
    ASSERT_TRUE(cpu::CsrSpmm()
                    .run({.workspace = workspace}, problem,
                         {layout, values.data(), {x.data(), 90, 1, 1}, {y.data(), 50, 1, 1}})
                    .ok());
    for (int32_t row = 0; row < 50; ++row) {
      const auto got = static_cast<float>(y[row]);
      if (row % 2 == 1) {
        EXPECT_EQ(got, static_cast<float>(length)) << row;
      } else {
        EXPECT_TRUE(std::isnan(got)) << row;
      }
    }
  }
}

TEST(CsrSpmm, ASingleColumnIsSummedFromWhatIsNamedAlone) {
  WithEveryInstructionSet([] {
    ExpectOthersUntouched<float>();
    ExpectOthersUntouched<double>();
    ExpectOthersUntouched<Float16>();
    ExpectOthersUntouched<BFloat16>();
  });
}

template <typename T>
void ExpectOwnValuesBack() {
  const float infinity = std::numeric_limits<float>::infinity();
  const float kOwn[] = {0.0F,     -0.0F,    1.0F,      infinity, -infinity,
                        65504.0F, 0x1p-24F, -0x1p-14F, 0x3p-24F, 1.0078125F};
  constexpr int64_t kWidth = 77;
  std::vector<T> b(kWidth), c(kWidth);
  for (int64_t j = 0; j < kWidth; ++j) b[j] = T(kOwn[j % std::size(kOwn)]);
  const Layout layout = PlainLayout(FromCoordinates(1, 1, {{0, 0}}));
  const T one(1.0F);
  const Problem problem = {.type = ElementTypeOf<T>(), .k = kWidth};
  std::vector<std::byte> workspace(cpu::CsrSpmm().workspace(problem, layout, 1));
  ASSERT_TRUE(cpu::CsrSpmm()
                  .run({.workspace = workspace}, problem,
                       {layout, &one, {b.data(), 1, kWidth, kWidth}, {c.data(), 1, kWidth, kWidth}})
                  .ok());
  for (int64_t j = 0; j < kWidth; ++j) {
    EXPECT_EQ(static_cast<float>(c[j]), static_cast<float>(b[j])) << j;
  }
}

TEST(CsrSpmm, HandsEvery16BitValueThroughWithEveryInstructionSet) {
  WithEveryInstructionSet([&] {
    ExpectOwnValuesBack<Float16>();
    ExpectOwnValuesBack<BFloat16>();
  });
}

TEST_P(SpmmTest, ComputesPermutedAndTransposedLayouts) {
  for (const Pattern& pattern : {Rmat(8, 6, 3), Uniform(130, 70, 9, 4), Band(90, 4)}) {
    const Layout layouts[] = {PermutedLayout(pattern, RandomOrder(pattern.rows, 5)),
                              PermutedLayout(pattern, {}, true),
                              PermutedLayout(pattern, RandomOrder(pattern.cols, 6), true)};
    for (const Layout& layout : layouts) {
      SCOPED_TRACE(layout.pipeline);
      for (const int64_t k : {1, 5, 16, 33, 128}) {
        for (const ElementType type : TypesOf(GetParam().plain)) {
          Expect(layout, pattern,
                 {.type = type,
                  .k = k,
                  .threads = 3,
                  .transposed = GetParam().transposed,
                  .beta = 0.5});
        }
      }
    }
  }
}

TEST_P(SpmmTest, PrefetchesAndStreamsLargeOperands) {
  // B exceeds the private caches, C the size from which it is streamed.
  const Pattern pattern = Uniform(70001, 69999, 3, 8);
  const Layout layout = PlainLayout(pattern);
  for (const int64_t padding : {0, 16, 3}) {
    Expect(layout, pattern,
           {.k = 80, .threads = 2, .transposed = GetParam().transposed, .padding = padding});
  }
  Expect(layout, pattern,
         {.k = 73, .threads = 2, .transposed = GetParam().transposed, .padding = 7});
  Expect(layout, pattern,
         {.type = ElementType::kF64, .k = 40, .threads = 2, .transposed = GetParam().transposed});
}

TEST_P(SpmmTest, ComputesWideOperandsWithALongRow) {
  // Sums over parts meet column blocks.
  Pattern pattern = Uniform(2000, 3000, 30, 8);
  std::vector<std::pair<int32_t, int32_t>> entries;
  for (int32_t row = 0; row < 2000; ++row) {
    for (int64_t p = pattern.row_offsets[row]; p < pattern.row_offsets[row + 1]; ++p) {
      entries.emplace_back(row, pattern.column_indices[p]);
    }
  }
  for (int32_t column = 0; column < 3000; ++column) entries.emplace_back(1000, column);
  pattern = FromCoordinates(2000, 3000, std::move(entries));
  const Layout plain = PlainLayout(pattern);
  const Layout permuted = PermutedLayout(pattern, RandomOrder(pattern.rows, 5));
  for (const Layout* layout : {&plain, &permuted}) {
    for (const int64_t k : {176, 300, 512}) {
      for (const ElementType type : TypesOf(GetParam().plain)) {
        for (const double beta : {0.0, -1.0}) {
          Expect(*layout, pattern,
                 {.type = type,
                  .k = k,
                  .threads = 3,
                  .transposed = GetParam().transposed,
                  .alpha = 2,
                  .beta = beta,
                  .padding = 3});
        }
      }
    }
  }
}

TEST_P(SpmmTest, GivesTheSameBitsForAnyTeam) {
  std::vector<NamedPattern> patterns = OddPatterns();
  patterns.push_back({"larger R-MAT", Rmat(12, 16, 13)});
  for (const auto& [name, pattern] : patterns) {
    SCOPED_TRACE(name);
    const Layout layout = PlainLayout(pattern);
    for (const int64_t k : {1, 8, 33, 128}) {
      for (const ElementType type : {ElementType::kF32, TypesOf(GetParam().plain).back()}) {
        DenseCase c = {.type = type, .k = k, .transposed = GetParam().transposed};
        const std::string expected = Expect(layout, pattern, c);
        for (c.threads = 1; c.threads <= 4; ++c.threads) {
          EXPECT_TRUE(Expect(layout, pattern, c) == expected) << c;
        }
      }
    }
  }
}

TEST_P(SpmmTest, ReturnsWhenStopped) {
  const Pattern pattern = Uniform(1000, 1000, 20, 9);
  const Layout layout = PlainLayout(pattern);
  const SpmmKernel kernel = KernelFor(layout, {.transposed = GetParam().transposed});
  const Problem problem = {.transposed = GetParam().transposed, .k = 64};
  const std::vector<float> values(pattern.nnz(), 1);
  const std::vector<float> b(1000 * 64, 1);
  std::vector<float> c(1000 * 64);
  std::vector<std::byte> workspace(kernel.workspace(problem, layout, 2));
  const std::atomic<bool> stop = true;
  const absl::Status status =
      kernel.run({.threads = 2, .workspace = workspace, .stop = &stop}, problem,
                 {layout, values.data(), {b.data(), 1000, 64, 64}, {c.data(), 1000, 64, 64}});
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
}

TEST_P(SpmmTest, ComputesRealMatrices) {
  const std::optional<Matrix> matrix =
      ReadMatrixMarket(std::string(SPARSED_TEST_DATA) + "/delaunay_n16.mtx.gz");
  ASSERT_TRUE(matrix.has_value());
  ExpectSpmm(KernelFor(PlainLayout(matrix->pattern), {.transposed = GetParam().transposed}),
             PlainLayout(matrix->pattern), matrix->pattern, matrix->values,
             {.k = 33, .threads = 2, .transposed = GetParam().transposed, .padding = 1});
  for (const char* name : {"arrow_46500", "fit2d_A", "w8a", "BlogCatalog", "gowalla_R"}) {
    const std::optional<Matrix> shared =
        ReadMatrixMarket(std::string(SPARSED_SHARED_DATA) + "/" + name + ".mtx.gz");
    if (!shared.has_value()) GTEST_SKIP() << "the shared matrices are not here";
    SCOPED_TRACE(name);
    const Layout layout = PlainLayout(shared->pattern);
    ExpectSpmm(KernelFor(layout, {.transposed = GetParam().transposed}), layout, shared->pattern,
               shared->values, {.k = 20, .threads = 2, .transposed = GetParam().transposed});
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, SpmmTest,
                         testing::Values(SpmmParam{"RowBalanced", cpu::CsrSpmm(), false},
                                         SpmmParam{"Slab", AnySizeSlabSpmm(), false},
                                         SpmmParam{"Scatter", cpu::CsrSpmm(), true}),
                         [](const auto& info) { return info.param.name; });

TEST(CsrSpmmSupports, OneDirectionEach) {
  const Layout layout = PlainLayout(Band(10, 1));
  Layout other = layout;
  other.kind = "aspt";
  for (const ElementType type :
       {ElementType::kF32, ElementType::kF64, ElementType::kF16, ElementType::kBF16}) {
    const Problem plain = {.type = type, .k = 4};
    const Problem transposed = {.transposed = true, .type = type, .k = 4};
    EXPECT_TRUE(cpu::CsrSpmm().supports(plain, layout));
    EXPECT_FALSE(cpu::CsrSpmm().supports(transposed, layout));
    EXPECT_FALSE(cpu::CsrTransposedSpmm().supports(plain, layout));
    EXPECT_TRUE(cpu::CsrTransposedSpmm().supports(transposed, layout));
    EXPECT_FALSE(cpu::CsrSpmm().supports(plain, other));
    EXPECT_FALSE(cpu::CsrTransposedSpmm().supports(transposed, other));
  }
  EXPECT_FALSE(cpu::CsrSpmm().supports({.operation = Operation::kSddmm, .k = 4}, layout));
  EXPECT_FALSE(cpu::CsrSpmm().supports({.type = ElementType::kI32, .k = 4}, layout));
  EXPECT_FALSE(cpu::CsrSpmm().supports({.k = 4, .device = DeviceKind::kCuda}, layout));
}

TEST(CsrSlabSpmmSupports, WideOperandsBeyondTheCache) {
  const Layout often = PlainLayout(Uniform(2000, 3000, 30, 8));
  const Layout seldom = PlainLayout(Uniform(2000, 3000, 2, 8));
  const Layout small = PlainLayout(Uniform(300, 200, 30, 8));
  const SpmmKernel kernel = cpu::CsrSlabSpmm();
  EXPECT_TRUE(kernel.supports({.k = 512}, often));
  EXPECT_FALSE(kernel.supports({.k = 32}, often));
  EXPECT_FALSE(kernel.supports({.k = 512}, seldom));
  EXPECT_FALSE(kernel.supports({.k = 512}, small));
  EXPECT_FALSE(kernel.supports({.transposed = true, .k = 512}, often));
  EXPECT_FALSE(kernel.supports({.type = ElementType::kF16, .k = 1000}, often));
}

}  // namespace
}  // namespace sparsed::test
