// The default of --host-memory is a control group's, with room for what is not counted.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "tests/fault/server_under_attack.h"

namespace sparsed::test {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

/// What the program's first log line says; 0 if it does not.
int64_t HostMemory(const ServerUnderAttack& server) {
  std::istringstream lines(server.log());
  for (std::string text; std::getline(lines, text);) {
    const auto line = nlohmann::json::parse(text, nullptr, false);
    if (line.is_object() && line.value("event", "") == "serving") {
      return line.value("host_memory_bytes", int64_t{0});
    }
  }
  return 0;
}

TEST(MemoryLimit, OfAControlGroup) {
  for (const auto& [group, limit] : {std::pair{kGiB, kGiB / 2}, std::pair{3 * kGiB, 2 * kGiB}}) {
    const auto server = ServerUnderAttack::Start({}, {.memory_bytes = group});
    if (absl::IsUnimplemented(server.status())) GTEST_SKIP() << server.status().message();
    ASSERT_TRUE(server.ok()) << server.status();
    EXPECT_EQ(HostMemory(**server), limit);
  }
}

}  // namespace
}  // namespace sparsed::test
