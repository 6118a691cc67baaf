// The program `sparsed`.
#include <fmt/format.h>
#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/catalog/canonical.h"
#include "engine/engine.h"
#include "engine/store/blob.h"
#include "engine/store/salvage.h"
#include "server/calibrate.h"
#include "server/check_start.h"
#include "server/config/command_line.h"
#include "server/listener/listen_socket.h"
#include "server/log/log.h"
#include "server/log/log_limit.h"
#include "server/server.h"
#include "server/service_manager.h"
#include "server/thread_starts.h"
#include "server/time_slice.h"

/// For jemalloc, where it is linked: what is free goes back to the operating system within two
/// seconds, on a thread of its own.
extern "C" {
extern const char* malloc_conf;
const char* malloc_conf = "background_thread:true,dirty_decay_ms:2000,muzzy_decay_ms:0";
}

namespace sparsed::server {
namespace {

/// The server could not be reached any more.
constexpr int kExitUnreachable = 3;
/// What a server that cannot be reached gets to shut down in order, in seconds.
constexpr double kLastGrace = 5;
constexpr unsigned kLastSeconds = 20;

/// What gRPC has to say, in our log.
void LogGrpc(gpr_log_func_args* args) {
  if (args->severity != GPR_LOG_SEVERITY_ERROR) {
    Log(LogLevel::kDebug, "grpc", {{"message", std::string(args->message)}});
    return;
  }
  static LogLimit limit(/*per_second=*/1, /*burst=*/20);
  const std::optional<int64_t> not_logged = limit.Admit();
  if (!not_logged.has_value()) return;
  Log(LogLevel::kWarn, "grpc",
      {{"message", std::string(args->message)}, {"not_logged", *not_logged}});
}

/// What protobuf has to say of messages that it cannot read; who sent them is told.
void LogProtobuf(google::protobuf::LogLevel /*level*/, const char* /*file*/, int /*line*/,
                 const std::string& message) {
  Log(LogLevel::kDebug, "protobuf", {{"message", message}});
}

/// What an operator should know before somebody else finds out.
void WarnAtStart(const Config& config, Server& server) {
  for (const std::string& address : server.addresses()) {
    if (StaysOnThisMachine(address) || !config.access_file.empty()) continue;
    Log(LogLevel::kWarn, "open to other machines",
        {{"listen", address},
         {"meaning", std::string("whoever reaches this address may read, replace and delete every "
                                 "matrix (--insecure)")},
         {"instead", std::string("--tls-certificate, --tls-key and --access-file")}});
  }
  if (const std::string& address = server.metrics_address();
      !address.empty() && !StaysOnThisMachine(address)) {
    Log(LogLevel::kWarn, "open to other machines",
        {{"metrics_listen", address},
         {"meaning",
          std::string(config.access_file.empty()
                          ? "whoever reaches this address sees all matrices and the settings on "
                            "the status page, and what is computed"
                          : "whoever reaches this address sees the names of tenants and how much "
                            "each of them computes")}});
  }
  for (const engine::DeviceFacts& device : server.engine().devices()) {
    if (!device.found || device.unavailable.empty()) continue;
    Log(LogLevel::kWarn, "device not used",
        {{"device", device.name},
         {"reason", device.unavailable},
         {"meanwhile", std::string("the CPU serves; --devices=cpu if that is meant")}});
  }
}

/// That nothing can be uploaded: better now than by whoever tries.
void WarnOfFullDisk(const Config& config) {
  if (config.in_memory()) return;
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(config.data_dir, error);
  const auto kept = static_cast<uintmax_t>(engine::kCatalogRoomBytes);
  if (error || space.available > kept) return;
  Log(LogLevel::kWarn, "no room for uploads",
      {{"data_dir", config.data_dir},
       {"free_bytes", static_cast<int64_t>(space.available)},
       {"kept_for_catalog_bytes", engine::kCatalogRoomBytes},
       {"meaning", std::string("what is there is served; every upload, and whatever else is to "
                               "last, is refused")},
       {"instead",
        space.capacity <= 2 * kept
            ? fmt::format("a larger volume: this one has {} bytes in all", space.capacity)
            : std::string("make room on the disk, or delete matrices")}});
}

/// "cpu: rules; cuda: h100".
std::string ModelsOf(engine::Engine& engine) {
  const engine::Selector& selector = engine.preparation().selector();
  const auto of = [&selector](DeviceKind kind) {
    const std::shared_ptr<const engine::Model> model = selector.used(kind);
    return fmt::format("{}: {}", Name(kind), model == nullptr ? engine::kRules : model->name());
  };
  return engine.gpus().empty() ? of(DeviceKind::kCpu)
                               : fmt::format("{}; {}", of(DeviceKind::kCpu), of(DeviceKind::kCuda));
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
          {"access", config.access_file.empty() ? "everybody" : config.access_file},
          {"tls", config.tls_certificate.empty() ? "off" : config.tls_certificate},
          {"metrics", server.metrics_address().empty() ? "off" : server.metrics_address()},
          {"data_dir", config.in_memory() ? "none, in memory" : config.data_dir},
          {"devices", devices},
          {"host_memory_bytes", config.host_memory_bytes},
          {"threads", int64_t{config.threads}},
          {"worker_slots", int64_t{config.worker_slots}},
          {"matrices", static_cast<int64_t>(server.engine().catalog().All().size())},
          {"models", ModelsOf(server.engine())},
      });
}

