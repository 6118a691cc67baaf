#include "tests/fault/server_under_attack.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <string>

namespace sparsed::test {
namespace {

TEST(ServerUnderAttackTest, IsStartedMeasuredAndEnded) {
  auto server = ServerUnderAttack::Start({"--host-memory=64MiB"});
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_TRUE((*server)->Lives());
  EXPECT_GT((*server)->resident_bytes(), 1 << 20);
  EXPECT_GE((*server)->peak_resident_bytes(), (*server)->resident_bytes());
  EXPECT_GT((*server)->threads(), 1);
  int code = 0;
  auto ready = HttpGet((*server)->metrics_address(), "/readyz", 10, &code);
  ASSERT_TRUE(ready.ok()) << ready.status();
  EXPECT_EQ(code, 200);
  auto matrices = (*server)->Metric("sparsed_matrices");
  ASSERT_TRUE(matrices.ok()) << matrices.status();
  EXPECT_EQ(*matrices, 0);
  EXPECT_TRUE(absl::IsNotFound((*server)->Metric("sparsed_nothing").status()));

  EXPECT_EQ((*server)->End(SIGTERM), 0);
  EXPECT_FALSE((*server)->Lives());
  EXPECT_EQ((*server)->resident_bytes(), 0);
  EXPECT_NE((*server)->log().find("\"stopped\""), std::string::npos);
}

TEST(ServerUnderAttackTest, SaysWhyItDidNotStart) {
  auto server = ServerUnderAttack::Start({"--host-memory=1"});
  EXPECT_TRUE(absl::IsFailedPrecondition(server.status())) << server.status();
  EXPECT_NE(server.status().message().find("--host-memory"), std::string::npos) << server.status();
}

TEST(ServerUnderAttackTest, SaysThatThereAreTooFewDescriptors) {
  for (const int64_t descriptors : {12, 20, 30}) {
    auto server = ServerUnderAttack::Start({}, {.descriptors = descriptors});
    ASSERT_TRUE(absl::IsFailedPrecondition(server.status())) << server.status();
    EXPECT_NE(server.status().message().find("ended with 1;"), std::string::npos)
        << server.status();
    EXPECT_NE(server.status().message().find("ulimit -n"), std::string::npos) << server.status();
  }
}

TEST(ServerUnderAttackTest, RunsUnderLimits) {
  auto server = ServerUnderAttack::Start(
      {"--host-memory=64MiB"},
      {.memory_bytes = int64_t{1} << 30, .tasks = 500, .descriptors = 100});
  if (absl::IsUnimplemented(server.status())) GTEST_SKIP() << server.status().message();
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_TRUE((*server)->Lives());
  EXPECT_EQ((*server)->End(SIGKILL), -SIGKILL);
}

TEST(ServerUnderAttackTest, TooLittleMemoryEndsIt) {
  auto server = ServerUnderAttack::Start({}, {.memory_bytes = 2 << 20});
  if (absl::IsUnimplemented(server.status())) GTEST_SKIP() << server.status().message();
  EXPECT_TRUE(absl::IsFailedPrecondition(server.status())) << server.status();
}

}  // namespace
}  // namespace sparsed::test
