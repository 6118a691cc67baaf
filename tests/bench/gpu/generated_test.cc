// The generated matrices are what their names stand for, whoever makes them.
#include "tests/bench/gpu/generated.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

namespace sparsed::test {
namespace {

void ExpectSame(const Pattern& a, const Pattern& b) {
  EXPECT_EQ(a.rows, b.rows);
  EXPECT_EQ(a.cols, b.cols);
  EXPECT_TRUE(a.row_offsets == b.row_offsets);
  EXPECT_TRUE(a.column_indices == b.column_indices);
}

std::vector<int64_t> Lengths(const Pattern& pattern) {
  std::vector<int64_t> lengths;
  for (int64_t row = 0; row < pattern.rows; ++row) {
    lengths.push_back(pattern.row_offsets[row + 1] - pattern.row_offsets[row]);
  }
  return lengths;
}

class GeneratedMatrix : public testing::TestWithParam<std::string> {};

TEST_P(GeneratedMatrix, IsCanonicalAndTheSameForAnyNumberOfThreads) {
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  const Pattern alone = Generated(GetParam()).value();
  omp_set_num_threads(3);
  const Pattern pattern = Generated(GetParam()).value();
  omp_set_num_threads(threads);
  ExpectSame(alone, pattern);
  ASSERT_EQ(static_cast<int64_t>(pattern.row_offsets.size()), pattern.rows + 1);
  ASSERT_EQ(pattern.row_offsets.back(), pattern.nnz());
  int64_t wrong = 0;
  for (int64_t row = 0; row < pattern.rows; ++row) {
    for (int64_t p = pattern.row_offsets[row]; p < pattern.row_offsets[row + 1]; ++p) {
      const int32_t before = p == pattern.row_offsets[row] ? -1 : pattern.column_indices[p - 1];
      wrong += pattern.column_indices[p] <= before || pattern.column_indices[p] >= pattern.cols;
    }
  }
  EXPECT_EQ(wrong, 0);
}

std::vector<std::string> QuickNames() {
  std::vector<std::string> names = GeneratedNames();
  std::erase(names, "rmat20");   // as rmat18, four times as large
  std::erase(names, "bperm1m");  // as bperm
  for (const char* const half : {"47", "63", "79", "95", "111"}) {  // as bw15
    std::erase(names, fmt::format("bw{}", half));
    std::erase(names, fmt::format("bw{}r", half));
  }
  return names;
}
INSTANTIATE_TEST_SUITE_P(All, GeneratedMatrix, testing::ValuesIn(QuickNames()),
                         [](const auto& name) { return name.param; });

TEST(Generated, KnowsNoOthers) { EXPECT_FALSE(Generated("rmat19").has_value()); }

TEST(Generated, RegularOnesAreAsDefined) {
  ExpectSame(Generated("band16").value(), Band(500'000, 16));
  ExpectSame(Generated("p2d5").value(), Stencil(1024, 1024));
  // Inside 9 and 7, less one side of each border.
  EXPECT_EQ(Generated("p2d9")->nnz(), 3070LL * 3070);
  EXPECT_EQ(Generated("p3d7")->nnz(), 7LL * 101 * 101 * 101 - 6 * 101 * 101);
  EXPECT_EQ(Generated("dense4k")->nnz(), 4096LL * 4096);
  EXPECT_THAT(Lengths(Generated("thin4k").value()), testing::Each(16 * 8));
  EXPECT_THAT(Lengths(Generated("runs32").value()),
              testing::Each(testing::AnyOf(testing::Eq(32), testing::Eq(64))));
  const std::vector<int64_t> few = Lengths(Generated("hyper16").value());
  EXPECT_EQ(std::count(few.begin(), few.end(), 40), 131'072);
  EXPECT_EQ(std::count(few.begin(), few.end(), 0), 15 * 131'072);
}

TEST(Generated, RandomOnesAreAsDefined) {
  EXPECT_THAT(Lengths(Generated("uni16").value()), testing::Each(16));
  EXPECT_THAT(Lengths(Generated("dense400").value()), testing::Each(400));

  const Pattern groups = Generated("bperm").value();
  EXPECT_EQ(groups.rows, 262'144);
  EXPECT_NEAR(static_cast<double>(groups.nnz()), 32.0 * 262'144, 1000);

  const Pattern rmat = Generated("rmat18").value();
  EXPECT_EQ(rmat.rows, 262'144);
  EXPECT_NEAR(static_cast<double>(rmat.nnz()), 3.94e6, 0.02e6);
  const std::vector<int64_t> rmat_lengths = Lengths(rmat);
  EXPECT_GT(*std::max_element(rmat_lengths.begin(), rmat_lengths.end()), 10'000);

  const Pattern power_law = Generated("cl16").value();
  EXPECT_EQ(power_law.rows, 500'000);
  EXPECT_NEAR(static_cast<double>(power_law.nnz()), 7.4e6, 0.05e6);
  // Twice the degree, 2^-1.1 times as many rows beyond it.
  const std::vector<int64_t> lengths = Lengths(power_law);
  const auto beyond = [&](int64_t degree) {
    return static_cast<double>(std::count_if(lengths.begin(), lengths.end(),
                                             [&](int64_t length) { return length > degree; }));
  };
  EXPECT_NEAR(beyond(200) / beyond(100), 0.4665, 0.05);
}

TEST(Generated, RowsOfAGroupShareColumns) {
  const Pattern groups = Generated("bperm").value();
  // Row 0's group has 15 others, with each of which it shares about 0.9 * 0.9 * 32 columns.
  const auto row_of = [&](int64_t row) {
    return std::vector<int32_t>(groups.column_indices.begin() + groups.row_offsets[row],
                                groups.column_indices.begin() + groups.row_offsets[row + 1]);
  };
  const std::vector<int32_t> first = row_of(0);
  int64_t relatives = 0;
  for (int64_t row = 1; row < groups.rows; ++row) {
    std::vector<int32_t> shared;
    const std::vector<int32_t> other = row_of(row);
    std::set_intersection(first.begin(), first.end(), other.begin(), other.end(),
                          std::back_inserter(shared));
    relatives += shared.size() >= 15;
  }
  EXPECT_EQ(relatives, 15);
}

}  // namespace
}  // namespace sparsed::test