/// Rebuilds the catalog and says on standard output what came of it. Returns the exit code.
int Salvage(const Config& config) {
  const auto report =
      engine::SalvageStore(engine::PosixFileSystem(), config.data_dir,
                           [](const CsrView& csr) { return engine::HashPattern(csr, 0); });
  if (!report.ok()) {
    std::cerr << "sparsed: " << report.status().message() << "\n";
    return 1;
  }
  for (const std::string& what : report->saved) std::cout << "saved: " << what << "\n";
  for (const std::string& what : report->lost) std::cout << "not saved: " << what << "\n";
  std::cout << fmt::format(
      "{} saved, {} not. The old catalog and arrays that nothing needs any more are in {}. Start "
      "sparsed as usual: it prepares the matrices again.\n",
      report->saved.size(), report->lost.size(), report->moved_to);
  return 0;
}

/// --check-config: says what a start would use, or all that is wrong. Returns the exit code.
int CheckOnly(Settings settings) {
  CheckStart(settings.config, settings.problems);
  if (!settings.problems.empty()) return Refuse(std::cerr, settings.problems.Sentences());
  std::cout << settings.annotated;
  return 0;
}

/// Why a start failed: what is wrong with the files that settings name, by the lines in which they
/// do, and what the start said unless it is the same.
std::vector<std::string> WhyNotStarted(Settings settings, const absl::Status& status) {
  CheckStart(settings.config, settings.problems);
  std::vector<std::string> sentences = settings.problems.Sentences();
  const std::string said(status.message());
  if (std::ranges::none_of(sentences, [&](const std::string& sentence) {
        return sentence.find(said) != std::string::npos;
      })) {
    sentences.push_back(said);
  }
  return sentences;
}

/// `problem`: why it cannot start; empty: it can, as far as is known.
int Run(const Settings& settings, const std::string& problem) {
  const Config& config = settings.config;
  // Before any other thread starts, so that all inherit both: only sigwait sees signals.
  ShortenTimeSlice();
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  // OpenSSL writes to sockets whose other end may be gone.
  signal(SIGPIPE, SIG_IGN);
  StartLog(config.log_level, config.log_format);
  gpr_set_log_function(LogGrpc);
  google::protobuf::SetLogHandler(LogProtobuf);

  std::atomic<bool> gave_up = false;
  const auto give_up = [&gave_up] {
    gave_up = true;
    kill(getpid(), SIGTERM);
    alarm(kLastSeconds);  // whatever is stuck, this ends the process
  };
  std::error_code ignored;
  const bool makes_directory =
      !config.in_memory() && !std::filesystem::exists(config.data_dir, ignored);
  absl::StatusOr<std::unique_ptr<Server>> server =
      problem.empty() ? Server::Start(config, give_up) : absl::FailedPreconditionError(problem);
  if (!server.ok()) {
    for (const std::string& why : WhyNotStarted(settings, server.status())) {
      if (config.log_format == LogFormat::kJson) {
        Log(LogLevel::kError, "not started", {{"message", why}});
      } else {
        std::cerr << "sparsed: " << why << "\n";
      }
    }
    StopLog();
    // Files and folders may come, or come right, until it is tried again; what is meant does not.
    return FindUnsafeAddress(config) ? kExitWrongUse : 1;
  }
  // With the name that it has: a slip would begin empty, beside the one that was meant.
  if (makes_directory) Log(LogLevel::kInfo, "data directory made", {{"data_dir", config.data_dir}});
  LogStart(config, **server);
  WarnAtStart(config, **server);
  WarnOfFullDisk(config);
  NotifyServiceManager(
      fmt::format("READY=1\nSTATUS=serving at {}", fmt::join((*server)->addresses(), ", ")));
  SetThreadPatience(kEndlessPatience);  // to end would serve nobody
  int signal = 0;
  sigwait(&signals, &signal);
  NotifyServiceManager("STOPPING=1");
  Log(LogLevel::kInfo, "shutting down",
      {{"signal", std::string(signal == SIGINT ? "SIGINT" : "SIGTERM")},
       {"grace_seconds", config.shutdown_grace_seconds}});
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);  // a second one ends it at once
  const double grace = config.shutdown_grace_seconds;
  (*server)->Drain(std::chrono::duration<double>(gave_up ? std::min(grace, kLastGrace) : grace));
  SetThreadPatience(kThreadPatience);
  server->reset();
  Log(LogLevel::kInfo, "stopped");
  StopLog();
  return gave_up ? kExitUnreachable : 0;
}

int Main(int argc, char** argv) {
  auto parsed = ParseCommandLine(argc, argv, std::cout, std::cerr);
  if (const int* exit_code = std::get_if<int>(&parsed)) return *exit_code;
  auto& settings = std::get<Settings>(parsed);
  if (settings.check) return CheckOnly(std::move(settings));
  const Config& config = settings.config;
  const std::string problem = DataDirectoryProblem(config);
  if (!config.calibrate && !config.salvage) return Run(settings, problem);
  if (!problem.empty()) {
    std::cerr << "sparsed: " << problem << "\n";
    return 1;
  }
  return config.calibrate ? CalibrateDevices(config, std::cout, std::cerr) : Salvage(config);
}

/// What was asked for and could not be written is an error, whatever came of the rest.
int Written(int exit_code) {
  if (std::cout.flush()) return exit_code;
  std::cerr << "sparsed: cannot write to standard output\n";
  return exit_code == 0 ? 1 : exit_code;
}

}  // namespace
}  // namespace sparsed::server

int main(int argc, char** argv) {
  return sparsed::server::Written(sparsed::server::Main(argc, argv));
}
