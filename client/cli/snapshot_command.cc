// snapshot: backups of a running server's data.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "client/cli/command_line.h"
#include "client/cli/command_tree.h"
#include "client/cli/output_file.h"
#include "client/cli/progress_bar.h"
#include "client/cli/snapshot_file.h"

namespace sparsed::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct SaveArguments {
  std::string path;  ///< a file, a directory, or "-"
  bool replace = false;
  uint64_t rate = 0;  ///< bytes a second at most; 0: as fast as it goes
};

struct RestoreArguments {
  std::string path;
  std::string data_dir;
};

struct VerifyArguments {
  std::string path;
  bool list = false;
};

std::atomic<bool> interrupted = false;
extern "C" void InterruptRestore(int signal) {
  interrupted = true;
  std::signal(signal, SIG_DFL);  // the second one ends it
}

int64_t NumberIn(const Json& facts, const char* key) {
  const auto found = facts.find(key);
  return found != facts.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

std::string TextIn(const Json& facts, const char* key) {
  const auto found = facts.find(key);
  return found != facts.end() && found->is_string() ? found->get<std::string>() : std::string();
}

Json ToJson(const SnapshotSummary& summary) {
  Json json = summary.facts;
  json["file_bytes"] = summary.bytes;
  json["files"] = summary.files;
  json["damaged"] = summary.damaged;
  return json;
}

std::string ToText(const SnapshotSummary& summary) {
  const Json& facts = summary.facts;
  const std::chrono::system_clock::time_point created(
      std::chrono::duration_cast<std::chrono::system_clock::duration>(
          std::chrono::nanoseconds(NumberIn(facts, "created_unix_ns"))));
  return fmt::format(
      "taken     {}, of sparsed {}\n"
      "holds     {} of {}, {}, {}\n"
      "arrays    {}, {}\n"
      "file      {} bytes\n",
      Time(created), TextIn(facts, "server_version"),
      Counted(NumberIn(facts, "matrices"), "matrix", "matrices"),
      Counted(NumberIn(facts, "patterns"), "pattern"),
      Counted(NumberIn(facts, "layouts"), "layout"), Counted(NumberIn(facts, "buffers"), "buffer"),
      Count(NumberIn(facts, "arrays")), Bytes(NumberIn(facts, "array_bytes")),
      Count(summary.bytes));
}

/// Says what the server's disk had damaged, where there was something.
void TellDamage(const SnapshotSummary& summary, Report& report) {
  if (summary.damaged.empty()) return;
  for (const Json& sentence : summary.damaged) {
    report.problems +=
        fmt::format("damaged   when it was taken: {}\n", sentence.get<std::string>());
  }
  report.problems +=
      fmt::format("sparsectl: the snapshot is whole, but {} of the server's arrays are damaged\n",
                  summary.damaged.size());
  report.exit_code = kDamaged;
}

/// "sparsed-20261126T012300Z.snapshot" in it, if it is a directory.
std::string FileAt(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return path;
  return fmt::format("{}/sparsed-{:%Y%m%dT%H%M%SZ}.snapshot", path,
                     fmt::gmtime(std::time(nullptr)));
}

/// Waits where more came than the rate allows.
class RateLimit {
 public:
  explicit RateLimit(uint64_t rate) : rate_(static_cast<double>(rate)) {}
  void Passed(size_t bytes) {
    if (rate_ == 0) return;
    bytes_ += static_cast<double>(bytes);
    std::this_thread::sleep_until(begun_ + std::chrono::duration_cast<Clock::duration>(
                                               std::chrono::duration<double>(bytes_ / rate_)));
  }

 private:
  const double rate_;
  const Clock::time_point begun_ = Clock::now();
  double bytes_ = 0;
};

/// Checks what comes on its way to `write`.
absl::StatusOr<SnapshotSummary> Receive(
    const Client& client, const SaveArguments& arguments,
    const std::function<absl::Status(std::string_view bytes)>& write) {
  SnapshotCheck check;
  ProgressBar bar;
  RateLimit limit(arguments.rate);
  absl::Status status = client.SaveSnapshot([&](const SnapshotBytes& bytes) {
    absl::Status next = check.Add(bytes.data);
    if (next.ok()) next = write(bytes.data);
    bar.Show("saving", std::min(check.bytes(), bytes.expected), bytes.expected);
    limit.Passed(bytes.data.size());
    return next;
  });
  if (!status.ok()) return status;
  return check.Finish();
}

absl::StatusOr<Report> Described(const SnapshotSummary& summary, const std::string& path) {
  Report report{ToJson(summary), ""};
  report.json["path"] = path;
  report.text = fmt::format("saved     {}\n{}", path, ToText(summary));
  TellDamage(summary, report);
  return report;
}

absl::StatusOr<Report> SaveToOutput(const Client& client, const SaveArguments& arguments) {
  const absl::StatusOr<SnapshotSummary> summary =
      Receive(client, arguments, [](std::string_view bytes) { return WriteOut(bytes); });
  if (!summary.ok()) return summary.status();
  absl::StatusOr<Report> report = Described(*summary, "standard output");
  // Standard output is the snapshot.
  report->problems = report->text + report->problems;
  report->written = true;
  return report;
}

absl::StatusOr<Report> Save(const Client& client, const SaveArguments& arguments) {
  if (arguments.path == "-") return SaveToOutput(client, arguments);
  const std::string path = FileAt(arguments.path);
  std::error_code error;
  if (!arguments.replace && std::filesystem::is_regular_file(path, error)) {
    return absl::AlreadyExistsError(
        fmt::format("{} is there already; --replace puts the new one in its place", path));
  }
  absl::StatusOr<OutputFile> file = OutputFile::Create(path);
  if (!file.ok()) return file.status();
  // It holds what all tenants have.
  if (absl::Status status = file->KeepPrivate(); !status.ok()) return status;
  const absl::StatusOr<SnapshotSummary> summary =
      Receive(client, arguments, [&file](std::string_view bytes) { return file->Write(bytes); });
  if (!summary.ok()) return summary.status();
  absl::Status status = file->Sync();
  if (status.ok()) status = file->Commit();
  if (!status.ok()) return status;
  return Described(*summary, path);
}

/// With a progress bar, until a signal comes.
absl::StatusOr<SnapshotSummary> Read(const std::string& path, std::string_view what,
                                     SnapshotSink* sink) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, InterruptRestore);
  ProgressBar bar;
  absl::StatusOr<SnapshotSummary> summary = ReadSnapshot(
      path, sink, [&](int64_t done, int64_t total) { bar.Show(what, done, total); }, interrupted);
  return summary;
}

