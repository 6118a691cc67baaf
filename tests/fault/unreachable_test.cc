// A server whose address is gone ends by itself, for a supervisor to start it again.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "tests/fault/server_under_attack.h"

namespace sparsed::test {
namespace {

TEST(Unreachable, TheServerSaysSoAndEnds) {
  const std::string path = testing::TempDir() + "sparsed_unreachable";
  auto server = ServerUnderAttack::Start(
      {"--host-memory=64MiB", "--listen=unix:" + path, "--give-up-after=1"});
  ASSERT_TRUE(server.ok()) << server.status();
  std::filesystem::remove(path);
  // Three tries, five seconds each.
  for (int i = 0; i < 600 && (*server)->Lives(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  ASSERT_FALSE((*server)->Lives());
  EXPECT_EQ((*server)->End(SIGKILL), 3);
  const std::string log = (*server)->log();
  EXPECT_NE(log.find("does not answer at unix:" + path), std::string::npos) << log;
  EXPECT_NE(log.find("giving up"), std::string::npos) << log;
}

}  // namespace
}  // namespace sparsed::test
