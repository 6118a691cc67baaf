// What the attacks by bytes on the wire share: the server that they meet, and what is promised.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "tests/fault/attack.h"
#include "tests/fault/bystander.h"
#include "tests/fault/server_under_attack.h"

namespace sparsed::test {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kWireAttackMemory = 512 * kMiB;

/// Runs `round` until the time is over, at least once, beside an ordinary client, against a server
/// with --host-memory=512MiB in a control group of 2 GiB. The resident peak is to stay within 1.15
/// of the limit plus 150 MiB, and the client is to be served.
inline absl::Status WireAttack(const AttackOptions& options, Bounds& bounds,
                               const std::function<void(const std::string& address)>& round) {
  using Clock = std::chrono::steady_clock;
  std::vector<std::string> flags = {"--host-memory=512MiB"};
  flags.insert(flags.end(), options.flags.begin(), options.flags.end());
  auto server = ServerUnderAttack::Start(flags, {.memory_bytes = 2048 * kMiB});
  if (!server.ok()) return server.status();
  int64_t served = 0, failed = 0;
  double slowest = 0;
  {
    const Bystander bystander((*server)->address());
    const auto until = Clock::now() + std::chrono::duration<double>(options.seconds);
    do {
      round((*server)->address());
    } while ((*server)->Lives() && Clock::now() < until);
    served = bystander.served();
    failed = bystander.failed();
    slowest = bystander.slowest_seconds();
  }
  bounds.True("the server lives", (*server)->Lives());
  bounds.AtMost("resident peak", static_cast<double>((*server)->peak_resident_bytes()) / kMiB,
                1.15 * kWireAttackMemory / kMiB + 150, "MiB");
  bounds.AtLeast("times that the client beside it was served", static_cast<double>(served), 1, "");
  bounds.AtMost("times that it was not", static_cast<double>(failed), 0, "");
  bounds.AtMost("its slowest round", slowest, 20, "s");
  return absl::OkStatus();
}

}  // namespace sparsed::test
