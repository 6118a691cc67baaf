// Work of several phases, cut into pieces.
#include "engine/execution/piece_run.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "kernels/cpu/parts.h"
#include "kernels/spgemm_blocks.h"

namespace sparsed::engine {
namespace {

// How many tiny parts fit a piece says nothing of the large ones that come after them.
TEST(PieceRun, BeginsWithOnePartOfTheNextPhase) {
  constexpr int kFirst = 5, kSecond = 40;
  for (const int threads : {1, 3}) {
    const std::atomic<bool> wanted = true;
    PieceRun pieces(&wanted);
    std::vector<int> seconds;  // parts of the second phase, of the runs that had any
    std::atomic<int> first_parts = 0, second_parts = 0;
    while (!pieces.finished()) {
      const int first_before = first_parts, second_before = second_parts;
      double milliseconds = 0;
      const absl::Status status = pieces.RunPiece(
          [&](Progress& progress) {
            Context context;
            context.threads = threads;
            context.progress = &progress;
            cpu::PartLoop loop(context);
            const bool all = loop.Run(kFirst, [&](int64_t) { ++first_parts; }) &&
                             loop.Run(kSecond, [&](int64_t) { ++second_parts; });
            return all ? loop.Finish() : loop.Cut();
          },
          &milliseconds);
      ASSERT_TRUE(status.ok()) << status;
      const int first = first_parts - first_before, second = second_parts - second_before;
      EXPECT_GT(first + second, 0);
      EXPECT_TRUE(first == 0 || second == 0) << first << " and " << second;
      if (second > 0) seconds.push_back(second);
    }
    EXPECT_EQ(first_parts, kFirst);
    EXPECT_EQ(second_parts, kSecond);
    ASSERT_FALSE(seconds.empty());
    EXPECT_LE(seconds.front(), threads);  // each may have taken one
  }
}

TEST(BlockOfPiece, BecomesAsLargeAsAPieceComputes) {
  constexpr double kPieceMs = 0.75 * 1e3 * kPieceSeconds;  // three quarters of one
  for (const int threads : {1, 8}) {
    const int64_t most = RowBlockEntries(threads);
    BlockOfPiece block;
    EXPECT_EQ(block.entries(threads), most / 16) << "nothing is known: few";
    block.Took(most, 4 * kPieceMs);
    EXPECT_NEAR(block.entries(threads), most / 4, 1);
    block.Took(most / 4, 2 * kPieceMs);
    EXPECT_NEAR(block.entries(threads), most / 8, 1);
    block.Took(most / 8, kPieceMs / 4);
    EXPECT_NEAR(block.entries(threads), most / 2, 1);
    block.Took(most / 2, kPieceMs / 100);
    EXPECT_EQ(block.entries(threads), most) << "never more than fits a cache";
    block.Took(most, 1000 * kPieceMs);
    EXPECT_EQ(block.entries(threads), most / 16) << "never so few that their ends count";
    block.Took(0, 0);
    EXPECT_EQ(block.entries(threads), most / 16);
  }
}

}  // namespace
}  // namespace sparsed::engine
