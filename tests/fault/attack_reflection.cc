// Silent reflection streams in a container with few tasks, then an upload.
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "tests/fault/attack.h"
#include "tests/fault/bystander.h"
#include "tests/fault/raw_http2.h"
#include "tests/fault/server_under_attack.h"

namespace sparsed::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kTasks = 1024;
constexpr int kConnections = 20;
constexpr uint32_t kStreams = 100;  // on each

std::string OpenStreams(uint32_t first) {
  const std::string headers =
      CallHeaders("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo");
  std::string frames;
  for (uint32_t i = 0; i < kStreams; ++i) {
    frames += Http2Frame(kHeadersFrame, kEndHeadersFlag, first + 2 * i, headers);
  }
  return frames;
}

absl::Status Attack(const AttackOptions& options, Bounds& bounds) {
  auto server = ServerUnderAttack::Start(options.flags, {.tasks = kTasks});
  if (!server.ok()) return server.status();
  const auto until = Clock::now() + std::chrono::duration<double>(options.seconds);
  do {
    std::vector<std::unique_ptr<RawHttp2>> crowd;
    for (int i = 0; i < kConnections; ++i) {
      crowd.push_back(std::make_unique<RawHttp2>((*server)->address()));
      crowd.back()->Send(OpenStreams(1));
    }
    std::this_thread::sleep_for(std::chrono::seconds(3));
    bounds.True("an upload works beside 2,000 silent reflection streams",
                OneClientWorks((*server)->address(), 60).ok());
    bounds.AtMost("threads", static_cast<double>((*server)->threads()), 100, "threads");
  } while (bounds.hold() && Clock::now() < until);
  bounds.True("the server lives", (*server)->Lives());
  return absl::OkStatus();
}

}  // namespace
}  // namespace sparsed::test

int main(int argc, char** argv) {
  return sparsed::test::AttackMain(
      argc, argv,
      "2,000 reflection streams that ask nothing, in a control group with 1,024 tasks, and one\n"
      "upload beside them. Needs root, for the control group.",
      0, sparsed::test::Attack);
}
