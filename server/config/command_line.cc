#include "server/config/command_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "base/utf8.h"
#include "kernels/cuda/driver.h"
#include "kernels/device_id.h"
#include "server/config/access_flags.h"
#include "server/config/config_file.h"
#include "server/config/machine.h"
#include "server/config/otlp_endpoint.h"

namespace sparsed::server {
namespace {

/// Turns a word into the value that it stands for.
template <typename Value>
CLI::Validator OneOf(const std::map<std::string, Value>& values) {
  const auto turn = [values](std::string& word) -> std::string {
    const auto found = values.find(word);
    if (found == values.end()) {
      std::string words;
      for (const auto& [known, value] : values) words += (words.empty() ? "" : ", ") + known;
      return fmt::format("{} is none of {}", word, words);
    }
    word = std::to_string(static_cast<int>(found->second));
    return {};
  };
  return {turn, ""};
}

constexpr int64_t kMinHostMemory = 16 << 20;
constexpr int64_t kMinWireMemory = 8 << 20;
constexpr int64_t kWireMemory = int64_t{1} << 30;
constexpr int64_t kMinConnectionMemory = 1 << 20;
constexpr int64_t kMinStagingMemory = int64_t{8} << 20;

/// Flags as they were written; zeros are filled in by Complete.
struct Flags {
  Config config;
  bool in_memory = false;
  bool print_config = false;
  AccessFlags access;
};

CLI::Validator Address(bool unix_too) {
  return CLI::Validator(
      [unix_too](std::string& address) {
        return !unix_too && address == "off" ? std::string() : AddressError(address, unix_too);
      },
      unix_too ? "ADDR" : "ADDR|off");
}

CLI::Validator LocalAddress() {
  return CLI::Validator(
      [](std::string& address) -> std::string {
        if (address == "auto" || address == "off") return {};
        if (!address.starts_with("unix:")) {
          return fmt::format("'{}' is not unix:/PATH, auto or off", address);
        }
        return AddressError(address, true);
      },
      "unix:/PATH|auto|off");
}

CLI::Validator Device() {
  return CLI::Validator(
      [](std::string& device) -> std::string {
        if (device == "auto" || ParseDeviceId(device).has_value()) return {};
        return fmt::format("'{}' is not a device (auto, cpu, cuda:0, cuda:1, ...)", device);
      },
      "DEVICE");
}

/// CLI::Range lets through what is no number at all.
CLI::Validator Seconds(double least, double most) {
  return CLI::Validator(
      [least, most](std::string& text) -> std::string {
        double seconds = 0;
        if (CLI::detail::lexical_cast(text, seconds) && seconds >= least && seconds <= most) {
          return {};
        }
        return fmt::format("'{}' is not a number of seconds from {} to {}", text, least, most);
      },
      "SECONDS");
}

/// A time with its unit, of seconds without one; becomes the number of seconds.
CLI::Validator Duration(double most) {
  return CLI::Validator(
      [most](std::string& text) -> std::string {
        constexpr std::pair<std::string_view, double> kUnits[] = {
            {"ms", 1e-3}, {"us", 1e-6}, {"s", 1}, {"m", 60}, {"h", 3600}};
        std::string number = text;
        double unit = 1;
        for (const auto& [name, seconds] : kUnits) {
          if (!number.ends_with(name)) continue;
          number.resize(number.size() - name.size());
          unit = seconds;
          break;
        }
        double count = 0;
        if (CLI::detail::lexical_cast(number, count) && count >= 0 && count * unit <= most) {
          text = fmt::format("{}", count * unit);
          return {};
        }
        return fmt::format("'{}' is not a time such as 100ms, 1.5s or 2m, of at most {} s", text,
                           most);
      },
      "TIME");
}

CLI::Validator Endpoint() {
  return CLI::Validator(
      [](std::string& url) { return std::string(ParseOtlpEndpoint(url).status().message()); },
      "URL");
}

void DefineFlags(CLI::App& app, Flags& flags) {
  Config& config = flags.config;
  const auto count = CLI::Range(1, 65536);

  app.add_option("--listen", config.listen,
                 "Where to serve: HOST:PORT or unix:/PATH; repeatable. Port 0 takes a free one")
      ->check(Address(true))
      ->capture_default_str()
      ->group("Serving");
  app.add_option("--metrics-listen", config.metrics_listen,
                 "Where to serve /metrics, /healthz, /readyz and a status page: HOST:PORT, or off")
      ->check(Address(false))
      ->capture_default_str()
      ->group("Serving");
  app.add_option("--local-listen", config.local_listen,
                 "Where processes on this machine share memory with the server: unix:/PATH, auto "
                 "(local.sock in --data-dir), or off")
      ->check(LocalAddress())
      ->capture_default_str()
      ->group("Serving");
  app.add_flag("--trust-caller-gpu-memory", config.trust_caller_gpu_memory,
               "Use GPU memory that processes on this machine allocated themselves where it is, "
               "instead of having it copied; what happens if they free it while it is used is not "
               "defined")
      ->group("Serving");
  DefineAccessFlags(app, config, flags.access);
  CLI::Option* data_dir = app.add_option("--data-dir", config.data_dir,
                                         "Keep matrices in this folder (made if missing)")
                              ->type_name("DIR")
                              ->group("Serving");
  app.add_flag("--in-memory", flags.in_memory, "Keep nothing: a restart forgets all matrices")
      ->excludes(data_dir)
      ->group("Serving");
  app.add_option("--devices", config.devices,
                 "What computes: auto (the first GPU if there is one), cpu, or GPUs by number, as "
                 "cuda:0,cuda:1 (no start without them)")
      ->check(Device())
      ->delimiter(',')
      ->capture_default_str()
      ->group("Serving");
  app.add_option("--shutdown-grace", config.shutdown_grace_seconds,
                 "Seconds that requests in flight get after SIGTERM")
      ->check(Seconds(0, 86400))
      ->capture_default_str()
      ->group("Serving");
  app.add_option("--give-up-after", config.give_up_seconds,
                 "Seconds after which a server that cannot be reached by itself ends, to be "
                 "restarted; 0: never")
      ->check(Seconds(0, 366.0 * 86400))
      ->capture_default_str()
      ->group("Serving");
  app.add_option(
         "--stall-after", config.stall_seconds,
         "Seconds after which the server is not ready any more if requests wait for a device "
         "and nothing runs there; 0: never")
      ->check(Seconds(0, 366.0 * 86400))
      ->capture_default_str()
      ->group("Serving");
  app.add_option("--scrub-interval", config.scrub_interval_seconds,
                 "Seconds between two verifications of everything that is stored; 0: none")
      ->check(Seconds(0, 366.0 * 86400))
      ->capture_default_str()
      ->group("Serving");

  app.add_option(
         "--host-memory", config.host_memory_bytes,
         "Host memory for matrices, layouts, operands and results together, such as 4GiB "
         "(default: the machine's or the control group's less a fifth, at least 1GiB, and at "
         "most half)")
      ->transform(CLI::AsSizeValue(false))
      ->group("Limits");
  app.add_option(
         "--wire-memory", config.wire_memory_bytes,
         "Part of --host-memory for messages that are on their way in (default: a quarter, at "
         "most 1GiB)")
      ->transform(CLI::AsSizeValue(false))
      ->group("Limits");
  app.add_option("--preparation-memory", config.preparation_memory_bytes,
                 "Part of it that preparations may use at once, for layouts and trials; what does "
                 "not fit is "
                 "not tried (default: half)")
      ->transform(CLI::AsSizeValue(false))
      ->group("Limits");
  app.add_option("--device-memory", config.device_memory_bytes,
                 "GPU memory for layouts, operands and results together, such as 20GiB (default: "
                 "nine tenths of what is free at the start); taken as it is needed")
      ->transform(CLI::AsSizeValue(false))
      ->group("Limits");
  app.add_option("--staging-memory", config.staging_memory_bytes,
                 "Pinned host memory that copies to and from the GPU pass through")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("64MiB")
      ->group("Limits");
  app.add_option("--connection-memory", config.connection_memory_bytes,
                 "Host memory that the requests, uploads and unread results of one client "
                 "connection may hold together (default: half of --host-memory)")
      ->transform(CLI::AsSizeValue(false))
      ->group("Limits");
  app.add_option(
         "--buffer-memory", config.buffer_memory_bytes,
         "Bytes of held dense matrices that one tenant may have, in memory or on disk, such "
         "as 4GiB; 0: no quota but --host-memory (default)")
      ->transform(CLI::AsSizeValue(false))
      ->group("Limits");
  app.add_option("--buffer-time-to-live", config.buffer_time_to_live_seconds,
                 "Seconds for which a held dense matrix stays though nothing uses it, unless it is "
                 "durable or whoever put it said otherwise; 0: for ever")
      ->check(Seconds(0, 366.0 * 86400))
      ->capture_default_str()
      ->group("Limits");
  app.add_option("--threads", config.threads, "Threads that multiply (default: one a CPU)")
      ->check(count)
      ->group("Limits");
  app.add_option("--lanes", config.lanes, "Requests that run at once, sharing the threads")
      ->check(count)
      ->capture_default_str()
      ->group("Limits");
  app.add_option("--preparation-workers", config.preparation_workers,
                 "Preparations at once; 0: prepare nothing")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str()
      ->group("Limits");
  app.add_option("--preparation-threads", config.preparation_threads,
                 "Threads of each preparation, at low priority (default: one a CPU)")
      ->check(count)
      ->group("Limits");
  app.add_option("--preparation-seconds", config.preparation_seconds,
                 "Seconds of each preparation, after which no further layout is built or tried; "
                 "0: no limit")
      ->check(Seconds(0, 366.0 * 86400))
      ->capture_default_str()
      ->group("Limits");
  app.add_option("--max-connections", config.max_connections,
                 "Connections of clients at once; further ones are closed (default: 4096, or half "
                 "of the process' descriptors where these are fewer)")
      ->check(CLI::Range(1, 1 << 20))
      ->group("Limits");
  app.add_option("--max-chunk", config.max_chunk_bytes,
                 "Largest chunk that a client may send, such as 2MiB")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("2MiB")
      ->group("Limits");
  app.add_option("--max-requests-per-stream", config.max_requests_per_stream,
                 "Requests in flight on one stream")
      ->check(count)
      ->capture_default_str()
      ->group("Limits");
  app.add_option("--max-rings", config.max_rings,
                 "Rings of requests that processes of this machine may have, each with a thread "
                 "here; who gets none uses its stream. 0: none")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str()
      ->group("Limits");
  app.add_option("--ring-spin", config.ring_spin_microseconds,
                 "Microseconds that the thread of a ring looks for the next request before it "
                 "sleeps: up to a CPU for each ring in use, for the time to wake")
      ->check(CLI::Range(int64_t{0}, int64_t{100'000}))
      ->type_name("MICROSECONDS")
      ->capture_default_str()
      ->group("Limits");
  app.add_option("--max-queued", config.max_queued, "Requests waiting for a lane")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str()
      ->group("Limits");
  app.add_option("--batch-wait", config.batch_wait_microseconds,
                 "Microseconds that a narrow SpMM may wait for others of its tenant on the same "
                 "matrix that are arriving, to be multiplied as one with them; 0: each by itself")
      ->check(CLI::Range(int64_t{0}, int64_t{100'000}))
      ->type_name("MICROSECONDS")
      ->capture_default_str()
      ->group("Limits");
  app.add_option("--receive-idle", config.receive_idle_seconds,
                 "Seconds for which a client may send nothing of an upload or an operand that it "
                 "announced; then it ends")
      ->check(Seconds(0.1, 86400))
      ->capture_default_str()
      ->group("Limits");
  app.add_option("--send-idle", config.send_idle_seconds,
                 "Seconds for which a client may take nothing of a result; then its stream ends")
      ->check(Seconds(0.1, 86400))
      ->capture_default_str()
      ->group("Limits");

  app.add_option("--log-level", config.log_level, "debug, info, warn or error")
      ->transform(OneOf<LogLevel>({{"debug", LogLevel::kDebug},
                                   {"info", LogLevel::kInfo},
                                   {"warn", LogLevel::kWarn},
                                   {"error", LogLevel::kError}}))
      ->type_name("LEVEL")
      ->default_str("info")
      ->group("Log");
  app.add_option("--log-format", config.log_format, "text or json, one line an event")
      ->transform(OneOf<LogFormat>({{"text", LogFormat::kText}, {"json", LogFormat::kJson}}))
      ->type_name("FORMAT")
      ->default_str("text")
      ->group("Log");
  app.add_option("--slow-request", config.slow_request_seconds,
                 "Log requests that take so long or longer, such as 100ms, with all that is known "
                 "of them; 0: none")
      ->transform(Duration(86400))
      ->default_str("0")
      ->group("Log");
  app.add_option("--otlp-endpoint", config.otlp_endpoint,
                 "Send a span for each request and its phases to this collector by OTLP over plain "
                 "HTTP, such as http://127.0.0.1:4318 (default: none)")
      ->check(Endpoint())
      ->group("Log");
}

std::string Version() {
  const cuda::Build build = cuda::ThisBuild();
  return "sparsed " SPARSED_VERSION "\n" +
         (build.architectures.empty()
              ? "GPU kernels: none, built without CUDA"
              : fmt::format("GPU kernels: CUDA {}, for {}", build.version, build.architectures));
}

/// What many a thread is good for, and more than any machine gains by.
int MostThreads(int cpus) { return std::max(64, 16 * cpus); }

/// Two of `config`'s addresses that are one; empty: none. Port 0 is another each time.
std::string Doubled(const Config& config) {
  std::vector<std::string> addresses = config.listen;
  if (!config.metrics_listen.empty()) addresses.push_back(config.metrics_listen);
  if (!config.local_listen.empty()) addresses.push_back(config.local_listen);
  std::ranges::sort(addresses);
  for (auto at = addresses.begin();
       (at = std::ranges::adjacent_find(at, addresses.end())) != addresses.end(); ++at) {
    if (!at->ends_with(":0")) return *at;
  }
  return {};
}

/// Throws CLI::ValidationError if this machine cannot have what a limit allows: it would be no
/// limit.
void CheckAgainstMachine(const Config& config, int64_t usable, int cpus) {
  const auto check = [](const char* flag, int64_t value, int64_t most, const char* what) {
    if (value <= most) return;
    throw CLI::ValidationError(
        fmt::format("{}: {} is more than the {} {}", flag, value, most, what));
  };
  constexpr const char* kMemory = "bytes of memory that this machine or control group has";
  check("--host-memory", config.host_memory_bytes, usable, kMemory);
  const auto gpus = std::ranges::count_if(
      config.devices, [](const std::string& device) { return device.starts_with("cuda:"); });
  check("--staging-memory", config.staging_memory_bytes, usable / std::max<int64_t>(gpus, 1),
        gpus > 1 ? "bytes of memory that there are for each GPU" : kMemory);
  const std::string threads = fmt::format("threads that make sense on {} CPUs", cpus);
  const int64_t most = MostThreads(cpus);
  check("--lanes", config.lanes, most, threads.c_str());
  check("--threads", config.threads, most, threads.c_str());
  check("--preparation-workers times --preparation-threads",
        int64_t{config.preparation_workers} * config.preparation_threads, most, threads.c_str());
}

/// Throws CLI::ValidationError. The smallest limit of all leaves room for two of the largest
/// messages of the default's.
void CompleteWireMemory(Config& config) {
  if (config.wire_memory_bytes == 0) {
    config.wire_memory_bytes =
        std::clamp(config.host_memory_bytes / 4, kMinWireMemory, kWireMemory);
  }
  if (config.wire_memory_bytes < kMinWireMemory ||
      config.wire_memory_bytes > config.host_memory_bytes / 2) {
    throw CLI::ValidationError(fmt::format(
        "--wire-memory: {} bytes are not between {} and half of the {} of --host-memory",
        config.wire_memory_bytes, kMinWireMemory, config.host_memory_bytes));
  }
  if (config.max_chunk_bytes > config.wire_memory_bytes / 4) {
    throw CLI::ValidationError(
        fmt::format("--max-chunk: of {} bytes no four fit into the {} of --wire-memory",
                    config.max_chunk_bytes, config.wire_memory_bytes));
  }
}

/// Throws CLI::ValidationError. Paths and addresses are in the log, on pages, in messages and in
/// configuration files, which are all text.
void CheckText(const Config& config) {
  const auto check = [](const char* flag, const std::string& value) {
    if (IsUtf8(value)) return;
    throw CLI::ValidationError(fmt::format("{}: this is no text in UTF-8", flag));
  };
  for (const std::string& address : config.listen) check("--listen", address);
  check("--local-listen", config.local_listen);
  check("--data-dir", config.data_dir);
  check("--access-file", config.access_file);
  check("--tls-certificate", config.tls_certificate);
  check("--tls-key", config.tls_key);
  check("--tls-client-ca", config.tls_client_ca);
  check("--audit-log", config.audit_log);
}

/// Fills in what the machine decides. Throws CLI::ValidationError.
Config Complete(Flags flags) {
  Config& config = flags.config;
  CheckText(config);
  if (config.metrics_listen == "off") config.metrics_listen.clear();
  if (config.local_listen == "off") config.local_listen.clear();
  if (config.data_dir.empty() && !flags.in_memory) {
    throw CLI::ValidationError(
        "choose one: --data-dir=DIR keeps matrices over a restart, --in-memory keeps nothing");
  }
  CompleteAccess(config, flags.access);
  if (config.trust_caller_gpu_memory && config.local_listen.empty()) {
    throw CLI::ValidationError(
        "--trust-caller-gpu-memory: such memory is handed over the local socket, which "
        "--local-listen=off leaves out");
  }
  const int64_t usable = UsableMemoryBytes();
  if (config.host_memory_bytes == 0) config.host_memory_bytes = DefaultHostMemory(usable);
  if (config.host_memory_bytes < kMinHostMemory) {
    throw CLI::ValidationError(fmt::format("--host-memory: {} bytes are too few, at least {}",
                                           config.host_memory_bytes, kMinHostMemory));
  }
  CompleteWireMemory(config);
  if (config.preparation_memory_bytes == 0) {
    config.preparation_memory_bytes = config.host_memory_bytes / 2;
  }
  if (config.preparation_memory_bytes < 0 ||
      config.preparation_memory_bytes > config.host_memory_bytes) {
    throw CLI::ValidationError(
        fmt::format("--preparation-memory: {} bytes are not a part of the "
                    "{} of --host-memory",
                    config.preparation_memory_bytes, config.host_memory_bytes));
  }
  if (config.connection_memory_bytes == 0) {
    config.connection_memory_bytes = config.host_memory_bytes / 2;
  }
  if (config.connection_memory_bytes < kMinConnectionMemory ||
      config.connection_memory_bytes > config.host_memory_bytes) {
    throw CLI::ValidationError(fmt::format(
        "--connection-memory: {} bytes are not between {} and the {} of --host-memory",
        config.connection_memory_bytes, kMinConnectionMemory, config.host_memory_bytes));
  }
  if (config.max_chunk_bytes < 4096 || config.max_chunk_bytes > 1 << 30) {
    throw CLI::ValidationError(
        fmt::format("--max-chunk: {} bytes are not between 4KiB and 1GiB", config.max_chunk_bytes));
  }
  const int cpus = UsableCpus();
  if (config.threads == 0) config.threads = std::max(cpus, config.lanes);
  if (config.preparation_threads == 0) config.preparation_threads = cpus;
  if (config.lanes > config.threads) {
    throw CLI::ValidationError(fmt::format(
        "--lanes: {} lanes need as many threads, --threads is {}", config.lanes, config.threads));
  }
  if (config.buffer_memory_bytes < 0) {
    throw CLI::ValidationError("--buffer-memory: it cannot be negative");
  }
  if (config.device_memory_bytes < 0) {
    throw CLI::ValidationError("--device-memory: it cannot be negative");
  }
  if (config.staging_memory_bytes < kMinStagingMemory) {
    throw CLI::ValidationError(fmt::format("--staging-memory: {} bytes are too few, at least {}",
                                           config.staging_memory_bytes, kMinStagingMemory));
  }
  CheckAgainstMachine(config, usable, cpus);
  if (const std::string address = Doubled(config); !address.empty()) {
    throw CLI::ValidationError(fmt::format("{} would be listened on twice", address));
  }
  return config;
}

}  // namespace

std::variant<Config, int> ParseCommandLine(int argc, const char* const* argv, std::ostream& out,
                                           std::ostream& err) {
  CLI::App app(
      "sparsed holds sparse matrices and multiplies with them on request.\n"
      "  sparsed --data-dir=/var/lib/sparsed\n"
      "  sparsed --in-memory --listen=unix:/run/sparsed.sock");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::Throw);
  app.get_formatter()->column_width(34);
  app.set_version_flag("--version", Version(), "Print the version and what was built, and exit")
      ->configurable(false);
  Flags flags;
  flags.config.threads = flags.config.preparation_threads = 0;
  DefineFlags(app, flags);
  app.add_flag(
         "--salvage", flags.config.salvage,
         "Rebuild a damaged or lost catalog from the blobs of --data-dir, say what came back, "
         "and exit")
      ->needs(app.get_option("--data-dir"))
      ->configurable(false);
  app.add_flag("--print-config", flags.print_config,
               "Print the settings in use as a --config file and exit")
      ->configurable(false);
  CLI::Option* file = app.set_config("--config", "",
                                     "Read settings from a YAML file: the flags' "
                                     "names with underscores; flags win");
  file->type_name("FILE.yaml")->configurable(false);
  app.config_formatter(YamlFile(app, *file));

  try {
    // CLI11 would take the next word for it.
    for (int i = 1; i < argc; ++i) {
      const std::string_view word = argv[i];
      if (word.starts_with("--") && word.find('=') == word.size() - 1) {
        throw CLI::ArgumentMismatch(
            fmt::format("{} lacks its value", word.substr(0, word.size() - 1)),
            CLI::ExitCodes::ArgumentMismatch);
      }
    }
    app.parse(argc, argv);
    const bool print_config = flags.print_config;
    Config config = Complete(std::move(flags));
    if (print_config) {
      out << ToYaml(config);
      return 0;
    }
    return config;
  } catch (const CLI::CallForHelp&) {
    out << app.help();
    return 0;
  } catch (const CLI::CallForVersion& version) {
    out << version.what() << "\n";
    return 0;
  } catch (const CLI::Error& error) {
    err << "sparsed: " << error.what() << "\nsparsed --help lists the flags.\n";
    return kExitWrongUse;
  }
}

}  // namespace sparsed::server
