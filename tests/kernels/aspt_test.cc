// Layout "aspt" holds exactly its pattern, and its kernels compute what the reference does.
#include "kernels/formats/aspt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>

#include "kernels/cpu/sddmm/sddmm.h"
#include "kernels/cpu/spmm/spmm.h"
#include "kernels/formats/csr_build.h"
#include "kernels/pipeline.h"
#include "tests/generate.h"
#include "tests/kernels/counting_memory.h"
#include "tests/kernels/dense_harness.h"
#include "tests/kernels/layout_testing.h"

namespace sparsed::test {
namespace {

Layout Build(const Pattern& pattern, const std::vector<int32_t>& row_order, AsptOptions options,
             bool permute_remainder = false) {
  CsrView view = pattern.view();
  view.row_order = row_order;
  Layout layout = BuildAspt(view, options, OnHeap()).value();
  if (permute_remainder) {
    const Array order = MakeArray("order", RandomOrder(pattern.rows, 17));
    EXPECT_TRUE(PermuteRemainder(layout, order, OnHeap()).ok());
  }
  return layout;
}

/// Every nonzero of the pattern is in one slot, where value_source says; tiles hold the columns
/// that occur often enough in their panel, and no others.
void ExpectHolds(const Layout& layout, const Pattern& pattern, AsptOptions options) {
  const AsptView s = ViewAspt(layout);
  ASSERT_EQ(layout.kind, kAspt);
  ASSERT_EQ(layout.value_slots, pattern.nnz());
  ASSERT_EQ(s.panel, options.panel);
  ASSERT_EQ(s.panels(), (pattern.rows + options.panel - 1) / options.panel);
  ASSERT_EQ(s.dense_row_offsets.size(), static_cast<size_t>(pattern.rows) + 1);
  ASSERT_EQ(s.remainder_row_offsets.size(), static_cast<size_t>(pattern.rows) + 1);
  ASSERT_EQ(s.dense_row_offsets.back(), s.dense_nnz());
  std::set<int64_t> seen;
  auto expect_entry = [&](int64_t slot, int64_t row, int32_t column) {
    const int64_t p = Source(layout, slot);
    EXPECT_TRUE(seen.insert(p).second) << "nonzero " << p << " twice";
    EXPECT_GE(p, pattern.row_offsets[row]);
    EXPECT_LT(p, pattern.row_offsets[row + 1]);
    EXPECT_EQ(pattern.column_indices[p], column);
  };
  std::vector<std::map<int32_t, int64_t>> counts(s.panels());
  std::vector<std::set<int32_t>> tiles(s.panels());
  for (int64_t panel = 0; panel < s.panels(); ++panel) {
    const auto columns = s.panel_columns.subspan(
        s.panel_offsets[panel], s.panel_offsets[panel + 1] - s.panel_offsets[panel]);
    EXPECT_TRUE(std::is_sorted(columns.begin(), columns.end()));
    tiles[panel] = {columns.begin(), columns.end()};
  }
  for (int64_t r = 0; r < s.rows; ++r) {
    const int64_t panel = r / s.panel;
    for (int64_t d = s.dense_row_offsets[r]; d < s.dense_row_offsets[r + 1]; ++d) {
      const int32_t column = s.panel_columns[s.panel_offsets[panel] + s.dense_indices[d]];
      expect_entry(d, s.MatrixRow(r), column);
      if (d > s.dense_row_offsets[r]) {
        EXPECT_LT(s.dense_indices[d - 1], s.dense_indices[d]);
      }
      ++counts[panel][column];
    }
  }
  for (int64_t q = 0; q < s.rows; ++q) {
    const int64_t r = s.LayoutRow(q);
    for (int64_t p = s.remainder_row_offsets[q]; p < s.remainder_row_offsets[q + 1]; ++p) {
      const int32_t column = s.remainder_columns[p];
      expect_entry(s.dense_nnz() + p, s.MatrixRow(r), column);
      EXPECT_FALSE(tiles[r / s.panel].contains(column));
      if (p > s.remainder_row_offsets[q]) {
        EXPECT_LT(s.remainder_columns[p - 1], column);
      }
      ++counts[r / s.panel][column];
    }
  }
  EXPECT_EQ(static_cast<int64_t>(seen.size()), pattern.nnz());
  for (int64_t panel = 0; panel < s.panels(); ++panel) {
    for (const auto& [column, count] : counts[panel]) {
      EXPECT_EQ(tiles[panel].contains(column), count >= options.min_dense);
    }
  }
}

/// Layouts of a pattern that differ in everything they can.
std::vector<Layout> Variants(const Pattern& pattern) {
  const std::vector<int32_t> order = RandomOrder(pattern.rows, 3);
  std::vector<Layout> layouts;
  layouts.push_back(Build(pattern, {}, {64, 2}));
  layouts.push_back(Build(pattern, order, {5, 2}, true));
  layouts.push_back(Build(pattern, order, {16, 1}));       // all dense
  layouts.push_back(Build(pattern, {}, {7, 1000}, true));  // all remainder
  return layouts;
}

TEST(Aspt, HoldsExactlyItsPattern) {
  std::vector<NamedPattern> patterns = OddPatterns();
  patterns.push_back({"clusters", ShuffledClusters(30, 16, 400, 36, 32, 3, 1)});
  patterns.push_back({"rmat", Rmat(9, 8, 2)});
  patterns.push_back({"wide rows", Uniform(10, 30'000, 9'000, 3)});
  for (const auto& [name, pattern] : patterns) {
    SCOPED_TRACE(name);
    for (const AsptOptions options :
         {AsptOptions{64, 2}, AsptOptions{3, 2}, AsptOptions{1, 1}, AsptOptions{1000, 4}}) {
      ExpectHolds(Build(pattern, {}, options), pattern, options);
      ExpectHolds(Build(pattern, RandomOrder(pattern.rows, 5), options, true), pattern, options);
    }
  }
}

TEST(Aspt, IsTheSameForAnyTeam) {
  const Pattern pattern = Rmat(15, 6, 2);
  const Layout one = BuildAspt(pattern.view(), {}, OnHeap(1)).value();
  const Layout three = BuildAspt(pattern.view(), {}, OnHeap(3)).value();
  ExpectSameArrays(one, three);
}

TEST(AsptKernels, ComputeOddPatternsAtManyWidths) {
  for (const auto& [name, pattern] : OddPatterns()) {
    SCOPED_TRACE(name);
    const std::vector<double> values = RandomValues(pattern.nnz(), 7);
    int turn = 0;
    for (const Layout& layout : Variants(pattern)) {
      for (const int64_t k : {1, 2, 7, 16, 33, 64, 100, 129}) {
        for (const ElementType type : {ElementType::kF32, ElementType::kF64}) {
          ++turn;
          const DenseCase c = {.type = type,
                               .k = k,
                               .threads = 1 + turn % 4,
                               .alpha = turn % 3 == 0 ? -0.75 : 1,
                               .beta = turn % 5 < 2 ? 1.5 : 0,
                               .padding = turn % 4 == 1 ? 5 : 0,
                               .offset = turn % 3 == 1 ? 1 : 0,
                               .unscaled = turn % 7 == 0};
          SCOPED_TRACE(c);
          ExpectSpmm(cpu::AsptSpmm(), layout, pattern, values, c);
          ExpectSddmm(cpu::AsptSddmm(), layout, pattern, values, c);
        }
      }
    }
  }
}

/// Tiles that are copied and tiles that are not, tiles in several column blocks, rows of more
/// entries than are translated at a time.
TEST(AsptKernels, ComputeLargeTiles) {
  const struct {
    const char* name;
    Pattern pattern;
    AsptOptions options;
    std::vector<int64_t> widths;
  } cases[] = {
      {"clusters", ShuffledClusters(30, 16, 900, 36, 32, 3, 1), {64, 2}, {32, 257, 1024}},
      {"reused tile", Uniform(90, 500, 200, 2), {64, 2}, {100, 512, 1300}},
      {"wide tile", Uniform(20, 9'000, 5'000, 3), {8, 2}, {3, 40, 150}},
      {"one dense row", Uniform(1, 50'000, 20'000, 4), {64, 1}, {1, 33}},
  };
  for (const auto& [name, pattern, options, widths] : cases) {
    SCOPED_TRACE(name);
    const std::vector<double> values = RandomValues(pattern.nnz(), 7);
    for (const bool permuted : {false, true}) {
      const Layout layout = Build(pattern, RandomOrder(pattern.rows, 5), options, permuted);
      for (const int64_t k : widths) {
        for (const ElementType type : {ElementType::kF32, ElementType::kF64}) {
          const DenseCase c = {.type = type, .k = k, .threads = 3, .alpha = 2, .beta = -1};
          SCOPED_TRACE(c);
          ExpectSpmm(cpu::AsptSpmm(), layout, pattern, values, c);
          ExpectSddmm(cpu::AsptSddmm(), layout, pattern, values, c);
        }
      }
    }
  }
}

TEST(AsptKernels, GiveTheSameBitsForAnyTeam) {
  const Pattern pattern = Rmat(11, 12, 5);
  const std::vector<double> values = RandomValues(pattern.nnz(), 7);
  for (const bool permuted : {false, true}) {
    const Layout layout = Build(pattern, RandomOrder(pattern.rows, 5), {64, 2}, permuted);
    for (const int64_t k : {17, 128}) {
      const DenseCase one = {.k = k, .threads = 1, .beta = 0.5};
      DenseCase many = one;
      const std::string spmm = ExpectSpmm(cpu::AsptSpmm(), layout, pattern, values, one);
      const std::string sddmm = ExpectSddmm(cpu::AsptSddmm(), layout, pattern, values, one);
      for (many.threads = 2; many.threads < 5; ++many.threads) {
        EXPECT_EQ(ExpectSpmm(cpu::AsptSpmm(), layout, pattern, values, many), spmm);
        EXPECT_EQ(ExpectSddmm(cpu::AsptSddmm(), layout, pattern, values, many), sddmm);
      }
    }
  }
}

TEST(AsptKernels, ComputeFromTransposedLayouts) {
  const Pattern pattern = Rmat(9, 8, 6);
  const std::vector<double> values = RandomValues(pattern.nnz(), 7);
  const auto built =
      BuildLayout(ParsePipeline("transpose > aspt(panel=32) > lsh_cluster(remainder)").value(),
                  pattern.view(), OnHeap());
  ASSERT_TRUE(built.ok()) << built.status();
  ASSERT_FALSE(built->skipped) << built->notes;
  EXPECT_TRUE(built->layout.transposed);
  for (const int64_t k : {5, 64}) {
    ExpectSpmm(cpu::AsptSpmm(), built->layout, pattern, values,
               {.k = k, .threads = 2, .transposed = true});
    ExpectSddmm(cpu::AsptSddmm(), built->layout, pattern, values, {.k = k, .threads = 2});
  }
}

TEST(AsptKernels, RefuseWhatTheyCannotDo) {
  const Pattern pattern = Band(10, 2);
  const Layout layout = Build(pattern, {}, {});
  const Problem spmm = {.operation = Operation::kSpmm, .k = 8};
  Problem transposed = spmm;
  transposed.transposed = true;
  const Problem sddmm = {.operation = Operation::kSddmm, .k = 8};
  EXPECT_TRUE(cpu::AsptSpmm().supports(spmm, layout));
  EXPECT_FALSE(cpu::AsptSpmm().supports(transposed, layout));
  EXPECT_FALSE(cpu::AsptSpmm().supports(sddmm, layout));
  EXPECT_FALSE(cpu::AsptSpmm().supports(spmm, PlainLayout(pattern)));
  EXPECT_TRUE(cpu::AsptSddmm().supports(sddmm, layout));
  EXPECT_FALSE(cpu::AsptSddmm().supports(spmm, layout));
  EXPECT_FALSE(cpu::AsptSddmm().supports(sddmm, PlainLayout(pattern)));
}

TEST(AsptKernels, Stop) {
  const Pattern pattern = Rmat(9, 8, 6);
  const Layout layout = Build(pattern, {}, {}, true);
  const std::atomic<bool> stop = true;
  std::vector<float> a(pattern.rows * 8), b(pattern.cols * 8), values(pattern.nnz());
  std::vector<float> out(pattern.nnz());
  const Problem spmm = {.operation = Operation::kSpmm, .k = 8};
  const Problem sddmm = {.operation = Operation::kSddmm, .k = 8};
  Buffer workspace = HeapMemory()
                         .Allocate(std::max(cpu::AsptSpmm().workspace(spmm, layout, 2),
                                            cpu::AsptSddmm().workspace(sddmm, layout, 2)))
                         .value();
  const Context context = {
      .threads = 2, .workspace = {workspace.mutable_data(), workspace.size()}, .stop = &stop};
  EXPECT_TRUE(absl::IsCancelled(cpu::AsptSpmm().run(
      context, spmm,
      {layout, values.data(), {b.data(), pattern.cols, 8, 8}, {a.data(), pattern.rows, 8, 8}})));
  EXPECT_TRUE(absl::IsCancelled(cpu::AsptSddmm().run(context, sddmm,
                                                     {layout,
                                                      values.data(),
                                                      {a.data(), pattern.rows, 8, 8},
                                                      {b.data(), pattern.cols, 8, 8},
                                                      out.data()})));
}

}  // namespace
}  // namespace sparsed::test
