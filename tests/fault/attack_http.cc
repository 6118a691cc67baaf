// Silent connections to the HTTP port.
#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/fault/attack.h"
#include "tests/fault/raw_http2.h"
#include "tests/fault/server_under_attack.h"

namespace sparsed::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kConnections = 1000;

/// Seconds until a path is answered; 10 if it is not.
double Asked(const ServerUnderAttack& server, const std::string& path) {
  const auto begin = Clock::now();
  if (!HttpGet(server.metrics_address(), path, 10).ok()) return 10;
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

absl::Status Attack(const AttackOptions& options, Bounds& bounds) {
  auto server = ServerUnderAttack::Start(options.flags);
  if (!server.ok()) return server.status();
  const auto until = Clock::now() + std::chrono::duration<double>(options.seconds);
  double slowest = 0, slowest_page = 0;
  do {
    std::vector<Descriptor> crowd;
    for (int i = 0; i < kConnections; ++i) {
      crowd.push_back(ConnectTo((*server)->metrics_address()));
      const std::string_view words = i % 2 == 0 ? "" : "GET /healthz HTTP/1.1\r\n";
      (void)!write(crowd.back().fd(), words.data(), words.size());
    }
    slowest = std::max({slowest, Asked(**server, "/healthz"), Asked(**server, "/readyz")});
    slowest_page = std::max(slowest_page, Asked(**server, "/metrics"));
  } while (Clock::now() < until);
  bounds.AtMost("slowest probe beside 1,000 silent connections", slowest, 1, "s");
  bounds.AtMost("slowest /metrics beside them", slowest_page, 5, "s");
  bounds.True("the server lives", (*server)->Lives());
  return absl::OkStatus();
}

}  // namespace
}  // namespace sparsed::test

int main(int argc, char** argv) {
  return sparsed::test::AttackMain(
      argc, argv,
      "1,000 connections to the HTTP port, half of them silent, half with the beginning of a\n"
      "request. Probes are answered within a second beside them.",
      0, sparsed::test::Attack);
}
