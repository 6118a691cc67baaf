// Layout "row_panels" holds exactly its pattern.
#include "kernels/formats/row_panels.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/pipeline.h"
#include "tests/generate.h"
#include "tests/kernels/counting_memory.h"
#include "tests/kernels/dense_harness.h"
#include "tests/kernels/layout_testing.h"

namespace sparsed::test {
namespace {

Layout Build(const Pattern& pattern, const std::vector<int32_t>& row_order, int64_t panel_rows) {
  CsrView view = pattern.view();
  view.row_order = row_order;
  return BuildRowPanels(view, panel_rows, OnHeap()).value();
}

/// Read back row by row, the panels are the pattern's CSR.
void ExpectHolds(const Layout& layout, const Pattern& pattern, int64_t panel_rows) {
  const RowPanelsView s = ViewRowPanels(layout);
  ASSERT_EQ(layout.kind, kRowPanels);
  ASSERT_EQ(s.panel_rows, panel_rows);
  ASSERT_EQ(s.panels(), (pattern.rows + panel_rows - 1) / panel_rows);
  ASSERT_EQ(s.panel_offsets.front(), 0);
  ASSERT_EQ(s.panel_offsets.back(), s.slots());
  ASSERT_EQ(s.row_masks.size(), s.panel_columns.size());
  ASSERT_EQ(layout.value_slots, s.slots() * panel_rows);
  std::vector<int32_t> long_panels;
  for (int64_t panel = 0; panel < s.panels(); ++panel) {
    const int64_t begin = s.panel_offsets[panel], end = s.panel_offsets[panel + 1];
    if (end - begin > s.long_slots) long_panels.push_back(static_cast<int32_t>(panel));
    for (int64_t slot = begin; slot < end; ++slot) {
      EXPECT_NE(s.row_masks[slot], 0) << "a slot that no row uses";
      if (slot > begin) {
        EXPECT_LT(s.panel_columns[slot - 1], s.panel_columns[slot]);
      }
    }
    for (int64_t i = 0; i < panel_rows; ++i) {
      const int64_t r = panel * panel_rows + i;
      int64_t nonzero = r < s.rows ? pattern.row_offsets[s.MatrixRow(r)] : 0;
      for (int64_t slot = begin; slot < end; ++slot) {
        const bool used = (static_cast<uint32_t>(s.row_masks[slot]) >> i & 1) != 0;
        if (!used) {
          EXPECT_EQ(Source(layout, slot * panel_rows + i), -1);
          continue;
        }
        ASSERT_LT(r, s.rows);
        EXPECT_EQ(Source(layout, slot * panel_rows + i), nonzero);
        ASSERT_LT(nonzero, pattern.row_offsets[s.MatrixRow(r) + 1]);
        EXPECT_EQ(s.panel_columns[slot], pattern.column_indices[nonzero]);
        ++nonzero;
      }
      if (r < s.rows) {
        EXPECT_EQ(nonzero, pattern.row_offsets[s.MatrixRow(r) + 1]);
      }
    }
  }
  EXPECT_TRUE(std::ranges::equal(long_panels, s.long_panels));
}

TEST(RowPanels, HoldExactlyTheirPattern) {
  std::vector<NamedPattern> patterns = OddPatterns();
  patterns.push_back({"clusters", ShuffledClusters(30, 16, 400, 36, 32, 3, 1)});
  patterns.push_back({"rmat", Rmat(9, 8, 2)});
  patterns.push_back({"wide rows", Uniform(10, 30'000, 9'000, 3)});
  for (const auto& [name, pattern] : patterns) {
    SCOPED_TRACE(name);
    for (const int64_t panel_rows : {1, 3, 8, 32}) {
      ExpectHolds(Build(pattern, {}, panel_rows), pattern, panel_rows);
      ExpectHolds(Build(pattern, RandomOrder(pattern.rows, 5), panel_rows), pattern, panel_rows);
    }
  }
}

TEST(RowPanels, PlaceValuesAndZeros) {
  const Pattern pattern = Rmat(9, 8, 2);
  const Layout layout = Build(pattern, RandomOrder(pattern.rows, 5), 8);
  std::vector<double> values(pattern.nnz()), slots(layout.value_slots, -1);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i) + 1;
  PlaceValues(layout, ElementType::kF64, values.data(), slots.data(), 2);
  for (int64_t slot = 0; slot < layout.value_slots; ++slot) {
    EXPECT_EQ(slots[slot], static_cast<double>(Source(layout, slot) + 1));
  }
}

TEST(RowPanels, HoldTheTranspose) {
  const Pattern pattern = Rmat(9, 8, 2);
  std::vector<int64_t> source;
  const Pattern transposed = Transpose(pattern, &source);
  const Layout expected = Build(transposed, {}, 8);
  const Layout layout =
      BuildLayout(ParsePipeline("transpose > row_panels(force)").value(), pattern.view(), OnHeap())
          .value()
          .layout;
  EXPECT_TRUE(layout.transposed);
  ASSERT_EQ(layout.value_slots, expected.value_slots);
  for (int64_t slot = 0; slot < layout.value_slots; ++slot) {
    const int64_t nonzero = Source(expected, slot);
    EXPECT_EQ(Source(layout, slot), nonzero < 0 ? -1 : source[nonzero]);
  }
}

TEST(RowPanels, AreTheSameForAnyTeam) {
  const Pattern pattern = Rmat(15, 6, 2);
  const Layout one = BuildRowPanels(pattern.view(), 8, OnHeap(1)).value();
  const Layout three = BuildRowPanels(pattern.view(), 8, OnHeap(3)).value();
  ExpectSameArrays(one, three);
}

TEST(RowPanels, AreSkippedWhereRowsShareNothing) {
  const Pattern shared = Band(500, 8), scattered = Uniform(5000, 50'000, 8, 1);
  const auto build = [](const char* pipeline, const Pattern& pattern) {
    return BuildLayout(ParsePipeline(pipeline).value(), pattern.view(), OnHeap()).value();
  };
  const BuiltLayout of_shared = build("row_panels", shared);
  EXPECT_FALSE(of_shared.skipped) << of_shared.notes;
  EXPECT_EQ(of_shared.layout.pipeline, "row_panels(rows=8)");
  EXPECT_TRUE(build("row_panels", scattered).skipped);
  const BuiltLayout forced = build("row_panels(force)", scattered);
  EXPECT_FALSE(forced.skipped);
  ExpectHolds(forced.layout, scattered, 8);
}

TEST(RowPanels, RecoverShuffledClusters) {
  const Pattern pattern = ShuffledClusters(1000, 16, 20'000, 36, 32, 3, 1);
  const auto built =
      BuildLayout(ParsePipeline("lsh_cluster > row_panels").value(), pattern.view(), OnHeap());
  ASSERT_TRUE(built.ok()) << built.status();
  ASSERT_FALSE(built->skipped) << built->notes;
  ExpectHolds(built->layout, pattern, 8);
  EXPECT_GT(static_cast<double>(pattern.nnz()) /
                static_cast<double>(ViewRowPanels(built->layout).slots()),
            2.5);
}

/// The bound of a preparation: everything it holds at a time, the matrix included, is less than six
/// times the matrix (its f32 CSR).
TEST(RowPanels, PeakIsLessThanSixTimesTheMatrix) {
  for (const Pattern& pattern : {PowerLaw(100'000, 1'000'000, 2.5, 1), Stencil(300, 300),
                                 Band(50'000, 8), Uniform(60'000, 60'000, 10, 4)}) {
    for (const char* pipeline : {"row_panels", "group_rows > row_panels"}) {
      CountingMemory memory;
      BuildContext context = OnHeap();
      context.memory = &memory;
      ASSERT_TRUE(BuildLayout(ParsePipeline(pipeline).value(), pattern.view(), context).ok());
      const int64_t csr = pattern.nnz() * 8 + (pattern.rows + 1) * 8;
      EXPECT_LT(csr + memory.peak(), 6 * csr) << pattern.rows << " rows, " << pipeline;
    }
  }
}

}  // namespace
}  // namespace sparsed::test
