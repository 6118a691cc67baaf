// watch: what becomes of a matrix, as it happens.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <memory>
#include <optional>
#include <utility>

#include "client/cli/command_line.h"
#include "client/cli/commands.h"
#include "client/cli/progress_bar.h"

namespace sparsed::cli {
namespace {

Json ToJson(const std::string& name, const Progress& progress) {
  return {{"name", name},          {"state", Name(progress.state)}, {"stage", progress.stage},
          {"done", progress.done}, {"total", progress.total},       {"message", progress.message}};
}

/// Columns of text: when, state, stage, and what came of it, each message once.
constexpr int kStateWidth = 9, kStageWidth = 12;
constexpr int kBeforeMessage = 8 + 2 + kStateWidth + 2 + kStageWidth + 2;

/// Writes a line when a state, a stage or what is said of it changes; in between a bar moves, if
/// standard error is a terminal.
class Watcher {
 public:
  Watcher(std::string name, OutputFormat format) : name_(std::move(name)), format_(format) {}

  /// False once a line could not be written.
  bool Show(const Progress& progress) {
    const std::string_view what =
        progress.stage.empty() ? Name(progress.state) : std::string_view(progress.stage);
    const bool same = last_.has_value() && last_->state == progress.state &&
                      last_->stage == progress.stage && last_->message == progress.message;
    const bool news = !last_.has_value() || last_->message != progress.message;
    // In text the end of a stage is told by what comes next.
    const bool ends_stage = last_.has_value() && last_->state == progress.state && !news &&
                            progress.stage.empty() && !ForPrograms(format_);
    last_ = progress;
    if (!same) bar_.emplace();  // removes what was shown
    if (!same && !ends_stage) written_ = WriteOut(Line(progress, news));
    if (progress.total > 0) bar_->Show(what, progress.done, progress.total);
    return written_.ok();
  }
  void Stop() { bar_.reset(); }
  bool saw_something() const { return last_.has_value(); }
  const absl::Status& written() const { return written_; }

 private:
  /// `news`: its message was not written yet.
  std::string Line(const Progress& progress, bool news) const {
    if (ForPrograms(format_)) {
      return (format_ == OutputFormat::kYaml ? "---\n" : "") +
             Formatted(ToJson(name_, progress), format_);
    }
    std::string line = fmt::format(
        "{:%H:%M:%SZ}  {:{}}  {:{}}  {}", fmt::gmtime(std::time(nullptr)), Name(progress.state),
        kStateWidth, progress.stage, kStageWidth, news ? progress.message : "");
    line.erase(line.find_last_not_of(' ') + 1);
    return Wrapped(line, std::string(kBeforeMessage, ' '));
  }

  const std::string name_;
  const OutputFormat format_;
  std::optional<ProgressBar> bar_;
  std::optional<Progress> last_;
  absl::Status written_;
};

absl::StatusOr<Report> Watch(const Client& client, const std::string& name, OutputFormat format) {
  Watcher watcher(name, format);
  std::function<void()> stop;
  Call<void> call = client.MatrixNamed(name).WatchAsync([&](const Progress& progress) {
    if (!watcher.Show(progress)) stop();
  });
  stop = [&call] { call.Cancel(); };
  const absl::Status ended = call.Wait();
  watcher.Stop();
  if (!watcher.written().ok()) return watcher.written();
  // It ends so when the name stands for nothing any more.
  if (!absl::IsNotFound(ended) || !watcher.saw_something()) return ended;
  return Report{{{"name", name}, {"state", "deleted"}},
                fmt::format("{} is not there any more\n", name)};
}

}  // namespace

void AddWatch(CLI::App& app, Invocation& invocation) {
  CLI::App* watch = app.add_subcommand(
      "watch",
      "Follow a matrix's preparation: a line for each stage, until the matrix is deleted (`wait` "
      "ends when it is prepared)");
  watch->footer(ExampleLines({"sparsectl generate matrix 300x300 --out=g.mtx",
                              "sparsectl upload g.mtx --replace --wait",
                              "timeout 1 sparsectl watch g || true"}));
  auto name = std::make_shared<std::string>();
  AddName(watch, *name);
  watch->callback([&invocation, name] {
    invocation.run = [&invocation, name](const Client& client) {
      return Watch(client, *name, invocation.output);
    };
  });
}

}  // namespace sparsed::cli