absl::StatusOr<Report> Restore(const RestoreArguments& arguments) {
  auto directory = RestoredDirectory::Make(arguments.data_dir);
  if (!directory.ok()) return directory.status();
  const absl::StatusOr<SnapshotSummary> summary =
      Read(arguments.path, "restoring", directory->get());
  if (!summary.ok()) return summary.status();
  if (absl::Status status = (*directory)->Commit(); !status.ok()) return status;
  Report report{ToJson(*summary), ""};
  report.json["data_dir"] = arguments.data_dir;
  report.text =
      fmt::format("restored  {}\n{}start     sparsed --data-dir={}{}\n", arguments.data_dir,
                  ToText(*summary), arguments.data_dir,
                  geteuid() == 0 ? ", once it belongs to the server's user (chown -R)" : "");
  TellDamage(*summary, report);
  return report;
}

std::vector<Listing::Column> ContentsColumns() {
  return {{"KIND", "kind"},    {"NAME", "name"},    {"TENANT", "tenant"}, {"ROWS", "rows"},
          {"COLUMNS", "cols"}, {"NONZEROS", "nnz"}, {"TYPE", "type"},     {"VERSION", "version"}};
}

absl::StatusOr<Report> Verify(const VerifyArguments& arguments) {
  const absl::StatusOr<SnapshotSummary> summary = Read(arguments.path, "verifying", nullptr);
  if (!summary.ok()) return summary.status();
  Report report{ToJson(*summary), ""};
  report.text = fmt::format("whole     every checksum matches\n{}", ToText(*summary));
  TellDamage(*summary, report);
  if (!arguments.list) return report;
  report.text += "\n";
  Listing listing("contents", "nothing in it", ContentsColumns());
  for (const Json& item : summary->contents) {
    const bool matrix = TextIn(item, "kind") == "matrix";
    listing.Add(item, {matrix ? "matrix" : "buffer", TextIn(item, "name"), TextIn(item, "tenant"),
                       Count(NumberIn(item, "rows")), Count(NumberIn(item, "cols")),
                       matrix ? Count(NumberIn(item, "nnz")) : "", TextIn(item, "type"),
                       std::to_string(NumberIn(item, "version"))});
  }
  report.listing = std::move(listing);
  if (const int64_t more = summary->listed - SnapshotSummary::kMostListed; more > 0) {
    report.problems = fmt::format("and {} more\n", Count(more));
  }
  return report;
}

