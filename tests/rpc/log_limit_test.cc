// Events that anybody can cause are logged at a bounded rate, and what was left out is counted.
#include "server/log/log_limit.h"

#include <gtest/gtest.h>

namespace sparsed::server {
namespace {

using std::chrono::milliseconds;

TEST(LogLimit, ABurstThenARate) {
  LogLimit limit(/*per_second=*/2, /*burst=*/3);
  const auto begin = LogLimit::Clock::now() + std::chrono::hours(1);  // the bucket is full by then
  for (int i = 0; i < 3; ++i) EXPECT_EQ(limit.Admit(begin), 0) << i;
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(limit.Admit(begin), std::nullopt) << i;
  EXPECT_EQ(limit.suppressed(), 1000);
  EXPECT_EQ(limit.Admit(begin + milliseconds(400)), std::nullopt);
  EXPECT_EQ(limit.Admit(begin + milliseconds(600)), 1001);
  EXPECT_EQ(limit.suppressed(), 0);
  EXPECT_EQ(limit.Admit(begin + milliseconds(600)), std::nullopt);
  // However long nothing happens, no more than a burst is saved up.
  const auto later = begin + std::chrono::hours(24);
  EXPECT_EQ(limit.Admit(later), 1);
  EXPECT_EQ(limit.Admit(later), 0);
  EXPECT_EQ(limit.Admit(later), 0);
  EXPECT_EQ(limit.Admit(later), std::nullopt);
}

TEST(LogLimit, TimeThatGoesBackAddsNothing) {
  LogLimit limit(/*per_second=*/1, /*burst=*/1);
  const auto begin = LogLimit::Clock::now() + std::chrono::hours(1);
  EXPECT_EQ(limit.Admit(begin), 0);
  EXPECT_EQ(limit.Admit(begin - std::chrono::minutes(1)), std::nullopt);
  EXPECT_EQ(limit.Admit(begin), std::nullopt);
}

}  // namespace
}  // namespace sparsed::server
