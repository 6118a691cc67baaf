#include "client/cli/pages.h"

#include <poll.h>
#include <signal.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include "client/cli/command_line.h"
#include "client/cli/progress_bar.h"

namespace sparsed::cli {
namespace {

/// The first lines that fit the terminal, over what was there.
std::string Redrawn(const std::string& text, int lines) {
  std::string page = "\033[H";
  size_t begin = 0;
  for (int line = 1; line < lines && begin < text.size(); ++line) {
    const size_t end = text.find('\n', begin);
    page += text.substr(begin, end - begin) + "\033[K\n";
    begin = end == text.npos ? text.size() : end + 1;
  }
  return page + "\033[J";
}

/// Reads keys as they are pressed, unseen, for as long as it is there and the terminal is this
/// process's. Signals that end or stop the process find the terminal put back as it was.
class Keys {
 public:
  explicit Keys(bool wanted) {
    reads_ = wanted && isatty(STDIN_FILENO) != 0 && InForeground() &&
             tcgetattr(STDIN_FILENO, &before_) == 0;
    if (!reads_) return;
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], nullptr, &former_[i]);
    changed_ = true;
    Take();
  }
  Keys(const Keys&) = delete;
  Keys& operator=(const Keys&) = delete;
  ~Keys() {
    if (!changed_) return;
    PutBack();
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &former_[i], nullptr);
  }

  /// Whether there are keys to read.
  bool reads() const { return reads_; }

  /// Waits; true as soon as q is pressed.
  bool QuitWithin(std::chrono::duration<double> time) {
    using Clock = std::chrono::steady_clock;
    const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(time);
    // Taken anew each time: Ctrl-Z, which gave the keys back, ends a poll.
    while (reads_ && Clock::now() < until && Take()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
      pollfd keyboard{STDIN_FILENO, POLLIN, 0};
      if (poll(&keyboard, 1, static_cast<int>(left.count())) <= 0) continue;
      char key = 0;
      if (read(STDIN_FILENO, &key, 1) != 1) {
        reads_ = false;  // it was hung up
      } else if (key == 'q' || key == 'Q') {
        return true;
      }
    }
    std::this_thread::sleep_until(until);
    return false;
  }

 private:
  static constexpr std::array<int, 5> kSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP};

  static bool InForeground() { return tcgetpgrp(STDIN_FILENO) == getpgrp(); }
  /// A process in the background would be stopped for it.
  static void PutBack() {
    if (InForeground()) tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  /// Only what may be called while a signal is handled. The signal comes again when this is over.
  static void EndOrStopBy(int signal) {
    PutBack();
    ::signal(signal, SIG_DFL);
    raise(signal);
  }
  /// False, and does nothing, in the background.
  bool Take() const {
    if (!InForeground()) return false;
    for (size_t i = 0; i < kSignals.size(); ++i) {
      // What is ignored, as by nohup, stays so.
      if (former_[i].sa_handler != SIG_IGN) ::signal(kSignals[i], EndOrStopBy);
    }
    termios keys = before_;
    keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    tcsetattr(STDIN_FILENO, TCSANOW, &keys);
    return true;
  }

  /// The terminal as it was.
  static inline termios before_;
  std::array<struct sigaction, kSignals.size()> former_{};
  bool reads_ = false, changed_ = false;
};

constexpr std::chrono::duration<double> kSoon{0.3};

std::string PageText(const Page& page, OutputFormat format, bool terminal, bool first, bool keys) {
  if (format == OutputFormat::kJson) return Formatted(page.json, format);
  if (format == OutputFormat::kYaml) return "---\n" + Formatted(page.json, format);
  if (!terminal) return (first ? "" : "\n") + page.text(0);
  Style().width = TerminalWidth(STDOUT_FILENO);
  const int height = TerminalHeight(STDOUT_FILENO);
  const std::string end = keys ? "q or Ctrl-C ends this\n" : "Ctrl-C ends this\n";
  return (first ? "\033[2J" : "") + Redrawn(page.text(height - 2) + end, height);
}

}  // namespace

void AddPageOptions(CLI::App& command, const std::shared_ptr<PageArguments>& arguments) {
  command.add_option("-i,--interval", arguments->interval, "Seconds between two pages")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  CLI::Option* once = command.add_flag("--once", arguments->once, "One page, of one interval");
  command
      .add_option("-n,--count", arguments->count, "So many pages (default: until it is stopped)")
      ->check(Between(1, 1'000'000'000))
      ->excludes(once);
}

absl::StatusOr<Report> ShowPages(const PageArguments& arguments, OutputFormat format,
                                 const std::function<absl::StatusOr<Page>()>& next) {
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  const std::chrono::duration<double> interval(arguments.interval);
  // Who looks at a terminal sees something at once, if of a short time.
  const std::chrono::duration<double> first =
      terminal && !arguments.once && !ForPrograms(format) ? std::min(interval, kSoon) : interval;
  Keys keys(terminal && !arguments.once && !ForPrograms(format));
  for (int64_t pages = 0; arguments.count == 0 || pages < arguments.count; ++pages) {
    if (keys.QuitWithin(pages == 0 ? first : interval)) break;
    const absl::StatusOr<Page> page = next();
    if (!page.ok()) return page.status();
    if (arguments.once) return Report{page->json, page->text(0)};
    absl::Status written = WriteOut(PageText(*page, format, terminal, pages == 0, keys.reads()));
    if (!written.ok()) return written;
  }
  Report done;
  done.written = true;
  return done;
}

}  // namespace sparsed::cli
