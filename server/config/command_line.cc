#include "server/config/command_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "base/help_text.h"
#include "kernels/cuda/driver.h"
#include "kernels/device_id.h"
#include "server/config/access_flags.h"
#include "server/config/cluster_flags.h"
#include "server/config/complete.h"
#include "server/config/config_file.h"
#include "server/config/nearest_word.h"
#include "server/config/otlp_endpoint.h"
#include "server/config/problems.h"
#include "server/config/values.h"

namespace sparsed::server {
namespace {

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
  const auto count = Whole(1, 65536);

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
  DefineClusterFlags(app, config);
  CLI::Option* data_dir = app.add_option("--data-dir", config.data_dir,
                                         "Keep matrices in this folder (made if missing)")
                              ->type_name("DIR")
                              ->group("Serving");
  app.add_flag("--in-memory", flags.in_memory, "Keep nothing on disk: a restart loses all matrices")
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

  app.add_option("--past-measurements", config.past_measurement_bytes,
                 "Room in the data directory for what was measured on patterns that no matrix has "
                 "any more, features and density map included: the oldest go; 0: none is kept")
      ->transform(Size())
      ->default_str("64MiB")
      ->group("Serving");

  app.add_option(
         "--models", config.models,
         "Models that choose what is tried: auto (those that are installed with the server, "
         "and those that were put), a folder of others in the place of the installed ones, "
         "or off (rules choose)")
      ->type_name("auto|off|DIR")
      ->capture_default_str()
      ->group("Serving");
  app.add_option("--expected-requests", config.expected_requests,
                 "Requests that each problem signature is expected to serve: what a model promises "
                 "of a candidate has to pay for building and trying it in so many")
      ->check(Whole(1, int64_t{1'000'000'000'000}))
      ->capture_default_str()
      ->group("Serving");

