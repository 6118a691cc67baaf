// Rows that are cut by nonzeros, and split by where their operand's rows lie.
#include "kernels/formats/row_split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <vector>

#include "kernels/formats/csr_build.h"
#include "kernels/formats/row_bounds.h"
#include "tests/generate.h"
#include "tests/kernels/dense_harness.h"
#include "tests/kernels/layout_testing.h"

namespace sparsed::test {
namespace {

/// Every nonzero of the rows is in one of the two, once, where it belongs.
void ExpectSplit(const CsrView& csr, RowRange rows, RowRange operand, const Array* source,
                 const RowSplit& split) {
  const CsrView own = ViewCsr(split.own), fetched = ViewCsr(split.fetched);
  const std::span<const int64_t> fetched_rows = split.fetched_rows.As<int64_t>();
  ASSERT_TRUE(ValidateCsr(own, 1).ok());
  ASSERT_TRUE(ValidateCsr(fetched, 1).ok());
  ASSERT_EQ(own.rows, rows.end - rows.begin);
  ASSERT_EQ(fetched.rows, own.rows);
  EXPECT_EQ(own.cols, operand.end - operand.begin);
  EXPECT_EQ(fetched.cols, static_cast<int64_t>(fetched_rows.size()));
  EXPECT_TRUE(std::ranges::is_sorted(fetched_rows));
  EXPECT_EQ(split.own_source.length, own.nnz());
  EXPECT_EQ(split.fetched_source.length, fetched.nnz());
  const auto at = [](const Array& of, int64_t i) -> int64_t {
    return of.type == ElementType::kI32 ? of.As<int32_t>()[i] : of.As<int64_t>()[i];
  };
  std::set<int64_t> named;
  for (int64_t row = 0; row < own.rows; ++row) {
    int64_t of_own = own.row_offsets[row], of_fetched = fetched.row_offsets[row];
    for (int64_t i = csr.row_offsets[rows.begin + row]; i < csr.row_offsets[rows.begin + row + 1];
         ++i) {
      const int64_t column = csr.column_indices[i];
      const int64_t from = source == nullptr ? i : at(*source, i);
      if (column >= operand.begin && column < operand.end) {
        ASSERT_LT(of_own, own.row_offsets[row + 1]);
        EXPECT_EQ(own.column_indices[of_own] + operand.begin, column);
        EXPECT_EQ(at(split.own_source, of_own++), from);
      } else {
        ASSERT_LT(of_fetched, fetched.row_offsets[row + 1]);
        EXPECT_EQ(fetched_rows[fetched.column_indices[of_fetched]], column);
        EXPECT_EQ(at(split.fetched_source, of_fetched++), from);
        named.insert(column);
      }
    }
    EXPECT_EQ(of_own, own.row_offsets[row + 1]);
    EXPECT_EQ(of_fetched, fetched.row_offsets[row + 1]);
  }
  EXPECT_EQ(named.size(), fetched_rows.size()) << "no row is fetched for nothing";
  BuildContext context;
  context.memory = &HeapMemory();
  const auto counted = CountFetched(csr, rows, operand, context);
  ASSERT_TRUE(counted.ok()) << counted.status();
  EXPECT_EQ(counted->rows, split.fetched_rows.length);
  EXPECT_EQ(counted->nonzeros, fetched.nnz());
}

TEST(RowSplit, HoldsEachNonzeroOnce) {
  for (const auto& [name, pattern] : OddPatterns()) {
    SCOPED_TRACE(name);
    const CsrView csr = pattern.view();
    absl::StatusOr<Layout> transposed = TransposeCsr(csr, OnHeap());
    ASSERT_TRUE(transposed.ok());
    const Array* const source = transposed->Find(kValueSource);
    for (const int64_t parts : {1, 2, 3}) {
      for (const bool of_transposed : {false, true}) {
        const CsrView of = of_transposed ? ViewCsr(*transposed) : csr;
        const std::vector<int64_t> bounds = RowBoundsByNonzeros(of, parts);
        for (int64_t part = 0; part < parts; ++part) {
          const RowRange rows{bounds[part], bounds[part + 1]};
          const RowRange operand{of.cols * part / parts, of.cols * (part + 1) / parts};
          const auto split =
              SplitRows(of, rows, operand, of_transposed ? source : nullptr, OnHeap());
          ASSERT_TRUE(split.ok()) << split.status();
          ExpectSplit(of, rows, operand, of_transposed ? source : nullptr, *split);
        }
      }
    }
  }
}

TEST(RowSplit, EndsWhereItIsStopped) {
  const Pattern pattern = Uniform(100, 100, 4, 1);
  std::atomic<bool> stop = true;
  BuildContext context = OnHeap();
  context.stop = &stop;
  EXPECT_TRUE(
      absl::IsCancelled(SplitRows(pattern.view(), {0, 50}, {0, 50}, nullptr, context).status()));
}

TEST(RowBounds, HaveAsManyNonzerosAndARowEach) {
  for (const auto& [name, pattern] : OddPatterns()) {
    SCOPED_TRACE(name);
    for (const int64_t parts : {1, 2, 3, 7}) {
      const std::vector<int64_t> bounds = RowBoundsByNonzeros(pattern.view(), parts);
      ASSERT_EQ(bounds.size(), static_cast<size_t>(parts) + 1);
      EXPECT_EQ(bounds.front(), 0);
      EXPECT_EQ(bounds.back(), pattern.rows);
      EXPECT_TRUE(std::ranges::is_sorted(bounds));
      for (int64_t part = 0; part < parts && pattern.rows >= parts; ++part) {
        EXPECT_LT(bounds[part], bounds[part + 1]);
      }
    }
  }
  // Rows of one nonzero, but the first of as many as all others.
  std::vector<std::pair<int32_t, int32_t>> entries;
  for (int32_t i = 0; i < 99; ++i) entries.emplace_back(0, i);
  for (int32_t row = 1; row < 100; ++row) entries.emplace_back(row, row);
  const Pattern skewed = FromCoordinates(100, 100, std::move(entries));
  EXPECT_EQ(RowBoundsByNonzeros(skewed.view(), 2), (std::vector<int64_t>{0, 1, 100}));
  EXPECT_EQ(RowBoundsByNonzeros(skewed.view(), 3), (std::vector<int64_t>{0, 1, 34, 100}));
}

}  // namespace
}  // namespace sparsed::test
