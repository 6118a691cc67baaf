#include "tools/scale/partition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "tools/corpus/graphs.h"
#include "tools/corpus/rectangles.h"

namespace sparsed::tools {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string FileOf(const std::string& text) {
  const std::string path = testing::TempDir() + "/scale_partition.part";
  std::ofstream(path) << text;
  return path;
}

TEST(ReadPartition, HasAPartForEachRow) {
  const auto partition = ReadPartition(FileOf("1\n0\n2\r\n0 \n"), 4);
  ASSERT_TRUE(partition.ok()) << partition.status();
  EXPECT_EQ(partition->parts, 3);
  EXPECT_THAT(partition->part_of_row, ElementsAre(1, 0, 2, 0));
}

TEST(ReadPartition, RefusesWithFileAndLine) {
  const auto message = [](const std::string& text, int64_t rows) {
    const auto partition = ReadPartition(FileOf(text), rows);
    EXPECT_EQ(partition.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(partition.status().message());
  };
  EXPECT_THAT(message("0\n1\n", 3), HasSubstr("has 2 lines, the matrix has 3 rows"));
  EXPECT_THAT(message("0\n1\n0\n", 2), HasSubstr("more lines than the matrix has rows, 2"));
  EXPECT_THAT(message("0\nx\n", 2), HasSubstr("line 2: \"x\" is no part in [0, 1024)"));
  EXPECT_THAT(message("0\n-1\n", 2), HasSubstr("line 2: \"-1\""));
  EXPECT_THAT(message("1024\n0\n", 2), HasSubstr("line 1: \"1024\""));
  EXPECT_THAT(message("99999999999\n0\n", 2), HasSubstr("line 1"));
  EXPECT_THAT(message("\n0\n", 2), HasSubstr("line 1: \"\""));
  EXPECT_EQ(ReadPartition("/nowhere/x.part", 2).status().code(), absl::StatusCode::kNotFound);
}

TEST(MetisPartition, FetchesLessThanConsecutiveRowsOfAShuffledGrid) {
  const corpus::Pattern grid = corpus::StochasticBlocks(
      4000, 12, {.blocks = 8, .inside = 950, .uneven = false, .shuffled = true}, 1);
  const CsrView csr{grid.rows, grid.cols, grid.row_offsets, grid.column_indices, {}};
  const auto partition = MetisPartition(csr, 8);
  if (partition.status().code() == absl::StatusCode::kUnimplemented) {
    GTEST_SKIP() << "built without METIS";
  }
  ASSERT_TRUE(partition.ok()) << partition.status();
  ASSERT_EQ(partition->part_of_row.size(), 4000U);
  EXPECT_EQ(partition->parts, 8);
  const RowExchange parts = CountExchange(csr, partition->part_of_row, 8, 8),
                    blocks = CountExchange(csr, BlocksByNonzeros(csr, 8), 8, 8);
  EXPECT_LT(parts.fetched_rows(), blocks.fetched_rows() / 2);
  for (const CardLoad& card : parts.cards) {
    EXPECT_LT(static_cast<double>(card.nonzeros), 1.1 * static_cast<double>(csr.nnz()) / 8);
  }
}

TEST(MetisPartition, RefusesWhatIsNoGraph) {
  const corpus::Pattern wide = corpus::UniformRows(10, 20, 2, 1);
  const auto partition =
      MetisPartition({wide.rows, wide.cols, wide.row_offsets, wide.column_indices, {}}, 2);
  if (partition.status().code() == absl::StatusCode::kUnimplemented) {
    GTEST_SKIP() << "built without METIS";
  }
  EXPECT_EQ(partition.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(partition.status().message()), HasSubstr("10 x 20"));
  const corpus::Pattern few = corpus::UniformRows(10, 10, 2, 1);
  const auto many =
      MetisPartition({few.rows, few.cols, few.row_offsets, few.column_indices, {}}, 11);
  EXPECT_EQ(many.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(many.status().message()), HasSubstr("11 parts of 10 rows"));
}

}  // namespace
}  // namespace sparsed::tools
