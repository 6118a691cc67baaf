// Layout "coo_panels" lists exactly its pattern's nonzeros.
#include "kernels/formats/coo_panels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

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
  return BuildCooPanels(view, panel_rows, OnHeap()).value();
}

/// Every nonzero once, and in the promised order.
void ExpectHolds(const Layout& layout, const Pattern& pattern,
                 const std::vector<int32_t>& row_order, int64_t panel_rows) {
  const CooPanelsView s = ViewCooPanels(layout);
  ASSERT_EQ(layout.kind, kCooPanels);
  ASSERT_EQ(layout.value_slots, pattern.nnz());
  ASSERT_EQ(static_cast<int64_t>(s.entry_rows.size()), pattern.nnz());
  ASSERT_EQ(static_cast<int64_t>(s.entry_columns.size()), pattern.nnz());
  std::vector<int64_t> rank(pattern.rows);
  for (int64_t r = 0; r < pattern.rows; ++r) rank[row_order.empty() ? r : row_order[r]] = r;
  std::vector<char> seen(pattern.nnz());
  std::tuple<int64_t, int32_t, int64_t> last{-1, 0, 0};
  for (int64_t entry = 0; entry < pattern.nnz(); ++entry) {
    const int64_t nonzero = Source(layout, entry);
    const int64_t row = s.entry_rows[entry];
    ASSERT_TRUE(nonzero >= 0 && nonzero < pattern.nnz() && !seen[nonzero]);
    seen[nonzero] = 1;
    EXPECT_TRUE(pattern.row_offsets[row] <= nonzero && nonzero < pattern.row_offsets[row + 1]);
    EXPECT_EQ(s.entry_columns[entry], pattern.column_indices[nonzero]);
    const std::tuple place{rank[row] / panel_rows, s.entry_columns[entry], rank[row]};
    EXPECT_LT(last, place);
    last = place;
  }
}

TEST(CooPanels, ListExactlyTheirPattern) {
  std::vector<NamedPattern> patterns = OddPatterns();
  patterns.push_back({"clusters", ShuffledClusters(30, 16, 400, 36, 32, 3, 1)});
  patterns.push_back({"rmat", Rmat(9, 8, 2)});
  patterns.push_back({"wide rows", Uniform(10, 30'000, 9'000, 3)});
  for (const auto& [name, pattern] : patterns) {
    SCOPED_TRACE(name);
    for (const int64_t panel_rows : {1, 3, 64, 1'000'000}) {
      ExpectHolds(Build(pattern, {}, panel_rows), pattern, {}, panel_rows);
      const std::vector<int32_t> order = RandomOrder(pattern.rows, 5);
      ExpectHolds(Build(pattern, order, panel_rows), pattern, order, panel_rows);
    }
  }
}

TEST(CooPanels, HoldTheTranspose) {
  const Pattern pattern = Rmat(9, 8, 2);
  std::vector<int64_t> source;
  const Pattern transposed = Transpose(pattern, &source);
  const Layout expected = Build(transposed, {}, 16);
  const Layout layout =
      BuildLayout(ParsePipeline("transpose > coo_panels").value(), pattern.view(), OnHeap())
          .value()
          .layout;
  EXPECT_TRUE(layout.transposed);
  for (int64_t entry = 0; entry < pattern.nnz(); ++entry) {
    EXPECT_EQ(Source(layout, entry), source[Source(expected, entry)]);
  }
}

TEST(CooPanels, AreTheSameForAnyTeam) {
  const Pattern pattern = Rmat(15, 6, 2);
  const Layout one = BuildCooPanels(pattern.view(), 64, OnHeap(1)).value();
  const Layout three = BuildCooPanels(pattern.view(), 64, OnHeap(3)).value();
  ExpectSameArrays(one, three);
}

TEST(CooPanels, FollowThePipeline) {
  const Pattern pattern = Uniform(5000, 50'000, 8, 1);
  const auto build = [&](const char* pipeline) {
    return BuildLayout(ParsePipeline(pipeline).value(), pattern.view(), OnHeap()).value();
  };
  const BuiltLayout built = build("coo_panels");
  ASSERT_FALSE(built.skipped);
  EXPECT_EQ(built.layout.pipeline, "coo_panels(rows=16)");
  ExpectHolds(built.layout, pattern, {}, 16);
  ExpectHolds(build("coo_panels(rows=7)").layout, pattern, {}, 7);
}

/// The bound of a preparation: everything it holds at a time, the matrix included, is less than six
/// times the matrix (its f32 CSR).
TEST(CooPanels, PeakIsLessThanSixTimesTheMatrix) {
  for (const Pattern& pattern : {PowerLaw(100'000, 1'000'000, 2.5, 1), Stencil(300, 300),
                                 Band(50'000, 8), Uniform(60'000, 60'000, 10, 4)}) {
    CountingMemory memory;
    BuildContext context = OnHeap();
    context.memory = &memory;
    ASSERT_TRUE(BuildLayout(ParsePipeline("coo_panels").value(), pattern.view(), context).ok());
    const int64_t csr = pattern.nnz() * 8 + (pattern.rows + 1) * 8;
    EXPECT_LT(csr + memory.peak(), 6 * csr) << pattern.rows << " rows";
  }
}

}  // namespace
}  // namespace sparsed::test
