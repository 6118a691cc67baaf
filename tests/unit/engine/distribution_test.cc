// What products over several GPUs are estimated to take.
#include "engine/planning/distribution.h"

#include <gtest/gtest.h>

namespace sparsed::engine {
namespace {

DistributedProblem Large() {
  DistributedProblem of;
  of.problem = {.operation = Operation::kSpmm,
                .type = ElementType::kF32,
                .k = 128,
                .device = DeviceKind::kCuda};
  of.rows = of.cols = 1'000'000;
  of.nnz = 16'000'000;
  of.bytes_per_second = 3e12;
  of.peer_bytes_per_second = kPeerRowsBytesPerSecond;
  of.copy_bytes_per_second = kPeerCopyBytesPerSecond;
  of.whole_ms = 2.6;
  return of;
}

TEST(DistributionEstimates, NameWhatIsExchanged) {
  DistributedProblem of = Large();
  of.fetched_rows = 10'000;
  of.most_fetched_rows = 5'000;
  of.fetched_nonzeros = 100'000;
  const auto estimates = EstimateDistributions(of);
  ASSERT_EQ(estimates.size(), 3U);
  EXPECT_EQ(estimates[0].distribution, Distribution::kWhole);
  EXPECT_EQ(estimates[0].milliseconds, 2.6);
  EXPECT_EQ(estimates[1].distribution, Distribution::kColumns);
  EXPECT_EQ(estimates[1].exchanged_bytes, 0);
  EXPECT_EQ(estimates[2].distribution, Distribution::kRows);
  EXPECT_EQ(estimates[2].exchanged_bytes, 10'000 * 128 * 4);
  // Half of it, S but once more.
  EXPECT_GT(estimates[1].milliseconds, 1.3);
  EXPECT_LT(estimates[1].milliseconds, 1.6);
  EXPECT_LT(estimates[2].milliseconds, 1.6);
  // An operand on one card: 1 GB one way or the other.
  EXPECT_NEAR(SpreadMilliseconds(of), 1.7, 0.05);
}

TEST(DistributionEstimates, ChooseRowsWhereFewAreFetchedAndColumnsElse) {
  DistributedProblem of = Large();
  of.nnz = 100'000'000;  // S is most of what is read
  of.whole_ms = 0;
  EXPECT_EQ(BestOf(EstimateDistributions(of)), Distribution::kRows);
  of.most_fetched_rows = 500'000;
  of.fetched_rows = 1'000'000;
  of.fetched_nonzeros = 50'000'000;
  EXPECT_EQ(BestOf(EstimateDistributions(of)), Distribution::kColumns);
}

TEST(DistributionEstimates, LeaveSmallProductsOnOneCard) {
  DistributedProblem of = Large();
  of.rows = of.cols = 1'000;
  of.nnz = 16'000;
  of.whole_ms = 0.02;
  EXPECT_EQ(BestOf(EstimateDistributions(of)), Distribution::kWhole);
  of = Large();
  of.gpus = 1;
  ASSERT_EQ(EstimateDistributions(of).size(), 1U);
  EXPECT_EQ(BestOf(EstimateDistributions(of)), Distribution::kWhole);
  // As few columns, or rows, as can't be divided.
  of = Large();
  of.problem.k = 1;
  of.cols = 1;
  EXPECT_EQ(EstimateDistributions(of).size(), 1U);
}

TEST(DistributionEstimates, GoByTheRateBetweenCards) {
  DistributedProblem of = Large();
  of.most_fetched_rows = 100'000;
  of.fetched_rows = 200'000;
  const double direct = EstimateDistributions(of)[2].milliseconds;
  of.peer_bytes_per_second = 10e9;
  EXPECT_GT(EstimateDistributions(of)[2].milliseconds, direct + 3);
}

}  // namespace
}  // namespace sparsed::engine
