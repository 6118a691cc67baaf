#include "client/cli/permutation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace sparsed::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Write(const std::string& text) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) /
                                     testing::UnitTest::GetInstance()->current_test_info()->name();
  std::ofstream(path) << text;
  return path.string();
}

TEST(Permutation, ReadsARowALine) {
  const auto order = ReadPermutation(Write("2\n0\n1\n"), 3);
  ASSERT_TRUE(order.ok()) << order.status();
  EXPECT_THAT(*order, ElementsAre(2, 0, 1));
  EXPECT_TRUE(ReadPermutation(Write(""), 0).ok());
}

TEST(Partition, ReadsAShardALine) {
  const auto parts = ReadPartition(Write("2\n0\n2\n"), 3, 3);
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_THAT(*parts, ElementsAre(2, 0, 2));
  for (const auto& [text, sentence] : std::vector<std::pair<const char*, const char*>>{
           {"0\n3\n1\n", ":2: expected a shard in [0, 3), found \"3\""},
           {"0\n-1\n1\n", "found \"-1\""},
           {"0\n1\n", "has 2 rows, the matrix 3"},
           {"0\n1\n2\n0\n", ":4: expected 3 lines, one for each row"}}) {
    const auto read = ReadPartition(Write(text), 3, 3);
    EXPECT_TRUE(absl::IsInvalidArgument(read.status())) << read.status();
    EXPECT_THAT(std::string(read.status().message()), HasSubstr(sentence));
  }
}

TEST(Permutation, SaysWhatIsWrong) {
  const struct {
    const char *text, *sentence;
  } cases[] = {
      {"0\n1\n3\n", ":3: expected a row in [0, 3), found \"3\""},
      {"0\n-1\n2\n", "found \"-1\""},
      {"0\none\n2\n", ":2: expected a row in [0, 3), found \"one\""},
      {"0\n1 2\n", "found \"1 2\""},
      {"0\n\n1\n2\n", "found \"\""},
      {"0\n1\n1\n", ":3: row 1 comes twice"},
      {"0\n1\n", "has 2 rows, the matrix 3"},
      {"0\n1\n2\n99999999999999999999\n", "found \"99999999999999999999\""},
  };
  for (const auto& [text, sentence] : cases) {
    const auto order = ReadPermutation(Write(text), 3);
    EXPECT_EQ(order.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(order.status().message(), HasSubstr(sentence));
  }
  EXPECT_FALSE(ReadPermutation("/nowhere/order.txt", 3).ok());
}

TEST(Permutation, RenamesRowsAndColumns) {
  // 1 2 0
  // 0 0 3
  // 4 0 5
  const CsrMatrix matrix{3, 3, {0, 2, 3, 5}, {0, 1, 2, 0, 2}, std::vector<double>{1, 2, 3, 4, 5}};
  const auto permuted = PermuteSymmetrically(matrix, {2, 0, 1});
  ASSERT_TRUE(permuted.ok()) << permuted.status();
  EXPECT_THAT(permuted->row_offsets, ElementsAre(0, 2, 4, 5));
  EXPECT_THAT(permuted->column_indices, ElementsAre(0, 1, 1, 2, 0));
  EXPECT_THAT(std::get<std::vector<double>>(permuted->values), ElementsAre(5, 4, 1, 2, 3));
  const CsrMatrix wide{1, 2, {0, 0}, {}, std::vector<double>{}};
  EXPECT_THAT(PermuteSymmetrically(wide, {0}).status().message(), HasSubstr("1 x 2"));
}

}  // namespace
}  // namespace sparsed::cli
