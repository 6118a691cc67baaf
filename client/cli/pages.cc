#include "client/cli/pages.h"

#include <poll.h>
#include <signal.h>
#include <termios.h>
#include <unistd.h>

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

constexpr const char* kHowToEnd = "q or Ctrl-C ends this\n";

/// As the terminal was before its keys were read: a signal that ends the process puts it back.
termios terminal_before;

/// Only what may be called while a signal is handled.
void EndBy(int signal) {
  tcsetattr(STDIN_FILENO, TCSANOW, &terminal_before);
  ::signal(signal, SIG_DFL);
  raise(signal);
}

/// Reads keys as they are pressed, unseen, for as long as it is there and the terminal is this
/// process's.
class Keys {
 public:
  explicit Keys(bool wanted) {
    reads_ = wanted && isatty(STDIN_FILENO) != 0 && tcgetpgrp(STDIN_FILENO) == getpgrp() &&
             tcgetattr(STDIN_FILENO, &terminal_before) == 0;
    if (!reads_) return;
    termios keys = terminal_before;
    keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    for (const int signal : kSignals) ::signal(signal, EndBy);
    tcsetattr(STDIN_FILENO, TCSANOW, &keys);
    changed_ = true;
  }
  Keys(const Keys&) = delete;
  Keys& operator=(const Keys&) = delete;
  ~Keys() {
    if (!changed_) return;
    tcsetattr(STDIN_FILENO, TCSANOW, &terminal_before);
    for (const int signal : kSignals) ::signal(signal, SIG_DFL);
  }

  /// Waits; true as soon as q is pressed.
  bool QuitWithin(std::chrono::duration<double> time) {
    using Clock = std::chrono::steady_clock;
    const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(time);
    while (reads_ && Clock::now() < until) {
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
  static constexpr std::array<int, 3> kSignals = {SIGINT, SIGTERM, SIGHUP};
  bool reads_ = false, changed_ = false;
};

std::string PageText(const Page& page, OutputFormat format, bool terminal, bool first) {
  if (format == OutputFormat::kJson) return Formatted(page.json, format);
  if (format == OutputFormat::kYaml) return "---\n" + Formatted(page.json, format);
  if (!terminal) return (first ? "" : "\n") + page.text(0);
  Style().width = TerminalWidth(STDOUT_FILENO);
  const int height = TerminalHeight(STDOUT_FILENO);
  return (first ? "\033[2J" : "") + Redrawn(page.text(height - 2) + kHowToEnd, height);
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
  Keys keys(terminal && !arguments.once && !ForPrograms(format));
  for (int64_t pages = 0; arguments.count == 0 || pages < arguments.count; ++pages) {
    if (keys.QuitWithin(interval)) break;
    const absl::StatusOr<Page> page = next();
    if (!page.ok()) return page.status();
    if (arguments.once) return Report{page->json, page->text(0)};
    absl::Status written = WriteOut(PageText(*page, format, terminal, pages == 0));
    if (!written.ok()) return written;
  }
  Report done;
  done.written = true;
  return done;
}

}  // namespace sparsed::cli