  app.add_option(
         "--host-memory", config.host_memory_bytes,
         "Host memory for matrices, layouts, operands and results together, such as 4GiB "
         "(default: the machine's or the control group's less a fifth, at least 1GiB, and at "
         "most half)")
      ->transform(Size())
      ->group("Limits");
  app.add_option(
         "--wire-memory", config.wire_memory_bytes,
         "Part of --host-memory for messages that are on their way in (default: a quarter, at "
         "most 1GiB)")
      ->transform(Size())
      ->group("Limits");
  app.add_option("--preparation-memory", config.preparation_memory_bytes,
                 "Part of it that preparations may use at once, for layouts and trials; what does "
                 "not fit is "
                 "not tried (default: half)")
      ->transform(Size())
      ->group("Limits");
  app.add_option("--device-memory", config.device_memory_bytes,
                 "GPU memory for layouts, operands and results together, such as 20GiB (default: "
                 "nine tenths of what is free at the start); taken as it is needed")
      ->transform(Size())
      ->group("Limits");
  app.add_option("--staging-memory", config.staging_memory_bytes,
                 "Pinned host memory that copies to and from the GPU pass through")
      ->transform(Size())
      ->default_str("64MiB")
      ->group("Limits");
  app.add_option("--connection-memory", config.connection_memory_bytes,
                 "Host memory that the requests, uploads and unread results of one client "
                 "connection may hold together (default: half of --host-memory)")
      ->transform(Size())
      ->group("Limits");
  app.add_option("--buffer-memory", config.buffer_memory_bytes,
                 "Bytes of buffers (dense matrices that are kept under a name) that one tenant may "
                 "have, in memory or on disk, such "
                 "as 4GiB; 0: no quota but --host-memory (default)")
      ->transform(Size())
      ->group("Limits");
  app.add_option("--buffer-time-to-live", config.buffer_time_to_live_seconds,
                 "Seconds for which a buffer stays though nothing uses it, unless it is "
                 "durable or whoever put it said otherwise; 0: for ever")
      ->check(Seconds(0, 366.0 * 86400))
      ->capture_default_str()
      ->group("Limits");
  app.add_option("--threads", config.threads, "Threads that multiply (default: one a CPU)")
      ->check(count)
      ->group("Limits");
  app.add_option(
         "--worker-slots", config.worker_slots,
         "Worker slots of the CPU: requests that run on it at once, sharing the threads; a GPU has "
         "slots of its own")
      ->check(count)
      ->capture_default_str()
      ->group("Limits");
  app.add_option("--preparation-workers", config.preparation_workers,
                 "Preparations at once; 0: prepare nothing")
      ->check(Whole(0, 1024))
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
      ->check(Whole(1, 1 << 20))
      ->group("Limits");
  app.add_option("--max-chunk", config.max_chunk_bytes,
                 "Largest chunk that a client may send, such as 2MiB")
      ->transform(Size())
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
      ->check(Whole(0, 1024))
      ->capture_default_str()
      ->group("Limits");
  app.add_option("--ring-spin", config.ring_spin_microseconds,
                 "Microseconds that the thread of a ring looks for the next request before it "
                 "sleeps: up to a CPU for each ring in use, for the time to wake")
      ->check(Whole(0, 100'000, "MICROSECONDS"))
      ->capture_default_str()
      ->group("Limits");
  app.add_option("--max-queued", config.max_queued, "Requests waiting for a worker slot")
      ->check(Whole(1, 1 << 24))
      ->capture_default_str()
      ->group("Limits");
  app.add_option("--batch-wait", config.batch_wait_microseconds,
                 "Microseconds that a narrow SpMM may wait for others of its tenant on the same "
                 "matrix that are arriving, to be multiplied as one with them; 0: each by itself")
      ->check(Whole(0, 100'000, "MICROSECONDS"))
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

  app.add_option("--log-level", config.log_level, "debug, info, warning or error")
      ->transform(OneOf<LogLevel>({{"debug", LogLevel::kDebug},
                                   {"info", LogLevel::kInfo},
                                   {"warning", LogLevel::kWarn},
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

void DefineActions(CLI::App& app, Flags& flags, bool& print_config, bool& check_config,
                   std::string& file) {
  app.set_version_flag("--version", Version(), "Print the version and what was built, and exit")
      ->configurable(false);
  app.add_flag("--salvage", flags.config.salvage,
               "Rebuild a damaged or lost catalog from the blobs of --data-dir, say what came "
               "back, and exit")
      ->configurable(false);
  app.add_flag("--calibrate", flags.config.calibrate,
               "Measure the rates and times of the devices, keep them in --data-dir for the starts "
               "that follow, print them, and exit")
      ->configurable(false);
  app.add_flag("--print-config", print_config,
               "Print the settings in use as a --config file and exit")
      ->configurable(false);
  app.add_flag("--check-config", check_config,
               "Check the settings and the files that they name, print what would be used and "
               "where each value comes from, and exit; 2 if something is wrong")
      ->configurable(false);
  app.add_option("--config", file,
                 "Read settings from a YAML file: the flags' names with underscores; flags win")
      ->type_name("FILE.yaml")
      ->configurable(false);
}

/// CLI11 would take the next word for the value.
bool LacksItsValue(std::string_view word) {
  return word.starts_with("--") && word.find('=') == word.size() - 1;
}

/// The command line, and what it sets.
struct CommandLine {
  CLI::App app{
      "sparsed holds sparse matrices and multiplies with them on request.\n"
      "  sparsed --data-dir=/var/lib/sparsed\n"
      "  sparsed --in-memory --listen=unix:/run/sparsed.sock"};
  Flags flags;
  bool print_config = false, check_config = false;
  std::string file;

  CommandLine() {
    app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::Throw);
    app.get_formatter()->column_width(34);
    flags.config.threads = flags.config.preparation_threads = 0;
    DefineActions(app, flags, print_config, check_config, file);
    DefineFlags(app, flags);
  }
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  void Parse(const std::vector<const char*>& words) {
    for (const char* word : words) {
      if (LacksItsValue(word)) throw CLI::ArgumentMismatch("a value is missing");
    }
    app.parse(static_cast<int>(words.size()), words.data());
  }
};

/// Sorts out what is wrong with a command line, word by word: CLI11 ends at the first problem.
class WrongWords {
 public:
  explicit WrongWords(Problems& problems) : problems_(problems) {}

  /// The words that can be parsed. `words` begins with the program's name.
  std::vector<const char*> Sort(const std::vector<const char*>& words) {
    std::vector<const char*> right = {words.front()};
    for (size_t i = 1; i < words.size();) {
      const size_t end = EndOfFlag(words, i);
      const std::vector<const char*> flag(words.begin() + static_cast<std::ptrdiff_t>(i),
                                          words.begin() + static_cast<std::ptrdiff_t>(end));
      if (Check(flag)) right.insert(right.end(), flag.begin(), flag.end());
      i = end;
    }
    return right;
  }

 private:
  /// Null if there is no such flag.
  const CLI::Option* OptionOf(std::string_view word) const {
    return known_.app.get_option_no_throw(std::string(word.substr(0, word.find('='))));
  }

  /// Behind the flag at `begin` and its values. One that is not known may have been meant to have
  /// one.
  size_t EndOfFlag(const std::vector<const char*>& words, size_t begin) const {
    const std::string_view word = words[begin];
    const CLI::Option* const option = OptionOf(word);
    size_t end = begin + 1;
    if (!word.starts_with("-") || word.find('=') != word.npos) return end;
    for (int left = option == nullptr ? 1 : option->get_items_expected_max();
         left > 0 && end < words.size() && words[end][0] != '-'; --left) {
      ++end;
    }
    return end;
  }

  /// Whether this flag alone is right; else says what is wrong.
  bool Check(std::vector<const char*> words) {
    const std::string_view word = words.front();
    const CLI::Option* const option = OptionOf(word);
    const std::string_view written = word.substr(0, word.find('='));
    if (option == nullptr || !written.starts_with("-")) {
      problems_.Add("", fmt::format("there is no flag {}{}", written, Hint(written)));
      return false;
    }
    const std::string flag = option->get_single_name();
    const auto wrong = [&](std::string_view what) {
      const std::string name = fmt::format("--{}: ", flag);
      if (what.starts_with(name)) what.remove_prefix(name.size());
      problems_.Add(flag, std::string(what));
      return false;
    };
    if (LacksItsValue(word)) return wrong("its value is missing");
    if (!seen_.insert(flag).second && option->get_items_expected_max() <= 1) {
      return wrong("it is there twice");
    }
    words.insert(words.begin(), "sparsed");
    try {
      CommandLine().Parse(words);
    } catch (const CLI::Success&) {  // --help, --version
    } catch (const CLI::Error& error) {
      return wrong(error.what());
    }
    return true;
  }

  std::string Hint(std::string_view written) const {
    std::vector<std::string> flags;
    for (const CLI::Option* option : known_.app.get_options()) {
      flags.push_back(option->get_single_name());
    }
    flags.emplace_back(kFormerWorkerSlots);
    const size_t name = std::min(written.find_first_not_of('-'), written.size());
    std::string nearest = NearestWord(written.substr(name), flags);
    if (nearest == kFormerWorkerSlots) nearest = "worker-slots";
    return nearest.empty() ? "" : fmt::format("; did you mean --{}?", nearest);
  }

  const CommandLine known_;
  std::set<std::string> seen_;
  Problems& problems_;
};

/// The words of a command line with flags that were called otherwise once by their present names.
std::vector<std::string> WithPresentNames(int argc, const char* const* argv) {
  const std::string former = fmt::format("--{}", kFormerWorkerSlots);
  std::vector<std::string> words(argv, argv + argc);
  for (std::string& word : words) {
    if (word == former || word.starts_with(former + "=")) {
      word.replace(0, former.size(), "--worker-slots");
    }
  }
  return words;
}

/// ToYaml with the place where each value comes from behind it.
std::string Annotated(const Config& config, const CLI::App& app, const Problems& problems) {
  std::istringstream lines(ToYaml(config));
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    std::string flag = line.substr(0, line.find(':'));
    std::ranges::replace(flag, '_', '-');
    const CLI::Option* option = app.get_option_no_throw("--" + flag);
    std::string source = "default";
    if (const std::optional<Place> place = problems.PlaceOf(flag)) {
      source = fmt::format("{}:{}", problems.file(), place->line);
    } else if (option != nullptr && option->count() > 0) {
      source = "--" + flag;
    }
    text += fmt::format("{:<40}  # {}\n", line, source);
  }
  return text;
}

}  // namespace

const std::map<std::string, std::string>& UnitsOfSettings() {
  static const std::map<std::string, std::string> units = [] {
    Flags flags;
    CLI::App app;
    DefineFlags(app, flags);
    std::map<std::string, std::string> found;
    for (const CLI::Option* const option : app.get_options()) {
      if (option->get_lnames().empty()) continue;
      std::string key = option->get_lnames().front();
      std::ranges::replace(key, '-', '_');
      // What its validator is called: the longer name first.
      for (const auto& [type, unit] :
           {std::pair("MICROSECONDS", "microseconds"), std::pair("SECONDS", "seconds"),
            std::pair("TIME", "seconds"), std::pair("SIZE", "bytes")}) {
        if (option->get_type_name().find(type) == std::string::npos) continue;
        found.emplace(key, unit);
        break;
      }
    }
    return found;
  }();
  return units;
}

int Refuse(std::ostream& err, const std::vector<std::string>& sentences) {
  for (const std::string& sentence : sentences) err << "sparsed: " << sentence << "\n";
  err << "sparsed --help lists the flags.\n";
  return kExitWrongUse;
}

std::variant<Settings, int> ParseCommandLine(int argc, const char* const* argv, std::ostream& out,
                                             std::ostream& err) {
  Settings settings;
  Problems& problems = settings.problems;
  const std::vector<std::string> present = WithPresentNames(argc, argv);
  std::vector<const char*> words;
  for (const std::string& word : present) words.push_back(word.c_str());
  auto line = std::make_unique<CommandLine>();
  try {
    try {
      line->Parse(words);
    } catch (const CLI::Success&) {
      throw;
    } catch (const CLI::Error&) {
      // What is right is looked at nevertheless, so that all is told at once.
      line = std::make_unique<CommandLine>();
      line->Parse(WrongWords(problems).Sort(words));
    }
  } catch (const CLI::CallForHelp&) {  // whatever is wrong beside it
    out << WrappedHelp(line->app.help(), TerminalColumns(STDOUT_FILENO));
    return 0;
  } catch (const CLI::CallForVersion& version) {
    out << version.what() << "\n";
    return 0;
  } catch (const CLI::ExcludesError&) {  // Complete says so
  } catch (const CLI::Error& error) {
    problems.Add("", error.what());
  }
  const bool wrong_words = !problems.empty();
  if (!line->file.empty()) ReadConfigFile(line->app, line->file, problems);
  settings.config = Complete(std::move(line->flags), problems);
  settings.check = line->check_config;
  if (wrong_words || (!problems.empty() && !settings.check)) {
    return Refuse(err, problems.Sentences());
  }
  if (line->print_config && problems.empty()) {
    out << ToYaml(settings.config);
    return 0;
  }
  settings.annotated = Annotated(settings.config, line->app, problems);
  return settings;
}

}  // namespace sparsed::server
