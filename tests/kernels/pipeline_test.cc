// Pipelines: their text, the layouts they make, the skip rules, stopping and memory.
#include "kernels/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>

#include "kernels/formats/aspt.h"
#include "kernels/pipeline_steps.h"
#include "tests/generate.h"
#include "tests/kernels/counting_memory.h"
#include "tests/kernels/layout_testing.h"

namespace sparsed::test {
namespace {

using testing::HasSubstr;
using testing::Not;

absl::StatusOr<BuiltLayout> Build(std::string_view text, const Pattern& pattern,
                                  const BuildContext& context) {
  const auto pipeline = ParsePipeline(text);
  if (!pipeline.ok()) return pipeline.status();
  return BuildLayout(*pipeline, pattern.view(), context);
}

BuiltLayout Built(std::string_view text, const Pattern& pattern) {
  auto built = Build(text, pattern, OnHeap());
  EXPECT_TRUE(built.ok()) << built.status();
  return built.ok() ? *std::move(built) : BuiltLayout();
}

std::string Canonical(std::string_view text) { return ToString(ParsePipeline(text).value()); }

constexpr std::string_view kReordered = "lsh_cluster > aspt > lsh_cluster(remainder)";

TEST(Pipeline, CanonicalTextSpellsEverythingOut) {
  EXPECT_EQ(Canonical("csr"), "csr");
  EXPECT_EQ(Canonical(" csr( ) "), "csr");
  EXPECT_EQ(Canonical("transpose"), "transpose");
  EXPECT_EQ(Canonical("lsh_cluster"), "lsh_cluster(siglen=128,bsize=2,max_cluster=256)");
  EXPECT_EQ(Canonical(kReordered),
            "lsh_cluster(siglen=128,bsize=2,max_cluster=256) > aspt(panel=64,min_dense=2) > "
            "lsh_cluster(remainder,siglen=128,bsize=2,max_cluster=256)");
  EXPECT_EQ(Canonical("transpose>lsh_cluster( max_cluster=16 ,force)>aspt(min_dense=3)"),
            "transpose > lsh_cluster(force,siglen=128,bsize=2,max_cluster=16) > "
            "aspt(panel=64,min_dense=3)");
  EXPECT_EQ(Canonical(Canonical(kReordered)), Canonical(kReordered));
  // Square blocks are what they were called before there were others.
  EXPECT_EQ(Canonical("bcsr(width=3)"), "bcsr(width=3)");
  EXPECT_EQ(Canonical("bcsr(height=3,width=3)"), "bcsr(width=3)");
  EXPECT_EQ(Canonical("bcsr(height=3,width=1)"), "bcsr(width=1,height=3)");
  EXPECT_EQ(Canonical("bcsr"), "bcsr(width=0)");
}

TEST(Pipeline, ErrorsSayWhatIsWrongAndWhatIsKnown) {
  const struct {
    std::string_view text, message;
  } cases[] = {
      {"", "expected the name of a step at position 0, found the end"},
      {"csr >", "expected the name of a step at position 5, found the end"},
      {"hyb",
       "unknown step 'hyb'; known: csr, transpose, lsh_cluster, breadth_first, group_rows, "
       "plain_sort, "
       "flipped_sort, lpt_sort, warp_sort, cta_sort, hybrid1_sort, hybrid21_sort, hybrid22_sort, "
       "hybrid23_sort, aspt, row_panels, coo_panels, dcsr, row_segments, dia, ell, ellpack_r, "
       "bcsr, "
       "row_words, column_parts, incsr"},
      {"csr csr", "expected '>' or the end at position 4, found 'csr'"},
      {"aspt(panel=64", "expected ',' or ')' at position 13, found the end"},
      {"aspt(,)", "expected a parameter or flag at position 5, found ',)'"},
      {"aspt(width=3)", "aspt has no option 'width'; known: min_dense, panel"},
      {"aspt(width=0)", "aspt has no option 'width'"},
      {"csr(panel=3)", "csr has no option 'panel'; known: none"},
      {"aspt(panel=0)", "aspt: panel = 0 is out of range [1, 2147483647]"},
      {"aspt(panel=-3)", "aspt: panel = -3 is out of range"},
      {"aspt(panel=99999999999999999999)", "'99999999999999999999' is not a 64-bit integer"},
      {"aspt(panel=)", "aspt: panel = '' is not a 64-bit integer"},
      {"aspt(panel=4x)", "aspt: panel = '4x' is not a 64-bit integer"},
      {"aspt(panel=4,panel=5)", "aspt: panel is given twice"},
      {"lsh_cluster(force=2)", "lsh_cluster: force is a flag and has no value"},
      {"lsh_cluster(siglen=127)", "siglen = 127 is not a multiple of bsize = 2"},
      {"lsh_cluster(bsize=0)", "bsize = 0 is out of range [1, 16]"},
      {"bcsr(width=9)", "bcsr: width = 9 is out of range [0, 8]"},
      {"bcsr(width=2,height=9)", "bcsr: height = 9 is out of range [1, 8]"},
      {"bcsr(width=2,height=0)", "bcsr: height = 0 is out of range [1, 8]"},
      {"bcsr(height=3)", "bcsr: height = 3 needs a width"},
      {"bcsr(rows=3)", "bcsr has no option 'rows'; known: force, height, width"},
      {"csr > aspt", "csr stands alone"},
      {"aspt > csr", "csr stands alone"},
      {"aspt > lsh_cluster", "lsh_cluster cannot follow aspt"},
      {"aspt > aspt", "aspt cannot follow aspt"},
      {"aspt > transpose", "transpose cannot follow aspt"},
      {"lsh_cluster(remainder)",
       "lsh_cluster(remainder) must follow a step that leaves a remainder"},
      {"lsh_cluster > lsh_cluster(remainder)", "must follow a step that leaves a remainder: aspt"},
  };
  for (const auto& [text, message] : cases) {
    const auto pipeline = ParsePipeline(text);
    ASSERT_FALSE(pipeline.ok()) << text;
    EXPECT_TRUE(absl::IsInvalidArgument(pipeline.status())) << text;
    EXPECT_THAT(std::string(pipeline.status().message()), HasSubstr(std::string(message))) << text;
  }
}

TEST(Pipeline, ForcesTheStepsThatKnowOfIt) {
  const auto forced = [](std::string_view text) {
    return ToString(Forced(ParsePipeline(text).value()));
  };
  EXPECT_EQ(forced("transpose > row_panels"), Canonical("transpose > row_panels(force)"));
  EXPECT_EQ(forced("lsh_cluster(force) > aspt > lsh_cluster(remainder)"),
            Canonical("lsh_cluster(force) > aspt > lsh_cluster(remainder,force)"));
  EXPECT_EQ(forced("plain_sort"), Canonical("plain_sort"));
}

TEST(Pipeline, BuilderChecksPipelinesMadeByHand) {
  const Pattern pattern = Band(20, 2);
  EXPECT_TRUE(
      absl::IsInvalidArgument(BuildLayout({{{"hyb", {}}}}, pattern.view(), OnHeap()).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      BuildLayout({{{"aspt", {{"panel", 0}}}}}, pattern.view(), OnHeap()).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(BuildLayout({}, pattern.view(), OnHeap()).status()));
  const auto built = BuildLayout({{{"aspt", {}}}}, pattern.view(), OnHeap());
  ASSERT_TRUE(built.ok());
  EXPECT_EQ(built->layout.pipeline, "aspt(panel=64,min_dense=2)");
}

/// The layout, a "csr" one, holds the pattern's nonzeros where value_source says.
void ExpectCsrHolds(const Layout& layout, const Pattern& pattern) {
  const CsrView view = ViewCsr(layout);
  const Pattern base = layout.transposed ? Transpose(pattern) : pattern;
  ASSERT_EQ(view.rows, base.rows);
  ASSERT_EQ(view.cols, base.cols);
  ASSERT_EQ(view.nnz(), base.nnz());
  ASSERT_TRUE(
      ValidateCsr({view.rows, view.cols, view.row_offsets, view.column_indices, {}}, 1).ok());
  const Array* source = layout.Find(kValueSource);
  std::vector<int32_t> row_of(pattern.nnz());
  for (int64_t row = 0; row < pattern.rows; ++row) {
    for (int64_t p = pattern.row_offsets[row]; p < pattern.row_offsets[row + 1]; ++p) {
      row_of[p] = static_cast<int32_t>(row);
    }
  }
  std::vector<bool> seen(pattern.nnz(), false);
  for (int64_t r = 0; r < view.rows; ++r) {
    const int64_t row = view.row_order.empty() ? r : view.row_order[r];
    for (int64_t slot = view.row_offsets[r]; slot < view.row_offsets[r + 1]; ++slot) {
      const int64_t p = source == nullptr ? slot : source->As<int32_t>()[slot];
      ASSERT_FALSE(seen[p]);
      seen[p] = true;
      EXPECT_EQ(layout.transposed ? row_of[p] : pattern.column_indices[p],
                view.column_indices[slot]);
      EXPECT_EQ(layout.transposed ? pattern.column_indices[p] : row_of[p], row);
    }
  }
}

TEST(BuildLayout, PlainTransposedAndPermutedCsr) {
  const std::vector<Pattern> patterns = {
      FromCoordinates(0, 0, {}), FromCoordinates(3, 0, {}),      FromCoordinates(0, 3, {}),
      Uniform(1, 50, 20, 1),     Uniform(9000, 1, 1, 1),         Rmat(13, 6, 2),
      Uniform(300, 7000, 30, 2), FromCoordinates(5, 5, {{4, 0}})};
  for (const Pattern& pattern : patterns) {
    const BuiltLayout plain = Built("csr", pattern);
    EXPECT_EQ(plain.layout.pipeline, "csr");
    EXPECT_EQ(plain.layout.Find(kValueSource), nullptr);
    ExpectCsrHolds(plain.layout, pattern);
    for (const int threads : {1, 2, 5}) {
      const auto transposed = Build("transpose", pattern, OnHeap(threads));
      ASSERT_TRUE(transposed.ok());
      EXPECT_TRUE(transposed->layout.transposed);
      ExpectCsrHolds(transposed->layout, pattern);
    }
  }
  const Pattern clusters = ShuffledClusters(60, 16, 3000, 36, 32, 3, 1);
  for (const std::string_view text : {"lsh_cluster", "transpose > lsh_cluster(force)"}) {
    const BuiltLayout permuted = Built(text, clusters);
    ASSERT_FALSE(permuted.skipped) << permuted.notes;
    EXPECT_NE(permuted.layout.Find("row_order"), nullptr);
    EXPECT_EQ(permuted.layout.pipeline, Canonical(text));
    ExpectCsrHolds(permuted.layout, clusters);
  }
}

TEST(BuildLayout, FirstRoundIsSkippedWhereTilesAreDense) {
  const BuiltLayout clustered = Built(kReordered, Band(3000, 8));
  EXPECT_THAT(clustered.notes, HasSubstr("> 0.10: first round skipped"));
  ASSERT_FALSE(clustered.skipped);
  EXPECT_EQ(clustered.layout.Find("row_order"), nullptr);

  const BuiltLayout shuffled = Built(kReordered, ShuffledClusters(300, 16, 50'000, 20, 12, 2, 1));
  EXPECT_THAT(shuffled.notes, HasSubstr("<= 0.10: first round needed"));
  ASSERT_FALSE(shuffled.skipped);
  EXPECT_NE(shuffled.layout.Find("row_order"), nullptr);

  const BuiltLayout forced =
      Built("lsh_cluster(force) > aspt", ShuffledClusters(40, 16, 2000, 36, 32, 3, 1));
  EXPECT_THAT(forced.notes, HasSubstr("first round skipped"));
  EXPECT_NE(forced.layout.Find("row_order"), nullptr);
}

TEST(BuildLayout, SecondRoundIsSkippedWhereTheRemainderIsClustered) {
  // A tile column for every pair of rows, and a remainder whose consecutive rows in different
  // panels share nothing: panel = 2 and three equal rows in a row leave similar remainders.
  const Pattern band = Band(3000, 8);
  const BuiltLayout skipped = Built("aspt(panel=2,min_dense=3) > lsh_cluster(remainder)", band);
  EXPECT_TRUE(skipped.skipped);
  EXPECT_THAT(skipped.notes, HasSubstr("0 of"));

  std::vector<std::pair<int32_t, int32_t>> coordinates;
  for (int32_t row = 0; row < 1000; ++row) {
    coordinates.emplace_back(row, 0);                  // dense in every panel
    coordinates.emplace_back(row, 1 + (row + 1) / 2);  // shared by rows of neighbouring panels
  }
  const Pattern pairs = FromCoordinates(1000, 600, coordinates);
  const BuiltLayout clustered = Built("aspt(panel=2) > lsh_cluster(remainder)", pairs);
  ASSERT_FALSE(clustered.skipped);
  EXPECT_THAT(clustered.notes, HasSubstr("> 0.10: second round skipped"));
  EXPECT_EQ(clustered.layout.Find("remainder_order"), nullptr);
  const BuiltLayout forced = Built("aspt(panel=2) > lsh_cluster(remainder,force)", pairs);
  EXPECT_NE(forced.layout.Find("remainder_order"), nullptr);

  const BuiltLayout needed = Built(kReordered, ShuffledClusters(300, 16, 50'000, 20, 12, 2, 1));
  EXPECT_THAT(needed.notes, HasSubstr("<= 0.10: second round needed"));
}

TEST(BuildLayout, NothingToGainIsSkippedWithTheReason) {
  const Pattern diagonal = Band(2000, 0);
  const BuiltLayout scattered = Built("lsh_cluster", diagonal);
  EXPECT_TRUE(scattered.skipped);
  EXPECT_THAT(scattered.notes, HasSubstr("0 candidate pairs for 2000 rows of the matrix, too few"));
  const BuiltLayout clustered = Built("lsh_cluster", Band(2000, 8));
  EXPECT_TRUE(clustered.skipped);
  EXPECT_THAT(clustered.notes, HasSubstr("> 0.10: reordering skipped"));
  const BuiltLayout tiles = Built(kReordered, diagonal);
  EXPECT_TRUE(tiles.skipped);
  EXPECT_THAT(tiles.notes, HasSubstr("0 of 2000 nonzeros (0.000) in dense tiles: tiling skipped"));
  for (const Pattern& empty : {FromCoordinates(0, 0, {}), FromCoordinates(70, 70, {})}) {
    EXPECT_TRUE(Built("lsh_cluster", empty).skipped);
    EXPECT_TRUE(Built(kReordered, empty).skipped);
  }
}

TEST(BuildLayout, ShuffledClustersAreRecovered) {
  const Pattern pattern = ShuffledClusters(1000, 16, 20'000, 36, 32, 3, 1);
  const auto dense_share = [&](std::string_view text) {
    const BuiltLayout built = Built(text, pattern);
    EXPECT_FALSE(built.skipped) << built.notes;
    return static_cast<double>(ViewAspt(built.layout).dense_nnz()) /
           static_cast<double>(pattern.nnz());
  };
  EXPECT_LT(dense_share("aspt"), 0.1);
  EXPECT_GT(dense_share(kReordered), 0.8);
}

TEST(BuildLayout, StopsAtEveryStage) {
  const Pattern pattern = ShuffledClusters(400, 16, 20'000, 36, 32, 3, 1);
  for (const std::string_view text :
       {"csr", "transpose", "lsh_cluster", "breadth_first", "group_rows", "aspt", "row_panels",
        "coo_panels", "dcsr", "row_segments", kReordered.data()}) {
    CountingMemory memory;
    BuildContext context = ContextWith(memory);
    const std::atomic<bool> stopped = true;
    context.stop = &stopped;
    EXPECT_TRUE(absl::IsCancelled(Build(text, pattern, context).status())) << text;
    EXPECT_EQ(memory.held(), 0);
  }
  // Stopped at the n-th report, for every n.
  int64_t reports = 0;
  for (int64_t at = 0; at == 0 || at <= reports; ++at) {
    CountingMemory memory;
    BuildContext context = ContextWith(memory);
    std::atomic<bool> stop = false;
    context.stop = &stop;
    int64_t seen = 0;
    context.progress = [&](std::string_view, int64_t, int64_t) { stop = ++seen == at || stop; };
    const auto built = Build(kReordered, pattern, context);
    if (at == 0) {
      ASSERT_TRUE(built.ok());
      reports = seen;
      EXPECT_GT(reports, 10);
    } else {
      EXPECT_TRUE(absl::IsCancelled(built.status())) << at;
      EXPECT_EQ(memory.held(), 0);
    }
  }
}

TEST(BuildLayout, RunsOutOfMemoryWithoutLeaks) {
  const Pattern pattern = ShuffledClusters(100, 16, 3000, 36, 32, 3, 1);
  for (const std::string_view text :
       {"csr", "transpose", "lsh_cluster", "aspt", "transpose > lsh_cluster(force) > aspt",
        "lsh_cluster > row_panels", "breadth_first", "group_rows > row_panels",
        "transpose > row_panels(force)", "transpose > coo_panels", "transpose > plain_sort > dcsr",
        "plain_sort > row_segments(force,min_heavy=1)",
        "lsh_cluster(force) > aspt > lsh_cluster(remainder,force)"}) {
    CountingMemory unlimited;
    int64_t result_bytes = 0;
    {
      const auto built = Build(text, pattern, ContextWith(unlimited));
      ASSERT_TRUE(built.ok()) << built.status();
      ASSERT_FALSE(built->skipped) << built->notes;
      result_bytes = built->layout.bytes();
      EXPECT_EQ(unlimited.held(), result_bytes) << "all scratch is freed: " << text;
    }
    EXPECT_EQ(unlimited.held(), 0);
    for (int64_t tenth = 0; tenth < 10; ++tenth) {
      CountingMemory limited(unlimited.peak() * tenth / 10);
      const auto built = Build(text, pattern, ContextWith(limited));
      EXPECT_TRUE(absl::IsResourceExhausted(built.status())) << text << " " << tenth;
      EXPECT_EQ(limited.held(), 0);
    }
  }
}

/// The bound of a preparation: everything it holds at a time, the matrix included, is less than six
/// times the matrix (its f32 CSR). Counters, not measurements, so the size can be small.
TEST(BuildLayout, PeakIsLessThanSixTimesTheMatrix) {
  for (const Pattern& pattern :
       {PowerLaw(100'000, 1'000'000, 2.5, 1), Rmat(16, 10, 2),
        ShuffledClusters(4000, 16, 50'000, 20, 12, 2, 3), Uniform(60'000, 60'000, 10, 4)}) {
    for (const int threads : {1, 2, 8}) {
      CountingMemory memory;
      const auto built = Build("lsh_cluster(force) > aspt > lsh_cluster(remainder,force)", pattern,
                               ContextWith(memory, threads));
      ASSERT_TRUE(built.ok());
      const int64_t csr = pattern.nnz() * 8 + (pattern.rows + 1) * 8;
      const double ratio = static_cast<double>(csr + memory.peak()) / static_cast<double>(csr);
      EXPECT_LT(ratio, 6) << pattern.rows << " rows, " << threads << " threads";
    }
  }
}

}  // namespace
}  // namespace sparsed::test
