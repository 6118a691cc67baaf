// bench: how fast products with a matrix are, as a caller sees it.
#include <fmt/format.h>

#include <atomic>
#include <csignal>
#include <memory>
#include <utility>

#include "client/cli/bench_load.h"
#include "client/cli/bench_request.h"
#include "client/cli/command_line.h"
#include "client/cli/commands.h"

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
};

constexpr std::array<std::pair<const char*, double>, 4> kQuantiles = {
    {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p99.9", 0.999}}};

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

Json ToJson(const BenchArguments& arguments, const MatrixInfo& matrix, const LoadResult& result,
            double flops) {
  const auto count = static_cast<double>(result.latency.count());
  const double rate = count / result.seconds;
  const auto kernel = static_cast<double>(result.phases[4].mean().count());
  const auto most =
      std::ranges::max_element(result.plans, {}, &std::pair<const std::string, int64_t>::second);
  Json json = {{"matrix", matrix.name},
               {"rows", matrix.rows},
               {"cols", matrix.cols},
               {"nnz", matrix.nnz},
               {"type", Name(matrix.type)},
               {"operation", Name(arguments.bench.operation)},
               {"transposed", arguments.bench.transpose},
               {"k", arguments.bench.operation == Operation::kSpgemm ? 0 : arguments.bench.k},
               {"transport", Name(result.transport)},
               {"concurrency", arguments.load.workers},
               {"rate", arguments.load.rate},
               {"plan", most == result.plans.end() ? "" : most->first},
               {"plans", result.plans},
               {"requests", result.latency.count()},
               {"seconds", result.seconds},
               {"warmup_seconds", result.warmup_seconds},
               {"windows", result.windows},
               {"error", result.error},
               {"steady", result.steady},
               {"requests_per_second", rate},
               {"gflops", 1e-9 * rate * flops},
               {"kernel_gflops", kernel > 0 ? flops / kernel : 0},
               {"latency", ToJson(result.latency)},
               {"phases", Json::object()},
               {"failed", result.failed}};
  for (size_t i = 0; i < kLoadPhases.size(); ++i) {
    json["phases"][std::string(kLoadPhases[i])] = ToJson(result.phases[i]);
  }
  return json;
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

/// What the numbers do not say.
std::string Remarks(const BenchArguments& arguments, const LoadResult& result) {
  std::string text;
  if (!result.steady && arguments.load.seconds == 0 && !interrupted) {
    text += fmt::format(
        "note    it never became steady: windows differ by {:.1f}% (standard error of their mean); "
        "something else runs, or its plan changes\n",
        100 * result.error);
  }
  const double rate = static_cast<double>(result.latency.count()) / result.seconds;
  if (arguments.load.rate > 0 && rate < 0.98 * arguments.load.rate) {
    text += fmt::format(
        "note    {:.1f} requests a second were due, which is more than {} at once could bring: "
        "latencies grow for as long as it runs\n",
        arguments.load.rate, arguments.load.workers);
  }
  if (arguments.bench.transport == BenchTransport::kShared &&
      result.transport == Transport::kStream && result.latency.count() > 0) {
    text +=
        "note    the server shares no memory with this program (--local-listen): operands were "
        "streamed\n";
  }
  if (result.plans.size() > 1) text += "note    its plan changed meanwhile\n";
  for (const auto& [code, count] : result.failed) {
    text += fmt::format("failed  {} with {}: {}\n", Count(count), code, result.first_failure);
  }
  return text;
}

std::string ToText(const BenchArguments& arguments, const Json& json, const LoadResult& result) {
  const bool sparse = arguments.bench.operation == Operation::kSpgemm;
  std::string text = fmt::format(
      "{}  {}{}{} {}, {}, operands and results: {}\n"
      "plan    {}\n"
      "ran     {} requests in {:.2f} s after {:.2f} s of warm-up{}\n"
      "rate    {:.1f} requests/s",
      arguments.bench.name, arguments.operation, arguments.bench.transpose ? "^T" : "",
      sparse ? "" : fmt::format(" K={}", arguments.bench.k), json["type"].get<std::string>(),
      arguments.load.rate > 0 ? fmt::format("{} due each second", arguments.load.rate)
                              : fmt::format("{} at once", arguments.load.workers),
      Name(result.transport), json["plan"].get<std::string>(), Count(result.latency.count()),
      result.seconds, result.warmup_seconds,
      result.steady ? fmt::format(", steady within {:.2f}%", 100 * result.error) : "",
      json["requests_per_second"].get<double>());
  if (!sparse) {
    text += fmt::format(", {:.2f} GFLOP/s; {:.2f} GFLOP/s in the kernel",
                        json["gflops"].get<double>(), json["kernel_gflops"].get<double>());
  }
  text += "\n\n";
  Table table({"", "MEAN", "P50", "P90", "P99", "P99.9", "MAX", "SHARE"});
  const auto whole = static_cast<double>(result.latency.mean().count());
  table.Add(
      Cells(arguments.load.rate > 0 ? "latency, from when due" : "latency", result.latency, 0));
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
  for (const auto& [key, value] : json["latency"].items()) add("latency_" + key, value);
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
  const ProblemClass wanted = {.operation = bench.operation,
                               .transposed = bench.transpose,
                               .k = bench.operation == Operation::kSpgemm ? 0 : bench.k,
                               .allow_tf32 = bench.allow_tf32};
  const absl::Status asked = matrix.Prepare({.expected = {wanted}});
  if (absl::IsPermissionDenied(asked) || absl::IsFailedPrecondition(asked)) return absl::OkStatus();
  if (!asked.ok()) return asked;
  return WaitReady(matrix);
}

absl::StatusOr<Report> Bench(const Client& client, const BenchArguments& arguments) {
  const Matrix matrix = client.MatrixNamed(arguments.bench.name);
  if (!arguments.no_prepare) {
    if (absl::Status ready = PrepareFor(matrix, arguments.bench); !ready.ok()) return ready;
  }
  const absl::StatusOr<MatrixInfo> info = matrix.Info();
  if (!info.ok()) return info.status();
  const auto requests = BenchRequests::Make(client, *info, arguments.bench);
  if (!requests.ok()) return requests.status();
  std::signal(SIGINT, Interrupt);
  const absl::StatusOr<LoadResult> result = RunLoad(
      arguments.load, [&requests](int worker) { return (*requests)->Run(worker); }, interrupted);
  std::signal(SIGINT, SIG_DFL);
  if (!result.ok()) return result.status();
  Report report;
  report.json = ToJson(arguments, *info, *result, (*requests)->flops());
  report.text = arguments.csv ? ToCsv(report.json) : ToText(arguments, report.json, *result);
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
  if (arguments.concurrency == 0) arguments.concurrency = arguments.load.rate > 0 ? 64 : 1;
  bench.workers = arguments.load.workers = static_cast<int>(arguments.concurrency);
}

}  // namespace

void AddBench(CLI::App& app, Invocation& invocation) {
  CLI::App* bench = app.add_subcommand(
      "bench",
      "Measure products with a matrix: rate, latency by percentiles and phases, GFLOP/s. Prepares "
      "it for them, then runs until the rate is known to half a percent. With --rate requests "
      "begin when they are due, whether those before have ended or not, and latency counts from "
      "then");
  bench->footer(ExampleLines(
      {"sparsectl generate matrix 300x300 --out=g.mtx", "sparsectl upload g.mtx",
       "sparsectl bench g --k=16 --seconds=1",
       "sparsectl bench g --op=sddmm --k=16 --concurrency=4 --transport=held --seconds=1",
       "sparsectl bench g --rate=200 --k=16 --seconds=1 --csv > bench.csv"}));
  auto b = std::make_shared<BenchArguments>();
  AddName(bench, b->bench.name);
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
      ->check(CLI::Range(0.001, 1e6));
  OneOf(bench->add_option("--transport", b->transport,
                          "How operands and results travel: stream, with each request; held, not "
                          "at all, as the server holds them; shared, in memory shared with a "
                          "server on this machine"),
        {"stream", "held", "shared"})
      ->capture_default_str();
  CLI::Option* seconds =
      bench->add_option("--seconds", b->load.seconds, "For so long (default: until it is known)")
          ->check(CLI::Range(0.1, 86400.0));
  bench
      ->add_option("--most-seconds", b->load.most_seconds,
                   "For so long if the rate is not known before")
      ->check(CLI::Range(1.0, 86400.0))
      ->excludes(seconds)
      ->capture_default_str();
  bench->add_flag("--no-prepare", b->no_prepare, "Take the plan that there is, or plain CSR");
  bench->add_flag("--csv", b->csv, "A header and a line, for a table of many runs");
  bench->callback([&invocation, b] {
    Complete(*b);
    // What is refused is counted, not tried again.
    invocation.options.max_attempts = 1;
    invocation.run = [b](const Client& client) { return Bench(client, *b); };
  });
}

}  // namespace sparsed::cli
