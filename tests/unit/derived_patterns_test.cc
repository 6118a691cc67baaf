// What SpGEMM keeps of patterns: found while they live, within a limit.
#include "engine/execution/derived_patterns.h"

#include <gtest/gtest.h>

#include "kernels/formats/csr.h"
#include "tests/generate.h"

namespace sparsed::engine {
namespace {

constexpr int64_t kLimit = 64 << 10;

std::shared_ptr<Pattern> PatternOf(const test::Pattern& pattern) {
  return std::make_shared<Pattern>(
      "hash", pattern.rows, pattern.cols, pattern.nnz(),
      std::make_shared<LazyLayout>(std::make_shared<const Layout>(test::PlainLayout(pattern))));
}

RowSizes SizesOf(int64_t rows, int64_t size) {
  return {test::MakeArray("row sizes", std::vector<int64_t>(rows, size)), 7 * size};
}

class DerivedPatternsTest : public testing::Test {
 protected:
  Budget budget_{1 << 20, 1 << 10};
  bool Evict() { return budget_.evictions()->EvictOne(); }

  const std::shared_ptr<DerivedPatterns> kept_ = std::make_shared<DerivedPatterns>(budget_, kLimit);
  DerivedPatterns& derived_ = *kept_;
};

TEST_F(DerivedPatternsTest, TransposesOnceWhileThereIsRoom) {
  const test::Pattern small = test::Uniform(50, 70, 5, 1);
  const std::shared_ptr<Pattern> pattern = PatternOf(small);
  const auto first = derived_.Transposed(pattern, {});
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ((*first)->pipeline, "transpose");
  const test::Pattern expected = test::Transpose(small);
  const CsrView got = ViewCsr(**first);
  EXPECT_TRUE(std::ranges::equal(got.row_offsets, expected.row_offsets));
  EXPECT_TRUE(std::ranges::equal(got.column_indices, expected.column_indices));
  EXPECT_EQ(*derived_.Transposed(pattern, {}), *first);

  const std::shared_ptr<Pattern> large = PatternOf(test::Uniform(2000, 2000, 10, 2));
  const auto built = derived_.Transposed(large, {});
  ASSERT_TRUE(built.ok()) << built.status();
  EXPECT_NE(*derived_.Transposed(large, {}), *built) << "it is beyond the limit";
  EXPECT_LE(derived_.bytes(), kLimit);
  EXPECT_EQ(*derived_.Transposed(pattern, {}), *first);
}

TEST_F(DerivedPatternsTest, TakesThePreparationsTranspose) {
  const test::Pattern small = test::Uniform(50, 70, 5, 3);
  const std::shared_ptr<Pattern> pattern = PatternOf(small);
  auto layout = std::make_shared<Layout>(test::PlainLayout(test::Transpose(small)));
  layout->pipeline = "transpose";
  pattern->AddLayout(layout, 0);
  EXPECT_EQ(*derived_.Transposed(pattern, {}), layout);
  EXPECT_EQ(derived_.bytes(), 0);
}

TEST_F(DerivedPatternsTest, SizesBelongToOneProduct) {
  const auto s = PatternOf(test::Uniform(40, 40, 3, 4));
  const auto t = PatternOf(test::Uniform(40, 40, 3, 5));
  const std::vector<PatternProduct> products = {
      {s, t, false, false, nullptr}, {t, s, false, false, nullptr}, {s, t, true, false, nullptr},
      {s, t, false, true, nullptr},  {s, t, false, false, s},       {s, t, false, false, t}};
  for (size_t i = 0; i < products.size(); ++i) {
    EXPECT_FALSE(derived_.FindSizes(products[i]).has_value()) << i;
    derived_.KeepSizes(products[i], SizesOf(40, static_cast<int64_t>(i)));
  }
  for (size_t i = 0; i < products.size(); ++i) {
    const auto found = derived_.FindSizes(products[i]);
    ASSERT_TRUE(found.has_value()) << i;
    EXPECT_EQ(std::as_const(found->row_nnz).As<int64_t>()[39], static_cast<int64_t>(i));
    EXPECT_EQ(found->products, 7 * static_cast<int64_t>(i));
  }
  EXPECT_EQ(derived_.sizes_computed(), 6);
  EXPECT_EQ(derived_.sizes_found(), 6);
}

TEST_F(DerivedPatternsTest, WhatWasUsedLongestAgoGoesFirst) {
  constexpr int64_t kRows = kLimit / 3 / sizeof(int64_t);  // three fit
  const auto t = PatternOf(test::Uniform(10, 10, 3, 6));
  std::vector<PatternProduct> products;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    products.push_back({PatternOf(test::Uniform(10, 10, 3, seed)), t, false, false, nullptr});
  }
  for (size_t i = 0; i < 3; ++i) derived_.KeepSizes(products[i], SizesOf(kRows, 1));
  EXPECT_TRUE(derived_.FindSizes(products[0]).has_value());
  derived_.KeepSizes(products[3], SizesOf(kRows, 1));
  EXPECT_TRUE(derived_.FindSizes(products[0]).has_value());
  EXPECT_FALSE(derived_.FindSizes(products[1]).has_value());
  EXPECT_TRUE(derived_.FindSizes(products[2]).has_value());
  EXPECT_TRUE(derived_.FindSizes(products[3]).has_value());
  derived_.KeepSizes(products[1], SizesOf(4 * kRows, 1));
  EXPECT_FALSE(derived_.FindSizes(products[1]).has_value()) << "it alone is beyond the limit";
  EXPECT_EQ(derived_.bytes(), 3 * kRows * 8);
  while (Evict()) {
  }
  EXPECT_EQ(derived_.bytes(), 0);
  EXPECT_EQ(budget_.used(), 0);
}

TEST_F(DerivedPatternsTest, APatternThatIsGoneTakesItsOwnAlong) {
  const auto s = PatternOf(test::Uniform(40, 40, 3, 7));
  auto t = PatternOf(test::Uniform(40, 40, 3, 8));
  derived_.KeepSizes({s, t, false, false, nullptr}, SizesOf(40, 1));
  ASSERT_TRUE(derived_.Transposed(t, {}).ok());
  ASSERT_TRUE(derived_.Transposed(s, {}).ok());
  t.reset();
  EXPECT_TRUE(Evict());
  const int64_t left = derived_.bytes();
  EXPECT_GT(left, 0) << "one that lives stays until it is its turn";
  EXPECT_EQ(left, (*derived_.Transposed(s, {}))->bytes());
  EXPECT_TRUE(Evict());
  EXPECT_FALSE(Evict());
}

}  // namespace
}  // namespace sparsed::engine
