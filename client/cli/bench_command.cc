// bench: how fast products with a matrix are, as a caller sees it.
#include <fmt/format.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <functional>
#include <memory>
#include <utility>

#include "client/cli/bench_load.h"
#include "client/cli/bench_request.h"
#include "client/cli/command_line.h"
#include "client/cli/commands.h"
#include "client/cli/replay_request.h"
#include "client/cli/request_log.h"

namespace sparsed::cli {
namespace {

struct BenchArguments {
  BenchOptions bench;
  LoadOptions load;
  std::string operation = "spmm";
  std::string transport = "stream";
  int64_t concurrency = 0;  ///< 0: 1, or 64 at a rate
  bool csv = false;
  bool no_prepare = false;
  std::string replay;  ///< a log of requests, in the place of all the same
  double speed = 1;    ///< of it
  std::string tenant;  ///< of it alone; empty: of all
};

constexpr std::array<std::pair<const char*, double>, 4> kQuantiles = {
    {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p99.9", 0.999}}};

/// A machine whose own speed varies by more is not quiet.
constexpr double kQuiet = 0.02;
/// Who begins so much later than it is due waits for those before.
constexpr std::chrono::milliseconds kLate{5};

std::atomic<bool> interrupted = false;
extern "C" void Interrupt(int signal) {
  interrupted = true;
  std::signal(signal, SIG_DFL);  // the second one ends it
}

Json ToJson(const LatencyHistogram& times) {
  Json json = {{"mean_ns", times.mean().count()}};
  for (const auto& [name, share] : kQuantiles) {
    json[fmt::format("{}_ns", name)] = times.Quantile(share).count();
  }
  json["max_ns"] = times.max().count();
  return json;
}

/// A part as a number; null where it is not known.
Json PartOrNull(double part) { return std::isfinite(part) ? Json(part) : Json(); }
/// The same as in "+-0.81%"; empty where it is not known.
std::string PlusMinus(double part) {
  return std::isfinite(part) ? fmt::format(" +-{:.2f}%", 100 * part) : std::string();
}

/// What was measured, behind what is in `json`.
void AddResult(const LoadResult& result, Json& json) {
  const auto count = static_cast<double>(result.latency.count());
  const double flops = result.flops / count;
  const auto most =
      std::ranges::max_element(result.plans, {}, &std::pair<const std::string, int64_t>::second);
  json.update({{"transport", Name(result.transport)},
               {"plan", most == result.plans.end() ? "" : most->first},
               {"plans", result.plans},
               {"requests", result.latency.count()},
               {"seconds", result.seconds},
               {"warmup_seconds", result.warmup_seconds},
               {"unsteady_seconds", result.unsteady_seconds},
               {"windows", result.windows},
               {"not_begun", result.not_begun},
               {"interval", PartOrNull(result.interval)},
               {"kernel_interval", PartOrNull(result.kernel.interval)},
               {"machine_variation", result.machine},
               {"steady", result.steady},
               {"requests_per_second", result.rate},
               {"gflops", 1e-9 * flops * result.rate},
               {"kernel_gflops", result.kernel.value > 0 ? flops / result.kernel.value : 0},
               {"latency", ToJson(result.latency)},
               {"waited", ToJson(result.waited)},
               {"phases", Json::object()},
               {"failed", result.failed}});
  for (size_t i = 0; i < kLoadPhases.size(); ++i) {
    json["phases"][std::string(kLoadPhases[i])] = ToJson(result.phases[i]);
  }
}

Json ToJson(const BenchArguments& arguments, const MatrixInfo& matrix) {
  return {{"matrix", matrix.name},
          {"rows", matrix.rows},
          {"cols", matrix.cols},
          {"nnz", matrix.nnz},
          {"type", Name(matrix.type)},
          {"operation", Name(arguments.bench.operation)},
          {"transposed", arguments.bench.transpose},
          {"k", arguments.bench.operation == Operation::kSpgemm ? 0 : arguments.bench.k},
          {"concurrency", arguments.load.workers},
          {"rate", arguments.load.rate}};
}

bool OpenLoop(const BenchArguments& arguments) {
  return arguments.load.rate > 0 || !arguments.load.schedule.empty();
}

std::vector<std::string> Cells(std::string name, const LatencyHistogram& times, double of) {
  std::vector<std::string> cells = {std::move(name), ShortTime(times.mean())};
  for (const auto& [quantile, share] : kQuantiles)
    cells.push_back(ShortTime(times.Quantile(share)));
  cells.push_back(ShortTime(times.max()));
  cells.push_back(
      of > 0 ? fmt::format("{:.0f}%", 100 * static_cast<double>(times.mean().count()) / of) : "");
  return cells;
}

std::string CountedRequests(int64_t count) { return Counted(count, "request", "requests"); }
std::string WereRequests(int64_t count) { return Counted(count, "request was", "requests were"); }

/// Where it is not known what it takes.
std::string UnsteadyRemark(const BenchArguments& arguments, const LoadResult& result) {
  if (result.steady || !arguments.load.schedule.empty() || interrupted) return "";
  const double within = std::max(result.interval, result.kernel.interval);
  std::string text = arguments.load.seconds > 0 ? "note    it ran too short a time"
                                                : "note    it did not become steady";
  if (std::isfinite(within)) {
    const char* const what = result.kernel.interval > result.interval ? "the kernel's time"
                             : OpenLoop(arguments)                    ? "the median latency"
                                                                      : "the rate";
    text += fmt::format(": {} is known to {:.1f}% only, not to {:.0f}%", what, 100 * within,
                        100 * arguments.load.precision);
  }
  if (result.machine > kQuiet) {
    text += fmt::format(
        "; this machine's own speed varies by {:.0f}%, so that something else runs on it, or "
        "beside it",
        100 * result.machine);
  } else if (arguments.load.seconds > 0) {
    text += "; without --seconds it runs as long as it takes";
  } else {
    text += "; its plan changes, or others use the server or the machine";
  }
  return text + '\n';
}

/// What the numbers do not say.
std::string Remarks(const BenchArguments& arguments, const LoadResult& result) {
  std::string text = UnsteadyRemark(arguments, result);
  if (text.empty() && result.machine > kQuiet && !interrupted) {
    text = fmt::format(
        "note    this machine's own speed varied by {:.0f}% meanwhile, so that something else runs "
        "on it, or beside it: another run may differ by as much\n",
        100 * result.machine);
  }
  if (result.not_begun > 0) {
    text += fmt::format(
        "note    {} that {} due had not begun in the end: {:.1f} a second are more than {} at once "
        "could bring, and latencies grow for as long as it runs\n",
        CountedRequests(result.not_begun), result.not_begun == 1 ? "was" : "were",
        arguments.load.rate, arguments.load.workers);
  }
  if (!arguments.load.schedule.empty() && result.waited.Quantile(0.99) > kLate) {
    text += fmt::format(
        "note    one in a hundred began {} late or later: this program was held up, or more were "
        "due "
        "than {} at once could bring (--concurrency)\n",
        ShortTime(result.waited.Quantile(0.99)), arguments.load.workers);
  }
  if (arguments.bench.transport == BenchTransport::kShared &&
      result.transport == Transport::kStream && result.latency.count() > 0) {
    text +=
        "note    the server shares no memory with this program (--local-listen): operands were "
        "streamed\n";
  }
  if (result.plans.size() > 1 && arguments.load.schedule.empty())
    text += "note    its plan changed meanwhile\n";
  for (const auto& [code, count] : result.failed) {
    text += fmt::format("failed  {} with {}: {}\n", Count(count), code, result.first_failure);
  }
  return text;
}

/// The time that counts, and what became of the other.
std::string TimeText(const BenchArguments& arguments, const LoadResult& result) {
  std::string text = fmt::format("{:.2f} s", result.seconds);
  if (!OpenLoop(arguments)) text += fmt::format(", by {} connections in turn", result.windows);
  text += fmt::format("; warm-up {:.2f} s", result.warmup_seconds);
  if (result.unsteady_seconds > 0) {
    text += fmt::format(", and {:.2f} s before it was steady", result.unsteady_seconds);
  }
  return text;
}

/// What ran, in the first lines.
std::string Heading(const BenchArguments& arguments, const Json& json, const LoadResult& result) {
  if (!arguments.load.schedule.empty()) {
    return fmt::format(
        "replay  {}{}, {} of {} requests\n"
        "ran     {} in {:.2f} s\n",
        arguments.replay,
        arguments.speed == 1 ? "" : fmt::format(" at {} x its speed", arguments.speed),
        Count(static_cast<int64_t>(arguments.load.schedule.size())),
        Count(json["recorded"].get<int64_t>()), CountedRequests(result.latency.count()),
        result.seconds);
  }
  const bool sparse = arguments.bench.operation == Operation::kSpgemm;
  const auto buffers = json["held_buffers"].get<int64_t>();
  return fmt::format(
      "{}  {}{}{} {}, {}, operands and results: {}{}\n"
      "plan    {}\n"
      "ran     {} in {}\n",
      arguments.bench.name, arguments.operation, arguments.bench.transpose ? "^T" : "",
      sparse ? "" : fmt::format(" K={}", arguments.bench.k), json["type"].get<std::string>(),
      arguments.load.rate > 0 ? fmt::format("{} due each second", arguments.load.rate)
                              : fmt::format("{} at once", arguments.load.workers),
      Name(result.transport),
      buffers == 0 ? ""
                   : fmt::format(" ({}, {})", Counted(buffers, "buffer"),
                                 Bytes(json["held_bytes"].get<int64_t>())),
      json["plan"].get<std::string>(), CountedRequests(result.latency.count()),
      TimeText(arguments, result));
}

std::string ToText(const BenchArguments& arguments, const Json& json, const LoadResult& result) {
  std::string text = fmt::format("{}rate    {:.1f} requests/s", Heading(arguments, json, result),
                                 json["requests_per_second"].get<double>());
  if (!OpenLoop(arguments)) text += PlusMinus(result.interval);
  if (result.flops > 0) {
    text += fmt::format(", {:.2f} GFLOP/s; {:.2f} GFLOP/s{} in the kernel",
                        json["gflops"].get<double>(), json["kernel_gflops"].get<double>(),
                        PlusMinus(result.kernel.interval));
  }
  text += "\n\n";
  Table table({"", "MEAN", "P50", "P90", "P99", "P99.9", "MAX", "SHARE"});
  const auto whole = static_cast<double>(result.latency.mean().count());
  table.Add(Cells(OpenLoop(arguments) ? "latency, from when due" : "latency", result.latency, 0));
  if (OpenLoop(arguments)) table.Add(Cells("until it began", result.waited, whole));
  table.Add(Cells("on the server", result.phases.back(), whole));
  for (size_t i = 0; i + 1 < kLoadPhases.size(); ++i) {
    if (result.phases[i].max().count() == 0) continue;
    table.Add(Cells(fmt::format("  {}", kLoadPhases[i]), result.phases[i], whole));
  }
  text += table.Text();
  const std::string remarks = Remarks(arguments, result);
  return text + (remarks.empty() ? "" : "\n" + remarks);
}

/// A header, and a line.
std::string ToCsv(const Json& json) {
  std::string header, line;
  const auto add = [&](const std::string& key, const Json& value) {
    header += (header.empty() ? "" : ",") + key;
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    const bool quoted = text.find_first_of(",\"\n") != text.npos;
    std::string cell;
    for (const char c : text) cell += c == '"' ? "\"\"" : std::string(1, c);
    line += (line.empty() ? "" : ",") + (quoted ? '"' + cell + '"' : cell);
  };
  for (const auto& [key, value] : json.items()) {
    if (!value.is_structured()) add(key, value);
  }
  for (const char* const times : {"latency", "waited"}) {
    for (const auto& [key, value] : json[times].items())
      add(fmt::format("{}_{}", times, key), value);
  }
  for (const auto& [phase, times] : json["phases"].items()) {
    for (const auto& [key, value] : times.items()) add(phase + "_" + key, value);
  }
  int64_t failed = 0;
  for (const auto& [code, count] : json["failed"].items()) failed += count.get<int64_t>();
  add("failed", failed);
  return header + "\n" + line + "\n";
}

/// So that its plan is found before it is measured, not meanwhile. Who may not ask for that
/// measures what there is.
absl::Status PrepareFor(const Matrix& matrix, const BenchOptions& bench) {
  const ProblemSignature wanted = {.operation = bench.operation,
                                   .transposed = bench.transpose,
                                   .k = bench.operation == Operation::kSpgemm ? 0 : bench.k,
                                   .allow_tf32 = bench.allow_tf32};
  const absl::Status asked = matrix.Prepare({.expected = {wanted}});
  if (absl::IsPermissionDenied(asked) || absl::IsFailedPrecondition(asked)) return absl::OkStatus();
  if (!asked.ok()) return asked;
  return WaitReady(matrix);
}

absl::StatusOr<LoadResult> Measure(const BenchArguments& arguments, const LoadSetup& setup) {
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, Interrupt);
  absl::StatusOr<LoadResult> result = RunLoad(arguments.load, setup, interrupted);
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
  return result;
}

Report Describe(const BenchArguments& arguments, Json json, const LoadResult& result) {
  Report report;
  report.json = std::move(json);
  AddResult(result, report.json);
  report.text = arguments.csv ? ToCsv(report.json) : ToText(arguments, report.json, result);
  return report;
}

using Connector = std::function<absl::StatusOr<Client>()>;

absl::StatusOr<Report> Bench(const Client& client, const Connector& connect,
                             const BenchArguments& arguments) {
  const Matrix matrix = client.MatrixNamed(arguments.bench.name);
  if (!arguments.no_prepare) {
    if (absl::Status ready = PrepareFor(matrix, arguments.bench); !ready.ok()) return ready;
  }
  const absl::StatusOr<MatrixInfo> info = matrix.Info();
  if (!info.ok()) return info.status();
  const auto requests = BenchRequests::Make(client, *info, arguments.bench);
  if (!requests.ok()) return requests.status();
  const absl::StatusOr<LoadResult> result =
      Measure(arguments, [&]() -> absl::StatusOr<LoadRequest> {
        const absl::StatusOr<Client> own = connect();
        if (!own.ok()) return own.status();
        return (*requests)->Of(*own);
      });
  if (!result.ok()) return result.status();
  Json json = ToJson(arguments, *info);
  json["held_buffers"] = (*requests)->held_buffers();
  json["held_bytes"] = (*requests)->held_bytes();
  return Describe(arguments, std::move(json), *result);
}

/// Requests that were recorded, when they are due.
absl::StatusOr<Report> Replay(const Client& client, BenchArguments arguments) {
  const absl::StatusOr<RequestLog> log = ReadRequestLog(arguments.replay, arguments.tenant);
  if (!log.ok()) return log.status();
  const auto requests = ReplayRequests::Make(client, *log, arguments.load.workers);
  if (!requests.ok()) return requests.status();
  auto schedule = ScheduleOf((*requests)->requests(), arguments.speed);
  if (!schedule.ok()) return schedule.status();
  arguments.load.schedule = *std::move(schedule);
  const absl::StatusOr<LoadResult> result =
      Measure(arguments, [&requests]() -> absl::StatusOr<LoadRequest> {
        return [&requests](int worker, int64_t number) { return (*requests)->Run(worker, number); };
      });
  if (!result.ok()) return result.status();
  int64_t recorded = static_cast<int64_t>(log->requests.size());
  std::string notes;
  for (const auto& [why, count] : log->left_out) {
    recorded += count;
    notes += fmt::format("note    {} left out, which {}\n", WereRequests(count), why);
  }
  for (const auto& [name, count] : (*requests)->missing()) {
    notes += fmt::format("note    {} left out: there is no matrix named '{}' here\n",
                         WereRequests(count), name);
  }
  if (log->tenants.size() > 1) {
    notes += fmt::format("note    they are of {} tenants, and yours makes them all (--tenant)\n",
                         log->tenants.size());
  }
  Json json = {{"replay", arguments.replay},
               {"speed", arguments.speed},
               {"recorded", recorded},
               {"left_out", log->left_out},
               {"missing", (*requests)->missing()},
               {"concurrency", arguments.load.workers}};
  Report report = Describe(arguments, std::move(json), *result);
  if (!arguments.csv) report.text += (report.text.ends_with("%\n") ? "\n" : "") + notes;
  return report;
}

/// What the words stand for.
void Complete(BenchArguments& arguments) {
  BenchOptions& bench = arguments.bench;
  bench.operation = arguments.operation == "sddmm"    ? Operation::kSddmm
                    : arguments.operation == "spgemm" ? Operation::kSpgemm
                                                      : Operation::kSpmm;
  bench.transport = arguments.transport == "held"     ? BenchTransport::kHeld
                    : arguments.transport == "shared" ? BenchTransport::kShared
                                                      : BenchTransport::kStream;
  const auto only_spmm = [&bench](bool given, const char* flag) {
    if (given && bench.operation != Operation::kSpmm) {
      throw CLI::ValidationError(flag, "is for spmm alone");
    }
  };
  only_spmm(bench.transpose, "--transpose");
  only_spmm(bench.allow_tf32, "--allow-tf32");
  if (bench.operation == Operation::kSpgemm && bench.transport != BenchTransport::kStream) {
    throw CLI::ValidationError("--transport", "results of spgemm are streamed");
  }
  if (arguments.bench.name.empty() == arguments.replay.empty()) {
    throw CLI::ValidationError("NAME", arguments.replay.empty()
                                           ? "the matrix, or --replay, is missing"
                                           : "a matrix does not go with --replay");
  }
  if (arguments.concurrency == 0) {
    arguments.concurrency = arguments.load.rate > 0 || !arguments.replay.empty() ? 64 : 1;
  }
  bench.workers = arguments.load.workers = static_cast<int>(arguments.concurrency);
}

void AddReplay(CLI::App& bench, BenchArguments& arguments) {
  CLI::Option* replay =
      bench
          .add_option(
              "--replay", arguments.replay,
              "Make the products of this log again, in the place of all the same: each when "
              "it is due, as it arrived, whether those before have ended or not. A recording "
              "of `sparsectl record`, or a server's log (--log-format=json "
              "--log-level=debug); operands are random, and streamed")
          ->type_name("FILE");
  bench.add_option("--speed", arguments.speed, "Of the recording's time: 2 is twice as fast")
      ->check(BetweenReals(0.001, 1000.0))
      ->capture_default_str()
      ->needs(replay);
  bench
      .add_option("--tenant", arguments.tenant, "Of a recording: the requests of this tenant alone")
      ->type_name("TENANT")
      ->needs(replay);
  for (const char* flag : {"--op", "--k", "--transpose", "--allow-tf32", "--rate", "--transport",
                           "--seconds", "--most-seconds", "--no-prepare"}) {
    replay->excludes(bench.get_option(flag));
  }
}

}  // namespace

void AddBench(CLI::App& app, Invocation& invocation) {
  CLI::App* bench = app.add_subcommand(
      "bench",
      "Measure products with a matrix: rate, latency by percentiles and phases, GFLOP/s. Prepares "
      "it for them, then runs until its figures are known within 1%. With --rate requests "
      "begin when they are due, whether those before have ended or not, and latency counts from "
      "then");
  bench->footer(ExampleLines(
      {"sparsectl generate matrix 300x300 --out=g.mtx", "sparsectl upload g.mtx --replace",
       "sparsectl bench g --k=16 --seconds=1",
       "sparsectl bench g --op=sddmm --k=16 --concurrency=4 --transport=held --seconds=1",
       "sparsectl bench g --rate=200 --k=16 --seconds=1 --csv > bench.csv",
       "sparsectl record --seconds=2 --out=requests.jsonl & sleep 1",
       "sparsectl bench g --k=16 --seconds=0.5 --no-prepare; wait $!",
       "sparsectl bench --replay=requests.jsonl --speed=2"}));
  auto b = std::make_shared<BenchArguments>();
  AddName(bench, b->bench.name)->required(false);
  OneOf(bench->add_option("--op", b->operation, "The operation; spgemm is the matrix with itself"),
        {"spmm", "sddmm", "spgemm"})
      ->capture_default_str();
  bench->add_option("-k,--k", b->bench.k, "K, the columns of the dense operands")
      ->check(Between(1, 65536))
      ->capture_default_str();
  bench->add_flag("-t,--transpose", b->bench.transpose, "SpMM with the transposed matrix");
  bench->add_flag("--allow-tf32", b->bench.allow_tf32,
                  "Factors may be rounded to TF32, where a GPU gains by it");
  bench
      ->add_option("-c,--concurrency", b->concurrency,
                   "Requests in flight; with --rate, at most (default: 1; with --rate 64)")
      ->check(Between(1, 1024));
  bench->add_option("-r,--rate", b->load.rate, "Requests that are due each second")
      ->check(BetweenReals(0.001, 1e6));
  OneOf(bench->add_option("--transport", b->transport,
                          "How operands and results travel: stream, with each request; held, not "
                          "at all, as the server holds them; shared, in memory shared with a "
                          "server on this machine"),
        {"stream", "held", "shared"})
      ->capture_default_str();
  CLI::Option* seconds =
      bench->add_option("--seconds", b->load.seconds, "For so long (default: until it is known)")
          ->check(BetweenReals(0.1, 86400.0));
  bench
      ->add_option("--most-seconds", b->load.most_seconds,
                   "For so long if the rate is not known before")
      ->check(BetweenReals(1.0, 86400.0))
      ->excludes(seconds)
      ->capture_default_str();
  bench->add_flag("--no-prepare", b->no_prepare, "Take the plan that there is, or plain CSR");
  bench->add_flag("--csv", b->csv, "A header and a line, for a table of many runs");
  AddReplay(*bench, *b);
  bench->callback([&invocation, b] {
    Complete(*b);
    // What is refused is counted, not tried again.
    invocation.options.max_attempts = 1;
    invocation.run = [b, &invocation](const Client& client) {
      const auto connect = [&invocation] {
        return Client::Connect(invocation.server, invocation.options);
      };
      return b->replay.empty() ? Bench(client, connect, *b) : Replay(client, *b);
    };
  });
}

}  // namespace sparsed::cli
