// Layouts in general, plain CSR and its validation, and the names of problems.
#include "kernels/formats/csr.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/formats/csr_build.h"
#include "kernels/kernel_table.h"
#include "kernels/pipeline.h"
#include "kernels/problem.h"
#include "tests/generate.h"

namespace sparsed::test {
namespace {

using ::testing::HasSubstr;

std::string Refusal(const Pattern& pattern) {
  std::string first;
  for (int threads = 1; threads <= 4; ++threads) {
    const absl::Status status = ValidateCsr(pattern.view(), threads);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    const std::string sentence(status.message());
    if (threads == 1) first = sentence;
    EXPECT_EQ(sentence, first) << "with " << threads << " threads";
  }
  return first;
}

TEST(ValidateCsr, AcceptsCanonicalPatterns) {
  for (const Pattern& pattern :
       {FromCoordinates(0, 0, {}), FromCoordinates(0, 5, {}), FromCoordinates(5, 0, {}),
        FromCoordinates(3, 3, {{1, 2}}), Band(100, 3), Rmat(8, 4, 1)}) {
    for (int threads = 0; threads <= 4; ++threads) {
      EXPECT_TRUE(ValidateCsr(pattern.view(), threads).ok());
    }
  }
}

TEST(ValidateCsr, NamesTheFirstWrongOffset) {
  Pattern pattern = Band(10, 1);
  pattern.row_offsets.pop_back();
  EXPECT_EQ(Refusal(pattern), "row_offsets has 10 elements, expected rows + 1 = 11");
  pattern = Band(10, 1);
  pattern.row_offsets[0] = 1;
  EXPECT_EQ(Refusal(pattern), "row_offsets[0] = 1, expected 0");
  pattern = Band(10, 1);
  pattern.row_offsets[4] = 2;
  pattern.row_offsets[7] = -5;
  EXPECT_THAT(Refusal(pattern), HasSubstr("row_offsets[4] = 2 is below row_offsets[3] = 8"));
  pattern = Band(10, 1);
  pattern.row_offsets[10] = 27;
  EXPECT_EQ(Refusal(pattern), "row_offsets[10] = 27, expected 28, the number of column indices");
  pattern = Band(10, 1);
  pattern.row_offsets[10] = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(Refusal(pattern), HasSubstr("expected 28"));
}

TEST(ValidateCsr, NamesTheFirstWrongColumn) {
  Pattern pattern = Band(10, 1);
  pattern.column_indices[13] = 10;
  pattern.column_indices[20] = -1;
  EXPECT_EQ(Refusal(pattern), "column_indices[13] = 10 in row 4 is out of range [0, 10)");
  pattern.column_indices[13] = -7;
  EXPECT_EQ(Refusal(pattern), "column_indices[13] = -7 in row 4 is out of range [0, 10)");
  pattern = Band(10, 1);
  pattern.column_indices[13] = pattern.column_indices[12];
  EXPECT_THAT(Refusal(pattern), HasSubstr("column_indices[13] = 4 in row 4 is a duplicate"));
  pattern = Band(10, 1);
  std::swap(pattern.column_indices[12], pattern.column_indices[13]);
  EXPECT_THAT(Refusal(pattern), HasSubstr("column_indices[13] = 4 in row 4 comes after 5"));
}

TEST(ValidateCsr, RefusesImpossibleSizes) {
  Pattern pattern = Band(10, 1);
  pattern.rows = -1;
  EXPECT_THAT(Refusal(pattern), HasSubstr("rows = -1 is out of range"));
  pattern.rows = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(Refusal(pattern), HasSubstr("rows = 9223372036854775807 is out of range"));
  pattern.rows = 10;
  pattern.cols = int64_t{1} << 31;
  EXPECT_THAT(Refusal(pattern), HasSubstr("cols = 2147483648 is out of range"));
}

TEST(Layout, FindsArraysAndParametersByName) {
  const Pattern pattern = Band(10, 1);
  Layout layout = PlainLayout(pattern);
  layout.parameters = {{"panel", 64}};
  EXPECT_EQ(layout.kind, "csr");
  EXPECT_EQ(layout.pipeline, "csr");
  EXPECT_EQ(layout.nnz, 28);
  EXPECT_EQ(layout.value_slots, 28);
  EXPECT_EQ(layout.bytes(), 11 * 8 + 28 * 4);
  ASSERT_NE(layout.Find("row_offsets"), nullptr);
  EXPECT_EQ(layout.Find("row_offsets")->length, 11);
  EXPECT_EQ(layout.Find("row_order"), nullptr);
  EXPECT_EQ(layout.Parameter("panel"), 64);
  EXPECT_EQ(layout.Parameter("min_dense"), -1);
  const CsrView view = ViewCsr(layout);
  EXPECT_EQ(view.rows, 10);
  EXPECT_EQ(view.nnz(), 28);
  EXPECT_TRUE(view.row_order.empty());
}

template <typename T, typename Index>
void ExpectPlaced(const std::vector<Index>& source, ElementType type) {
  Layout layout = PlainLayout(Band(10, 1));
  layout.value_slots = static_cast<int64_t>(source.size());
  layout.arrays.push_back(MakeArray(kValueSource, source));
  std::vector<T> values(28);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(0.1) * static_cast<T>(i);
  for (int threads = 1; threads <= 4; ++threads) {
    std::vector<T> slots(source.size(), std::numeric_limits<T>::quiet_NaN());
    PlaceValues(layout, type, values.data(), slots.data(), threads);
    for (size_t i = 0; i < source.size(); ++i) {
      EXPECT_EQ(slots[i], source[i] < 0 ? 0 : values[source[i]]) << i;
    }
  }
}

TEST(Layout, OfCsrKnowsItsLongestRow) {
  const Pattern pattern = FromRows(5, {{0}, {}, {1, 2, 4}, {1, 3}});
  BuildContext context;
  context.memory = &HeapMemory();
  EXPECT_EQ(CopyCsr(pattern.view(), context)->longest_row, 3);
  EXPECT_EQ(TransposeCsr(pattern.view(), context)->longest_row, 2);
  for (const std::string_view pipeline : {"csr", "plain_sort", "transpose"}) {
    const auto built = BuildLayout(ParsePipeline(pipeline).value(), pattern.view(), context);
    EXPECT_EQ(built->layout.longest_row, pipeline == "transpose" ? 2 : 3) << pipeline;
  }
  EXPECT_EQ(PlainLayout(FromRows(5, {})).longest_row, 0);
  // Wherever the arrays are: nothing is read of them.
  EXPECT_EQ(MakeCsrLayout(0, 5, {}, {}).longest_row, -1);
}

TEST(PlaceValues, FollowsTheSourceAndZeroesPadding) {
  std::vector<int32_t> source;
  for (int32_t i = 0; i < 28; ++i) {
    source.push_back((i * 11) % 28);
    if (i % 3 == 0) source.push_back(-1);
  }
  const std::vector<int64_t> wide(source.begin(), source.end());
  ExpectPlaced<float>(source, ElementType::kF32);
  ExpectPlaced<double>(source, ElementType::kF64);
  ExpectPlaced<float>(wide, ElementType::kF32);
  ExpectPlaced<double>(wide, ElementType::kF64);
}

TEST(PlaceValues, CopiesWithoutASource) {
  const Layout layout = PlainLayout(Band(10, 1));
  const std::vector<double> values = RandomValues(28, 1);
  std::vector<double> slots(28);
  PlaceValues(layout, ElementType::kF64, values.data(), slots.data(), 3);
  EXPECT_EQ(slots, values);
}

TEST(ProblemSignature, RoundsTheWidthUp) {
  const std::pair<int64_t, int32_t> expected[] = {
      {0, 1},   {1, 1},    {2, 8},      {8, 8},       {9, 16},       {33, 64},
      {64, 64}, {65, 128}, {513, 1024}, {1024, 1024}, {100000, 1024}};
  for (const auto& [k, bucket] : expected) {
    EXPECT_EQ(SignatureOf({.k = k}).k_bucket, bucket) << k;
  }
  EXPECT_EQ(SignatureOf({.operation = Operation::kSpgemm}).k_bucket, 0);
}

TEST(ProblemSignature, HasAText) {
  EXPECT_EQ(ToString(SignatureOf({.k = 100})), "spmm f32 k<=128 cpu");
  EXPECT_EQ(ToString(SignatureOf({.transposed = true, .type = ElementType::kF64, .k = 3})),
            "spmm^T f64 k<=8 cpu");
  EXPECT_EQ(ToString(SignatureOf({.k = 1})), "spmm f32 k<=1 cpu");
  EXPECT_EQ(ToString(SignatureOf({.operation = Operation::kSddmm, .k = 512})),
            "sddmm f32 k<=512 cpu");
  EXPECT_EQ(ToString(SignatureOf({.operation = Operation::kSpgemm})), "spgemm f32 cpu");
}

}  // namespace
}  // namespace sparsed::test
