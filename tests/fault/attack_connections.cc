// More plain TCP connections than there are descriptors, opened and closed again.
#include <chrono>
#include <thread>
#include <vector>

#include "tests/fault/attack.h"
#include "tests/fault/bystander.h"
#include "tests/fault/raw_http2.h"
#include "tests/fault/server_under_attack.h"

namespace sparsed::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kDescriptors = 1024;
constexpr int kConnections = 1100;

/// Opens them, says `words` on each, keeps them for a moment and closes them.
void Crowd(const std::string& address, const std::string& words) {
  std::vector<Descriptor> crowd;
  for (int i = 0; i < kConnections; ++i) {
    crowd.push_back(ConnectTo(address));
    (void)!write(crowd.back().fd(), words.data(), words.size());
  }
  std::this_thread::sleep_for(std::chrono::seconds(1));
}

/// A client may be one too many until the server has seen that the crowd is gone.
bool ServedSoon(const std::string& address) {
  const auto until = Clock::now() + std::chrono::seconds(20);
  while (!OneClientWorks(address, 20).ok()) {
    if (Clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return true;
}

absl::Status Attack(const AttackOptions& options, Bounds& bounds) {
  auto server = ServerUnderAttack::Start(options.flags, {.descriptors = kDescriptors});
  if (!server.ok()) return server.status();
  const auto until = Clock::now() + std::chrono::duration<double>(options.seconds);
  do {
    Crowd((*server)->address(), "");
    bounds.True("a client works after 1,100 silent connections", ServedSoon((*server)->address()));
    // These speak HTTP/2, so that gRPC has them.
    Crowd((*server)->address(), Http2Opening());
    bounds.True("a client works after 1,100 connections of HTTP/2",
                ServedSoon((*server)->address()));
  } while (bounds.hold() && Clock::now() < until);
  bounds.True("the server lives", (*server)->Lives());
  int code = 0;
  const auto page = HttpGet((*server)->metrics_address(), "/readyz", 5, &code);
  bounds.True("it says that it is ready", page.ok() && code == 200);
  return absl::OkStatus();
}

}  // namespace
}  // namespace sparsed::test

int main(int argc, char** argv) {
  return sparsed::test::AttackMain(
      argc, argv,
      "1,100 plain TCP connections to a server with 1,024 descriptors, opened and closed again:\n"
      "first silent ones, then such that speak HTTP/2. Afterwards a client is served.",
      0, sparsed::test::Attack);
}
