// record: the requests that a server gets, for `bench --replay`.
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <optional>
#include <utility>

#include "client/cli/command_line.h"
#include "client/cli/output_file.h"
#include "client/cli/progress_bar.h"
#include "client/cli/request_log.h"

namespace sparsed::cli {
namespace {

struct RecordArguments {
  double seconds = 0;  ///< 0: until it is interrupted
  bool all = false;    ///< tenants
  std::string out;     ///< empty: standard output
};

std::atomic<bool> interrupted = false;
extern "C" void EndRecording(int signal) {
  interrupted = true;
  std::signal(signal, SIG_DFL);  // the second one ends it at once
}

absl::StatusOr<Report> Record(const Client& client, const RecordArguments& arguments) {
  std::optional<OutputFile> file;
  if (!arguments.out.empty()) {
    absl::StatusOr<OutputFile> created = OutputFile::Create(arguments.out);
    if (!created.ok()) return created.status();
    file.emplace(*std::move(created));
  }
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, EndRecording);
  int64_t requests = 0, left_out = 0;
  absl::Status written;
  Call<void> call = client.WatchRequestsAsync(
      arguments.all, [&](const std::vector<SlowRequest>& ended, int64_t n) {
        std::string lines;
        for (const SlowRequest& request : ended) lines += RequestLine(request);
        requests += static_cast<int64_t>(ended.size());
        left_out += n;
        if (written.ok() && !lines.empty()) written = file ? file->Write(lines) : WriteOut(lines);
      });
  const auto begun = std::chrono::steady_clock::now();
  const auto seconds = [&begun] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  };
  ProgressBar bar;
  while (!call.WaitFor(std::chrono::milliseconds(50))) {
    if (interrupted || !written.ok()) break;
    if (arguments.seconds > 0 && seconds() >= arguments.seconds) break;
    bar.Show("recording, " + Counted(requests, "request"), static_cast<int64_t>(seconds()),
             static_cast<int64_t>(arguments.seconds));
  }
  const double took = seconds();
  call.Cancel();
  const absl::Status ended = call.Wait();
  if (!written.ok()) return written;
  // What was recorded until the server went is worth keeping.
  const bool cut_off = !absl::IsCancelled(ended);
  if (cut_off && requests == 0) return ended;
  if (file.has_value()) {
    if (absl::Status status = file->Commit(); !status.ok()) return status;
  }
  Report report;
  report.json = {{"requests", requests}, {"left_out", left_out}, {"seconds", took}};
  if (file.has_value()) report.json["path"] = arguments.out;
  report.text = fmt::format("recorded {} in {:.1f} s{}\n", Counted(requests, "request"), took,
                            file ? fmt::format(" to {}", arguments.out) : "");
  if (cut_off) {
    report.exit_code = ExitCode(ended);
    report.problems = fmt::format("sparsectl: {}\n", std::string(ended.message()));
  }
  if (left_out > 0) {
    report.problems +=
        fmt::format("sparsectl: {} more are missing: they came faster than they could be written\n",
                    Count(left_out));
  }
  if (!file.has_value()) {
    // Standard output is the recording.
    report.problems = report.text + report.problems;
    report.written = true;
  }
  return report;
}

}  // namespace

void AddRecord(CLI::App& app, Invocation& invocation) {
  CLI::App* record = app.add_subcommand(
      "record",
      "Record the requests that the server gets, a line of JSON each: when they came, operation, "
      "matrix, K and parameters, no operands. `bench --replay` makes them again");
  record->footer(ExampleLines({"sparsectl record --seconds=1 --out=requests.jsonl",
                               "sparsectl record --all --seconds=1 > requests.jsonl"}));
  auto arguments = std::make_shared<RecordArguments>();
  record->add_option("--seconds", arguments->seconds, "For so long (default: until Ctrl-C)")
      ->check(CLI::Range(0.1, 30 * 86400.0));
  record->add_flag("--all", arguments->all, "Of all tenants; for operators");
  record->add_option("--out", arguments->out, "The file to write (default: -, standard output)")
      ->type_name("FILE");
  record->callback([&invocation, arguments] {
    if (arguments->out == "-") arguments->out.clear();
    invocation.run = [arguments](const Client& client) { return Record(client, *arguments); };
  });
}

}  // namespace sparsed::cli
