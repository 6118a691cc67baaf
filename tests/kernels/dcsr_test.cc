// Layout "dcsr" holds exactly its pattern, and its kernels compute what the reference does.
#include "kernels/formats/dcsr.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "kernels/cpu/sddmm/sddmm.h"
#include "kernels/cpu/spmm/spmm.h"
#include "kernels/pipeline.h"
#include "tests/generate.h"
#include "tests/kernels/dense_harness.h"
#include "tests/kernels/layout_testing.h"

namespace sparsed::test {
namespace {

/// Odd patterns, and one whose rows are empty but for every ninth.
std::vector<NamedPattern> Patterns() {
  std::vector<NamedPattern> patterns = OddPatterns();
  std::vector<std::pair<int32_t, int32_t>> entries;
  for (int32_t row = 4; row < 3000; row += 9) {
    for (int32_t i = 0; i < row % 40; ++i) entries.emplace_back(row, (row + i * i) % 700);
  }
  patterns.push_back({"mostly empty rows", FromCoordinates(3000, 700, std::move(entries))});
  return patterns;
}

Layout Build(const char* pipeline, const Pattern& pattern) {
  return BuildLayout(ParsePipeline(pipeline).value(), pattern.view(), OnHeap()).value().layout;
}

TEST(Dcsr, HoldsExactlyItsPattern) {
  for (const auto& [name, pattern] : Patterns()) {
    SCOPED_TRACE(name);
    const std::vector<int32_t> order = RandomOrder(pattern.rows, 3);
    for (const bool permuted : {false, true}) {
      CsrView view = pattern.view();
      if (permuted) view.row_order = order;
      const Layout layout = BuildDcsr(view, false, OnHeap()).value();
      EXPECT_EQ(layout.Find(kValueSource) != nullptr, permuted && pattern.rows > 0);
      const Layout stored = StoredRows(layout);
      const CsrView s = ViewCsr(stored);
      std::vector<bool> seen(pattern.rows);
      ASSERT_EQ(s.row_order.size(), static_cast<size_t>(s.rows));
      for (int64_t r = 0; r < s.rows; ++r) {
        const int64_t row = s.row_order[r];
        seen[row] = true;
        const int64_t first = pattern.row_offsets[row];
        ASSERT_EQ(s.row_offsets[r + 1] - s.row_offsets[r], pattern.row_offsets[row + 1] - first);
        EXPECT_GT(s.row_offsets[r + 1], s.row_offsets[r]);
        for (int64_t p = s.row_offsets[r]; p < s.row_offsets[r + 1]; ++p) {
          const int64_t nonzero = first + p - s.row_offsets[r];
          EXPECT_EQ(s.column_indices[p], pattern.column_indices[nonzero]);
          EXPECT_EQ(layout.Find(kValueSource) == nullptr ? p : Source(layout, p), nonzero);
        }
      }
      const auto empty = EmptyRows(layout);
      EXPECT_TRUE(permuted || std::is_sorted(empty.begin(), empty.end()));
      for (const int32_t row : empty) {
        EXPECT_FALSE(seen[row]);
        EXPECT_EQ(pattern.row_offsets[row], pattern.row_offsets[row + 1]);
        seen[row] = true;
      }
      EXPECT_EQ(std::count(seen.begin(), seen.end(), false), 0);
    }
  }
}

TEST(Dcsr, IsTheSameForAnyTeam) {
  const Pattern pattern = Rmat(15, 2, 2);
  ExpectSameArrays(BuildDcsr(pattern.view(), true, OnHeap(1)).value(),
                   BuildDcsr(pattern.view(), true, OnHeap(3)).value());
}

TEST(DcsrKernels, ComputeOddPatternsAtManyWidths) {
  for (const auto& [name, pattern] : Patterns()) {
    SCOPED_TRACE(name);
    const std::vector<double> values = RandomValues(pattern.nnz(), 7);
    int turn = 0;
    for (const char* pipeline : {"dcsr", "plain_sort > dcsr", "transpose > dcsr"}) {
      const Layout layout = Build(pipeline, pattern);
      for (const int64_t k : {1, 8, 33, 100, 128}) {
        for (const ElementType type :
             {ElementType::kF32, ElementType::kF64, ElementType::kF16, ElementType::kBF16}) {
          for (const bool transposed : {false, true}) {
            ++turn;
            const DenseCase c = {.type = type,
                                 .k = k,
                                 .threads = 1 + turn % 4,
                                 .transposed = transposed,
                                 .alpha = turn % 3 == 0 ? -0.75 : 1,
                                 .beta = turn % 5 < 2    ? 1.5
                                         : turn % 5 == 2 ? 1
                                                         : 0,
                                 .padding = turn % 4 == 1 ? 5 : 0,
                                 .offset = turn % 3 == 1 ? 1 : 0,
                                 .unscaled = turn % 7 == 0};
            SCOPED_TRACE(c);
            // A layout of the transpose is for the transposed product.
            if (transposed == layout.transposed) {
              ExpectSpmm(cpu::DcsrSpmm(), layout, pattern, values, c);
            }
            if (!transposed) ExpectSddmm(cpu::DcsrSddmm(), layout, pattern, values, c);
          }
        }
      }
    }
  }
}

TEST(DcsrKernels, RefuseWhatTheyCannotDo) {
  const Pattern pattern = Band(10, 2);
  const Layout layout = Build("dcsr", pattern);
  const Problem spmm = {.k = 8};
  const Problem transposed = {.transposed = true, .k = 8};
  const Problem sddmm = {.operation = Operation::kSddmm, .k = 8};
  EXPECT_TRUE(cpu::DcsrSpmm().supports(spmm, layout));
  EXPECT_FALSE(cpu::DcsrSpmm().supports(transposed, layout));
  EXPECT_FALSE(cpu::DcsrSpmm().supports(sddmm, layout));
  EXPECT_FALSE(cpu::DcsrSpmm().supports(spmm, PlainLayout(pattern)));
  EXPECT_TRUE(cpu::DcsrSddmm().supports(sddmm, layout));
  EXPECT_FALSE(cpu::DcsrSddmm().supports(spmm, layout));
  EXPECT_FALSE(cpu::CsrSpmm().supports(spmm, layout));
}

TEST(DcsrKernels, Stop) {
  const Pattern pattern = Rmat(9, 8, 6);
  const Layout layout = Build("dcsr", pattern);
  const std::atomic<bool> stop = true;
  std::vector<float> c(pattern.rows * 8), b(pattern.cols * 8), values(pattern.nnz());
  const Problem problem = {.k = 8};
  std::vector<std::byte> workspace(cpu::DcsrSpmm().workspace(problem, layout, 2));
  EXPECT_TRUE(absl::IsCancelled(cpu::DcsrSpmm().run(
      {.threads = 2, .workspace = workspace, .stop = &stop}, problem,
      {layout, values.data(), {b.data(), pattern.cols, 8, 8}, {c.data(), pattern.rows, 8, 8}})));
}

}  // namespace
}  // namespace sparsed::test
