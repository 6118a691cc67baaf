// The program `sparsed`.
#include <fmt/format.h>
#include <grpc/support/log.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iostream>
#include <string>

#include "engine/engine.h"
#include "server/config/command_line.h"
#include "server/server.h"
#include "server/telemetry/log.h"

namespace sparsed::server {
namespace {

/// The server could not be reached any more.
constexpr int kExitUnreachable = 3;
/// What a server that cannot be reached gets to shut down in order, in seconds.
constexpr double kLastGrace = 5;
constexpr unsigned kLastSeconds = 20;

/// What gRPC has to say, in our log.
void LogGrpc(gpr_log_func_args* args) {
  const LogLevel level =
      args->severity == GPR_LOG_SEVERITY_ERROR ? LogLevel::kWarn : LogLevel::kDebug;
  Log(level, "grpc", {{"message", std::string(args->message)}});
}

void LogStart(const Config& config, Server& server) {
  std::string devices;
  for (const engine::DeviceFacts& device : server.engine().devices()) {
    devices += fmt::format("{}{}: {}", devices.empty() ? "" : "; ", device.name,
                           device.unavailable.empty() ? device.description : device.unavailable);
  }
  Log(LogLevel::kInfo, "serving",
      {
          {"version", SPARSED_VERSION},
          {"listen", fmt::format("{}", fmt::join(server.addresses(), ","))},
          {"metrics", server.metrics_address().empty() ? "off" : server.metrics_address()},
          {"data_dir", config.in_memory() ? "none, in memory" : config.data_dir},
          {"devices", devices},
          {"host_memory_bytes", config.host_memory_bytes},
          {"threads", int64_t{config.threads}},
          {"lanes", int64_t{config.lanes}},
          {"matrices", static_cast<int64_t>(server.engine().catalog().All().size())},
      });
}

int Run(const Config& config) {
  // Before any other thread starts, so that all inherit it and only sigwait sees them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  StartLog(config.log_level, config.log_format);
  gpr_set_log_function(LogGrpc);

  std::atomic<bool> gave_up = false;
  auto server = Server::Start(config, [&gave_up] {
    gave_up = true;
    kill(getpid(), SIGTERM);
    alarm(kLastSeconds);  // whatever is stuck, this ends the process
  });
  if (!server.ok()) {
    StopLog();
    std::cerr << "sparsed: " << server.status().message() << "\n";
    return 1;
  }
  LogStart(config, **server);
  int signal = 0;
  sigwait(&signals, &signal);
  Log(LogLevel::kInfo, "shutting down",
      {{"signal", std::string(signal == SIGINT ? "SIGINT" : "SIGTERM")},
       {"grace_seconds", config.shutdown_grace_seconds}});
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);  // a second one ends it at once
  const double grace = config.shutdown_grace_seconds;
  (*server)->Drain(std::chrono::duration<double>(gave_up ? std::min(grace, kLastGrace) : grace));
  server->reset();
  Log(LogLevel::kInfo, "stopped");
  StopLog();
  return gave_up ? kExitUnreachable : 0;
}

}  // namespace
}  // namespace sparsed::server

int main(int argc, char** argv) {
  const auto parsed = sparsed::server::ParseCommandLine(argc, argv, std::cout, std::cerr);
  if (const int* exit_code = std::get_if<int>(&parsed)) return *exit_code;
  return sparsed::server::Run(std::get<sparsed::server::Config>(parsed));
}
