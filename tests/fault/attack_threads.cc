// Whatever shares the server's limit of tasks has taken the last one.
#include <chrono>
#include <future>
#include <thread>

#include "tests/fault/attack.h"
#include "tests/fault/bystander.h"
#include "tests/fault/server_under_attack.h"

namespace sparsed::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kTasks = 1024;
const char* const kWaiting = "sparsed_thread_starts_waiting";

bool Waits(const ServerUnderAttack& server) {
  const absl::StatusOr<double> waiting = server.Metric(kWaiting);
  return waiting.ok() && *waiting > 0;
}

absl::Status Attack(const AttackOptions& options, Bounds& bounds) {
  const auto until = Clock::now() + std::chrono::duration<double>(options.seconds);
  do {
    auto server = ServerUnderAttack::Start(options.flags, {.tasks = kTasks});
    if (!server.ok()) return server.status();
    if (absl::Status status = (*server)->SetTasks(1); !status.ok()) return status;
    // A worker slot's first product makes the slot's team.
    std::future<absl::Status> works =
        std::async(std::launch::async, [&] { return OneClientWorks((*server)->address(), 120); });
    const auto patience = Clock::now() + std::chrono::seconds(30);
    while (!Waits(**server) && Clock::now() < patience && (*server)->Lives()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    bounds.True("a request waits for a thread", Waits(**server));
    int code = 0;
    const absl::StatusOr<std::string> ready =
        HttpGet((*server)->metrics_address(), "/readyz", 10, &code);
    bounds.True("/readyz says why",
                ready.ok() && code == 503 && ready->find("threads") != std::string::npos);
    bounds.True("the log says so",
                (*server)->log().find("starts no more threads") != std::string::npos);
    std::this_thread::sleep_for(std::chrono::seconds(12));  // more than a start would wait
    bounds.True("the server lives", (*server)->Lives());
    if (absl::Status status = (*server)->SetTasks(kTasks); !status.ok()) return status;
    bounds.True("the request is answered when there are threads again", works.get().ok());
  } while (bounds.hold() && Clock::now() < until);
  return absl::OkStatus();
}

}  // namespace
}  // namespace sparsed::test

int main(int argc, char** argv) {
  return sparsed::test::AttackMain(
      argc, argv,
      "A control group in which no thread can be started any more, and a client's first product.\n"
      "Needs root, for the control group.",
      0, sparsed::test::Attack);
}