CLI::Option* AddFile(CLI::App* command, std::string& path, const char* what) {
  return command->add_option("FILE", path, what)->type_name("FILE")->required();
}

}  // namespace

void AddSnapshot(CLI::App& app, Invocation& invocation) {
  CLI::App* snapshot = app.add_subcommand(
      "snapshot", "Back up all that a running server has on disk, and restore it");
  snapshot->footer(
      ExampleLines({"sparsectl snapshot save backup.snapshot",
                    "sparsectl snapshot verify backup.snapshot --list",
                    "sparsectl snapshot restore backup.snapshot --data-dir=restored"}));
  snapshot->require_subcommand(1);

  CLI::App* save = AddCommand(
      *snapshot, "save",
      "Save what the server has on disk, of all tenants, as it is at one moment, while it goes on "
      "serving; for operators. Checked as it comes",
      {"snapshot save backup.snapshot --replace", "snapshot save . --limit-rate=100MB",
       "snapshot save - | gzip > backup.snapshot.gz"});
  auto saved = std::make_shared<SaveArguments>();
  save->add_option("FILE|DIR", saved->path,
                   "The file to write, or a directory where it is named by the time; -: standard "
                   "output")
      ->type_name("FILE|DIR")
      ->required();
  save->add_flag("--replace", saved->replace, "Replace a file of this name, once all is there");
  save->add_option("--limit-rate", saved->rate,
                   "Bytes a second at most, 1MB or more, as in 100MB (default: as fast as it goes)")
      ->transform(Size())
      ->check(Between(1'000'000, int64_t{1} << 50));
  save->callback([&invocation, saved] {
    if (saved->path == "-" && isatty(STDOUT_FILENO) != 0) {
      throw CLI::ValidationError("FILE|DIR",
                                 "a snapshot is nothing for a terminal: say where it "
                                 "goes, such as > backup.snapshot");
    }
    invocation.run = [saved](const Client& client) { return Save(client, *saved); };
  });

  CLI::App* verify = AddCommand(
      *snapshot, "verify",
      "Check every byte of a snapshot, and say what is in it; asks no "
      "server",
      {"snapshot save backup.snapshot --replace", "snapshot verify backup.snapshot --list"});
  auto verified = std::make_shared<VerifyArguments>();
  AddFile(verify, verified->path, "The snapshot; -: standard input");
  verify->add_flag("--list", verified->list, "List the matrices and buffers in it");
  invocation.columns[verify] = ContentsColumns();
  verify->callback([&invocation, verified] {
    invocation.lists = verified->list;
    invocation.run_here = [verified] { return Verify(*verified); };
  });

  CLI::App* restore = AddCommand(
      *snapshot, "restore",
      "Make a data directory of a snapshot, from which a server of the same version or a newer one "
      "starts; asks no server",
      {"snapshot save backup.snapshot --replace",
       "snapshot restore backup.snapshot --data-dir=another"});
  auto restored = std::make_shared<RestoreArguments>();
  AddFile(restore, restored->path, "The snapshot; -: standard input");
  restore->add_option("--data-dir", restored->data_dir, "The directory to make, or an empty one")
      ->type_name("DIR")
      ->required();
  restore->callback(
      [&invocation, restored] { invocation.run_here = [restored] { return Restore(*restored); }; });
}

}  // namespace sparsed::cli
