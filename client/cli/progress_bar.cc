#include "client/cli/progress_bar.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace sparsed::cli {

int TerminalWidth(int fd) {
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

int TerminalHeight(int fd) {
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_row > 0) return size.ws_row;
  return 24;
}

bool ShowsUnicode() {
  for (const char* variable : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(variable);
    if (value == nullptr || *value == '\0') continue;
    const std::string_view locale(value);
    return locale.find("UTF-8") != std::string_view::npos ||
           locale.find("utf8") != std::string_view::npos;
  }
  return false;
}

std::string BarText(std::string_view what, int64_t done, int64_t total, int width) {
  if (total <= 0) return std::string(what.substr(0, static_cast<size_t>(std::max(0, width - 1))));
  const double share = std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0);
  const int cells = std::clamp(width - static_cast<int>(what.size()) - 10, 0, 40);
  const int filled = static_cast<int>(share * cells);
  return fmt::format("{} [{}{}] {:3.0f}%", what, std::string(filled, '#'),
                     std::string(cells - filled, '.'), share * 100);
}

ProgressBar::ProgressBar() : terminal_(isatty(STDERR_FILENO) != 0) {}

ProgressBar::~ProgressBar() {
  if (!shown_.empty()) fmt::print(stderr, "\r\033[K");
}

void ProgressBar::Show(std::string_view what, int64_t done, int64_t total) {
  if (!terminal_) return;
  std::string text = BarText(what, done, total, TerminalWidth(STDERR_FILENO));
  if (text == shown_) return;
  fmt::print(stderr, "\r\033[K{}", text);
  std::fflush(stderr);
  shown_ = std::move(text);
}

}  // namespace sparsed::cli
