// Layout "row_segments" holds exactly its pattern, and its kernels compute what the reference does.
#include "kernels/formats/row_segments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>

#include "kernels/cpu/spmm/spmm.h"
#include "kernels/pipeline.h"
#include "tests/generate.h"
#include "tests/kernels/dense_harness.h"
#include "tests/kernels/layout_testing.h"

namespace sparsed::test {
namespace {

Layout Build(const Pattern& pattern, const std::vector<int32_t>& row_order,
             RowSegmentsOptions options, int threads = 2) {
  CsrView view = pattern.view();
  view.row_order = row_order;
  return BuildRowSegments(view, options, OnHeap(threads)).value();
}

std::vector<NamedPattern> Patterns() {
  std::vector<NamedPattern> patterns = OddPatterns();
  patterns.push_back({"runs", Runs(3000, 2500, 45, 4)});
  patterns.push_back({"wide rows", Uniform(10, 30'000, 9'000, 3)});
  return patterns;
}

/// Every nonzero of the pattern is in one slot, where value_source says; a segment is all that its
/// row has in the panel, and long enough.
void ExpectHolds(const Layout& layout, const Pattern& pattern, RowSegmentsOptions options) {
  const RowSegmentsView s = ViewRowSegments(layout);
  const Layout light_layout = LightRows(layout);
  const CsrView light = ViewCsr(light_layout);
  ASSERT_EQ(layout.value_slots, pattern.nnz());
  ASSERT_EQ(s.panel, options.panel);
  ASSERT_EQ(s.chunk_offsets.size(), s.chunk_panels.size() + 1);
  ASSERT_EQ(s.segment_offsets.size(), s.segment_rows.size() + 1);
  ASSERT_EQ(s.segment_layout_rows.size(), s.segment_rows.size());
  ASSERT_EQ(s.chunk_offsets.front(), 0);
  ASSERT_EQ(s.chunk_offsets.back(), s.segments());
  ASSERT_EQ(s.segment_offsets.front(), 0);
  ASSERT_EQ(s.segment_offsets.back(), s.heavy_nnz());
  EXPECT_TRUE(std::is_sorted(s.chunk_panels.begin(), s.chunk_panels.end()));
  std::set<int64_t> seen;
  auto expect_entry = [&](int64_t slot, int64_t row, int64_t column) {
    const int64_t p = Source(layout, slot);
    EXPECT_TRUE(seen.insert(p).second) << "nonzero " << p << " twice";
    EXPECT_GE(p, pattern.row_offsets[row]);
    EXPECT_LT(p, pattern.row_offsets[row + 1]);
    EXPECT_EQ(pattern.column_indices[p], column);
  };
  std::map<int64_t, int64_t> panel_entries;
  std::map<int64_t, int64_t> last_row;
  std::set<std::pair<int64_t, int64_t>> heavy;
  for (int64_t chunk = 0; chunk < s.chunks(); ++chunk) {
    EXPECT_LT(s.chunk_offsets[chunk], s.chunk_offsets[chunk + 1]);
    const int64_t panel = s.chunk_panels[chunk];
    for (int64_t i = s.chunk_offsets[chunk]; i < s.chunk_offsets[chunk + 1]; ++i) {
      const int64_t row = s.segment_rows[i];
      EXPECT_TRUE(heavy.emplace(panel, row).second);
      EXPECT_EQ(
          s.row_order.empty() ? s.segment_layout_rows[i] : s.row_order[s.segment_layout_rows[i]],
          row);
      EXPECT_GT(s.segment_layout_rows[i], last_row.contains(panel) ? last_row[panel] : -1);
      last_row[panel] = s.segment_layout_rows[i];
      EXPECT_GE(s.segment_offsets[i + 1] - s.segment_offsets[i], options.min_heavy);
      for (int64_t p = s.segment_offsets[i]; p < s.segment_offsets[i + 1]; ++p) {
        expect_entry(p, row, panel * s.panel + s.heavy_columns[p]);
        EXPECT_GE(s.heavy_columns[p], 0);
        EXPECT_LT(s.heavy_columns[p], s.panel);
        if (p > s.segment_offsets[i]) {
          EXPECT_LT(s.heavy_columns[p - 1], s.heavy_columns[p]);
        }
        ++panel_entries[panel];
      }
    }
  }
  std::map<std::pair<int64_t, int64_t>, int64_t> light_counts;
  std::map<int64_t, int64_t> light_panels;  // what heavy runs would have added
  for (int64_t r = 0; r < light.rows; ++r) {
    const int64_t row = light.row_order.empty() ? r : light.row_order[r];
    for (int64_t p = light.row_offsets[r]; p < light.row_offsets[r + 1]; ++p) {
      expect_entry(s.heavy_nnz() + p, row, light.column_indices[p]);
      ++light_counts[{light.column_indices[p] / s.panel, row}];
    }
  }
  EXPECT_EQ(static_cast<int64_t>(seen.size()), pattern.nnz());
  for (const auto& [place, count] : light_counts) {
    EXPECT_FALSE(heavy.contains(place)) << "a segment is not all of its row in the panel";
    if (count >= options.min_heavy) light_panels[place.first] += count;
  }
  for (const auto& [panel, entries] : light_panels) {
    EXPECT_FALSE(panel_entries.contains(panel));
    EXPECT_LT(entries, 2 * options.panel);
  }
}

TEST(RowSegments, HoldExactlyTheirPattern) {
  for (const auto& [name, pattern] : Patterns()) {
    SCOPED_TRACE(name);
    for (const RowSegmentsOptions options :
         {RowSegmentsOptions{224, 8}, RowSegmentsOptions{32, 2}, RowSegmentsOptions{40, 1},
          RowSegmentsOptions{1000, 16}, RowSegmentsOptions{64, 10'000}}) {
      ExpectHolds(Build(pattern, {}, options), pattern, options);
      ExpectHolds(Build(pattern, RandomOrder(pattern.rows, 5), options, 3), pattern, options);
    }
  }
}

TEST(RowSegments, AreTheSameForAnyTeam) {
  const Pattern pattern = Runs(30'000, 9000, 45, 2);
  ExpectSameArrays(Build(pattern, {}, {}, 1), Build(pattern, {}, {}, 3));
  const std::vector<int32_t> order = RandomOrder(pattern.rows, 5);
  ExpectSameArrays(Build(pattern, order, {}, 1), Build(pattern, order, {}, 3));
}

TEST(RowSegments, TakeTheThresholdFromTheDistances) {
  const Pattern runs = Runs(3000, 2500, 45, 4);
  const Pattern scattered = Uniform(5000, 50'000, 8, 1);
  EXPECT_EQ(LeastHeavy(runs.view(), OnHeap()), 16);
  EXPECT_EQ(LeastHeavy(scattered.view(), OnHeap()), 8);
  EXPECT_EQ(Build(runs, {}, {}).Parameter("min_heavy"), 16);
  EXPECT_EQ(Build(scattered, {}, {}).Parameter("min_heavy"), 8);
  EXPECT_EQ(Build(runs, {}, {.min_heavy = 5}).Parameter("min_heavy"), 5);
}

TEST(RowSegments, FollowThePipeline) {
  const auto build = [](const char* pipeline, const Pattern& pattern) {
    return BuildLayout(ParsePipeline(pipeline).value(), pattern.view(), OnHeap()).value();
  };
  const Pattern runs = Runs(3000, 2500, 45, 4);
  const BuiltLayout built = build("row_segments", runs);
  ASSERT_FALSE(built.skipped) << built.notes;
  EXPECT_EQ(built.layout.pipeline, "row_segments(panel=64,min_heavy=0,coarsen=0)");
  ExpectHolds(built.layout, runs, {.min_heavy = 16});
  ExpectHolds(build("row_segments(panel=64,min_heavy=4,coarsen=2)", runs).layout, runs, {64, 4, 2});
  const Pattern scattered = Uniform(5000, 50'000, 8, 1);
  EXPECT_TRUE(build("row_segments", scattered).skipped);
  EXPECT_FALSE(build("row_segments(force)", scattered).skipped);
  for (const char* wrong : {"row_segments(panel=31)", "row_segments(min_heavy=-1)",
                            "row_segments(coarsen=5)", "row_segments(remainder)"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParsePipeline(wrong).status())) << wrong;
  }
}

TEST(RowSegmentsKernels, ComputeOddPatternsAtManyWidths) {
  for (const auto& [name, pattern] : Patterns()) {
    SCOPED_TRACE(name);
    const std::vector<double> values = RandomValues(pattern.nnz(), 7);
    int turn = 0;
    for (const char* pipeline : {"row_segments(force)", "row_segments(force,panel=32,min_heavy=2)",
                                 "plain_sort > row_segments(force,panel=50,min_heavy=1)",
                                 "transpose > row_segments(force,min_heavy=3)"}) {
      const Layout layout =
          BuildLayout(ParsePipeline(pipeline).value(), pattern.view(), OnHeap()).value().layout;
      SCOPED_TRACE(pipeline);
      for (const int64_t k : {1, 8, 33, 100, 128, 257}) {
        for (const ElementType type : {ElementType::kF32, ElementType::kF64}) {
          for (const bool transposed : {false, true}) {
            ++turn;
            const DenseCase c = {.type = type,
                                 .k = k,
                                 .threads = 1 + turn % 4,
                                 .transposed = transposed,
                                 .alpha = turn % 3 == 0 ? -0.75 : 1,
                                 .beta = turn % 5 < 2 ? 1.5 : 0,
                                 .padding = turn % 4 == 1 ? 5 : 0,
                                 .offset = turn % 3 == 1 ? 1 : 0};
            SCOPED_TRACE(c);
            const bool flipped = transposed != layout.transposed;
            ExpectSpmm(flipped ? cpu::RowSegmentsTransposedSpmm() : cpu::RowSegmentsSpmm(), layout,
                       pattern, values, c);
          }
        }
      }
    }
  }
}

TEST(RowSegmentsKernels, GiveTheSameBitsForAnyTeam) {
  const Pattern pattern = Runs(5000, 2500, 45, 5);
  const std::vector<double> values = RandomValues(pattern.nnz(), 7);
  const Layout layout = Build(pattern, RandomOrder(pattern.rows, 5), {64, 4});
  for (const bool transposed : {false, true}) {
    const SpmmKernel kernel =
        transposed ? cpu::RowSegmentsTransposedSpmm() : cpu::RowSegmentsSpmm();
    DenseCase c = {.k = 40, .threads = 1, .transposed = transposed, .beta = 0.5};
    const std::string one = ExpectSpmm(kernel, layout, pattern, values, c);
    for (c.threads = 2; c.threads < 5; ++c.threads) {
      EXPECT_EQ(ExpectSpmm(kernel, layout, pattern, values, c), one);
    }
  }
}

TEST(RowSegmentsKernels, RefuseWhatTheyCannotDo) {
  const Pattern pattern = Band(10, 2);
  const Layout layout = Build(pattern, {}, {});
  const Problem spmm = {.k = 8};
  const Problem transposed = {.transposed = true, .k = 8};
  for (const SpmmKernel& kernel : {cpu::RowSegmentsSpmm(), cpu::RowSegmentsTransposedSpmm()}) {
    const bool is_transposed = kernel.name == "cpu.row_segments.scatter";
    EXPECT_EQ(kernel.supports(spmm, layout), !is_transposed);
    EXPECT_EQ(kernel.supports(transposed, layout), is_transposed);
    EXPECT_FALSE(kernel.supports({.operation = Operation::kSddmm, .k = 8}, layout));
    EXPECT_FALSE(
        kernel.supports({.transposed = is_transposed, .type = ElementType::kF16, .k = 8}, layout));
    EXPECT_FALSE(kernel.supports({.transposed = is_transposed, .k = 8}, PlainLayout(pattern)));
  }
}

TEST(RowSegmentsKernels, Stop) {
  const Pattern pattern = Runs(3000, 2500, 45, 6);
  const Layout layout = Build(pattern, {}, {});
  const std::atomic<bool> stop = true;
  std::vector<float> c(3000 * 8), b(3000 * 8), values(pattern.nnz());
  for (const bool transposed : {false, true}) {
    const SpmmKernel kernel =
        transposed ? cpu::RowSegmentsTransposedSpmm() : cpu::RowSegmentsSpmm();
    const Problem problem = {.transposed = transposed, .k = 8};
    std::vector<std::byte> workspace(kernel.workspace(problem, layout, 2));
    EXPECT_TRUE(absl::IsCancelled(
        kernel.run({.threads = 2, .workspace = workspace, .stop = &stop}, problem,
                   {layout,
                    values.data(),
                    {b.data(), transposed ? pattern.rows : pattern.cols, 8, 8},
                    {c.data(), transposed ? pattern.cols : pattern.rows, 8, 8}})));
  }
}

}  // namespace
}  // namespace sparsed::test
