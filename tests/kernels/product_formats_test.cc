// The layouts that SpGEMM's factors are read from hold exactly their pattern.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/formats/bcsr.h"
#include "kernels/formats/column_parts.h"
#include "kernels/formats/diagonals.h"
#include "kernels/formats/ell.h"
#include "kernels/formats/incsr.h"
#include "kernels/formats/product_format.h"
#include "kernels/formats/row_words.h"
#include "kernels/pipeline.h"
#include "tests/generate.h"
#include "tests/kernels/counting_memory.h"
#include "tests/kernels/dense_harness.h"
#include "tests/kernels/layout_testing.h"

namespace sparsed::test {
namespace {

/// A place in the matrix, and where its value is.
struct Entry {
  int64_t row, col, slot;
  friend auto operator<=>(const Entry&, const Entry&) = default;
};

std::vector<Entry> EntriesOfDiagonals(const Layout& layout) {
  const DiagonalsView view = ViewDiagonals(layout);
  constexpr int64_t kMargin = DiagonalsView::kMargin;
  EXPECT_TRUE(std::is_sorted(view.offsets.begin(), view.offsets.end()));
  EXPECT_EQ(view.row_masks.empty(), view.rows == 0 || view.count() > DiagonalsView::kMostMaskBits);
  std::vector<Entry> entries;
  for (int64_t d = 0; d < view.count(); ++d) {
    for (int64_t bit = 0; bit < view.words * 64; ++bit) {
      if ((view.present[d * view.words + bit / 64] >> (bit % 64) & 1) == 0) continue;
      const int64_t row = bit - kMargin;
      entries.push_back({row, row + view.offsets[d], d * view.stride + kMargin + row});
    }
  }
  for (int64_t row = 0; row < static_cast<int64_t>(view.row_masks.size()); ++row) {
    uint64_t mask = 0;
    for (const Entry& entry : entries) {
      if (entry.row == row) mask |= uint64_t{1} << (entry.slot / view.stride);
    }
    EXPECT_EQ(static_cast<uint64_t>(view.row_masks[row]), mask) << row;
  }
  return entries;
}

std::vector<Entry> EntriesOfEll(const Layout& layout) {
  const EllView view = ViewEll(layout);
  std::vector<Entry> entries;
  for (int64_t row = 0; row < view.rows; ++row) {
    const int64_t length = view.lengths.empty() ? view.width : view.lengths[row];
    for (int64_t j = 0; j < length; ++j) {
      const int64_t slot = layout.kind == kEll ? row * view.width + j : j * view.rows + row;
      entries.push_back({row, view.columns[slot], slot});
    }
  }
  return entries;
}

std::vector<Entry> EntriesOfBlocks(const Layout& layout) {
  const BcsrView view = ViewBcsr(layout);
  std::vector<Entry> entries;
  for (int64_t i = 0; i < view.block_rows(); ++i) {
    for (int64_t b = view.block_offsets[i]; b < view.block_offsets[i + 1]; ++b) {
      if (b > view.block_offsets[i]) {
        EXPECT_LT(view.block_columns[b - 1], view.block_columns[b]);
      }
      for (int64_t place = 0; place < 64; ++place) {
        if ((view.masks[b] >> place & 1) == 0) continue;
        const int64_t row = place / 8, col = place % 8;
        EXPECT_LT(row, view.shape.height);
        EXPECT_LT(col, view.shape.width);
        entries.push_back({i * view.shape.height + row,
                           view.block_columns[b] * view.shape.width + col,
                           (b * view.shape.height + row) * view.shape.width + col});
      }
    }
  }
  return entries;
}

std::vector<Entry> EntriesOfParts(const Layout& layout) {
  const ColumnPartsView view = ViewColumnParts(layout);
  std::vector<Entry> entries;
  for (int64_t part = 0; part < view.parts; ++part) {
    for (int64_t row = 0; row < view.rows; ++row) {
      for (int64_t i = view.offsets_of(part)[row]; i < view.offsets_of(part)[row + 1]; ++i) {
        EXPECT_EQ(view.column_indices[i] / view.width, part);
        entries.push_back({row, view.column_indices[i], i});
      }
    }
  }
  return entries;
}

std::vector<Entry> EntriesOfSections(const Layout& layout) {
  const IncsrView view = ViewIncsr(layout);
  const auto [columns, block] = view.shape;
  std::vector<Entry> entries;
  for (int64_t row = 0; row < view.rows; ++row) {
    int64_t at = view.block_offsets[row];
    for (int64_t i = view.section_offsets[row]; i < view.section_offsets[row + 1]; ++i) {
      EXPECT_NE(view.present[i], 0);
      for (int64_t begin = 0; begin < columns; begin += block) {
        bool any = false;
        for (int64_t lane = begin; lane < begin + block; ++lane) {
          if ((static_cast<uint32_t>(view.present[i]) >> lane & 1) == 0) continue;
          any = true;
          entries.push_back(
              {row, view.section_columns[i] * columns + lane, at * block + lane - begin});
        }
        at += any ? 1 : 0;
      }
    }
    EXPECT_EQ(at, view.block_offsets[row + 1]);
  }
  return entries;
}

struct Format {
  std::string pipeline;
  std::vector<Entry> (*entries)(const Layout&);
};

const Format kFormats[] = {
    {"dia", EntriesOfDiagonals},
    {"ell", EntriesOfEll},
    {"ellpack_r", EntriesOfEll},
    {"bcsr(width=2)", EntriesOfBlocks},
    {"bcsr(width=5)", EntriesOfBlocks},
    {"bcsr(width=8)", EntriesOfBlocks},
    {"bcsr(width=1,height=3)", EntriesOfBlocks},
    {"bcsr(width=2,height=1)", EntriesOfBlocks},
    {"bcsr(width=7,height=5)", EntriesOfBlocks},
    {"bcsr(width=1)", EntriesOfBlocks},
    {"bcsr(force)", EntriesOfBlocks},
    {"column_parts", EntriesOfParts},
    {"column_parts(parts=5)", EntriesOfParts},
    {"incsr(columns=8)", EntriesOfSections},
    {"incsr", EntriesOfSections},
    {"incsr(columns=32,block=4)", EntriesOfSections},
    {"incsr(columns=16,block=2)", EntriesOfSections},
    {"incsr(columns=32)", EntriesOfSections},
};

BuiltLayout Build(const std::string& pipeline, const Pattern& pattern,
                  const BuildContext& context) {
  absl::StatusOr<BuiltLayout> built =
      BuildLayout(*ParsePipeline(pipeline), pattern.view(), context);
  EXPECT_TRUE(built.ok()) << pipeline << ": " << built.status();
  return built.ok() ? *std::move(built) : BuiltLayout();
}

/// Each nonzero of the pattern once, and all else padding. `source`: the CSR nonzero that each of
/// the pattern's is, in the matrix that the layout was built from.
void ExpectHolds(const Layout& layout, const Format& format, const Pattern& pattern,
                 const std::vector<int64_t>& source) {
  std::vector<Entry> expected;
  for (int64_t row = 0; row < pattern.rows; ++row) {
    for (int64_t i = pattern.row_offsets[row]; i < pattern.row_offsets[row + 1]; ++i) {
      expected.push_back({row, pattern.column_indices[i], source.empty() ? i : source[i]});
    }
  }
  std::vector<Entry> held = format.entries(layout);
  std::vector<char> used(layout.value_slots);
  for (Entry& entry : held) {
    ASSERT_LT(entry.slot, layout.value_slots);
    EXPECT_EQ(used[entry.slot]++, 0);
    entry.slot = Source(layout, entry.slot);
  }
  std::sort(held.begin(), held.end());
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(held, expected);
  for (int64_t slot = 0; slot < layout.value_slots; ++slot) {
    if (used[slot] == 0) {
      ASSERT_EQ(Source(layout, slot), -1) << slot;
    }
  }
}

std::vector<NamedPattern> Patterns() {
  std::vector<NamedPattern> patterns = OddPatterns();
  patterns.push_back({"band", Band(300, 4)});
  patterns.push_back({"wide band", Band(100, 40)});
  patterns.push_back({"stencil", Stencil(30, 20)});
  patterns.push_back({"rmat", Rmat(9, 8, 2)});
  patterns.push_back({"even", Uniform(500, 300, 6, 3)});
  patterns.push_back({"long rows", Uniform(10, 3'000, 900, 4)});
  return patterns;
}

TEST(ProductFormats, HoldExactlyTheirPattern) {
  for (const Format& format : kFormats) {
    int suited = 0;
    for (const auto& [name, pattern] : Patterns()) {
      SCOPED_TRACE(format.pipeline + " of " + name);
      for (const int threads : {1, 3}) {
        const BuiltLayout built = Build(format.pipeline, pattern, OnHeap(threads));
        if (built.skipped) {
          EXPECT_FALSE(built.notes.empty());
          continue;
        }
        ++suited;
        EXPECT_EQ(built.layout.nnz, pattern.nnz());
        EXPECT_EQ(built.layout.rows, pattern.rows);
        EXPECT_EQ(built.layout.cols, pattern.cols);
        ExpectHolds(built.layout, format, pattern, {});
      }
    }
    EXPECT_GT(suited, 3) << format.pipeline;
  }
}

TEST(ProductFormats, OfATransposedMatrixSpeakOfTheOriginal) {
  const Pattern pattern = Band(200, 3);
  std::vector<int64_t> source;
  const Pattern transposed = Transpose(pattern, &source);
  for (const Format& format : kFormats) {
    SCOPED_TRACE(format.pipeline);
    const BuiltLayout built = Build("transpose > " + format.pipeline, pattern, OnHeap());
    if (built.skipped) continue;
    EXPECT_TRUE(built.layout.transposed);
    ExpectHolds(built.layout, format, transposed, source);
  }
}

TEST(ProductFormats, WordsHaveTheColumnsOfTheirRows) {
  for (const auto& [name, pattern] : Patterns()) {
    SCOPED_TRACE(name);
    const BuiltLayout built = Build("row_words", pattern, OnHeap(3));
    if (built.skipped) continue;
    EXPECT_EQ(built.layout.value_slots, 0) << "values are CSR's";
    const RowWordsView view = ViewRowWords(built.layout);
    std::vector<int32_t> columns;
    for (int64_t row = 0; row < pattern.rows; ++row) {
      for (int32_t i = view.word_offsets[row]; i < view.word_offsets[row + 1]; ++i) {
        for (int32_t bit = 0; bit < 32; ++bit) {
          if ((static_cast<uint32_t>(view.words[2 * i + 1]) >> bit & 1) == 0) continue;
          columns.push_back(view.words[2 * i] * 32 + bit);
        }
      }
      ASSERT_EQ(static_cast<int64_t>(columns.size()), pattern.row_offsets[row + 1]) << row;
    }
    EXPECT_EQ(columns, pattern.column_indices);
  }
}

TEST(ProductFormats, RefuseWhatTheyDoNotSuit) {
  // One full row.
  std::vector<std::vector<int32_t>> rows(3000, {0});
  rows[7].resize(3000);
  for (int32_t i = 0; i < 3000; ++i) rows[7][i] = i;
  const Pattern hub = FromRows(3000, rows), random = Uniform(3000, 3000, 5, 1);
  EXPECT_TRUE(Build("ell", hub, OnHeap()).skipped);
  EXPECT_TRUE(Build("ellpack_r", hub, OnHeap()).skipped);
  EXPECT_FALSE(Build("ell", random, OnHeap()).skipped);
  EXPECT_TRUE(Build("dia", random, OnHeap()).skipped);
  EXPECT_TRUE(Build("incsr", random, OnHeap()).skipped);
  EXPECT_FALSE(Build("incsr(columns=32,block=4)", random, OnHeap()).skipped);
  EXPECT_TRUE(Build("incsr(columns=24,block=8)", random, OnHeap()).skipped);
  EXPECT_TRUE(Build("incsr(columns=4,block=8)", random, OnHeap()).skipped);
  EXPECT_TRUE(Build("bcsr(width=4)", random, OnHeap()).skipped);
  EXPECT_TRUE(Build("row_words", random, OnHeap()).skipped);
  EXPECT_FALSE(Build("row_words", Band(300, 15), OnHeap()).skipped);
  // Column, value and where that comes from: 12 bytes for each of 14 places a row, 16 in CSR.
  rows.assign(3000, {0});
  rows[7].resize(14);
  for (int32_t i = 0; i < 14; ++i) rows[7][i] = i;
  EXPECT_TRUE(Build("ell", FromRows(3000, rows), OnHeap()).skipped);
  rows[7].resize(13);
  EXPECT_FALSE(Build("ell", FromRows(3000, rows), OnHeap()).skipped);
  // Before memory is taken for it.
  CountingMemory memory;
  EXPECT_TRUE(Build("column_parts(parts=64)", random, ContextWith(memory)).skipped);
  EXPECT_EQ(memory.peak(), 0);
  EXPECT_FALSE(Build("column_parts(parts=8)", random, OnHeap()).skipped);
  // They keep the order of rows.
  for (const Format& format : kFormats) {
    EXPECT_TRUE(Build("plain_sort > " + format.pipeline, Band(300, 4), OnHeap()).skipped);
  }
}

TEST(ProductFormats, TheWidthOfBlocksIsTheirs) {
  // Blocks of 3 x 3 side by side.
  std::vector<std::vector<int32_t>> rows(300);
  for (int32_t row = 0; row < 300; ++row) {
    for (int32_t col = row / 3 * 3; col < row / 3 * 3 + 3; ++col) rows[row].push_back(col);
  }
  const Pattern blocks = FromRows(300, rows), random = Uniform(300, 300, 3, 2);
  const auto width = [](std::vector<CsrView> patterns) {
    const absl::StatusOr<int64_t> chosen = ChooseBlockWidth(patterns, sizeof(float));
    return chosen.ok() ? *chosen : -1;
  };
  EXPECT_EQ(width({blocks.view()}), 3);
  EXPECT_EQ(width({blocks.view(), blocks.view()}), 3);
  EXPECT_EQ(width({blocks.view(), random.view()}), -1);
  EXPECT_EQ(width({FromRows(3, {{}, {}}).view()}), -1);
}

TEST(ProductFormats, WithoutMemoryOrWhenStoppedThereIsNone) {
  const Pattern pattern = Band(400, 20);
  std::vector<std::string> pipelines = {"row_words"};
  for (const Format& format : kFormats) pipelines.push_back(format.pipeline);
  for (const std::string& pipeline : pipelines) {
    SCOPED_TRACE(pipeline);
    CountingMemory unlimited;
    ASSERT_FALSE(Build(pipeline, pattern, ContextWith(unlimited)).skipped);
    EXPECT_EQ(unlimited.held(), 0);
    for (int64_t limit = 1; limit < unlimited.peak(); limit = limit * 5 / 4 + 64) {
      CountingMemory limited(limit);
      const auto built =
          BuildLayout(*ParsePipeline(pipeline), pattern.view(), ContextWith(limited));
      EXPECT_EQ(built.status().code(), absl::StatusCode::kResourceExhausted) << limit;
      EXPECT_EQ(limited.held(), 0);
    }
    const std::atomic<bool> stop = true;
    BuildContext context = OnHeap();
    context.stop = &stop;
    EXPECT_TRUE(
        absl::IsCancelled(BuildLayout(*ParsePipeline(pipeline), pattern.view(), context).status()));
  }
}

}  // namespace
}  // namespace sparsed::test
