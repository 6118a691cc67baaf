// A progress bar on standard error, if that is a terminal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sparsed::cli {

class ProgressBar {
 public:
  ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  /// Removes the bar.
  ~ProgressBar();

  /// `total` of 0: unknown.
  void Show(std::string_view what, int64_t done, int64_t total);

 private:
  bool terminal_;
  std::string shown_;
};

/// The text of a bar, without its colour.
std::string BarText(std::string_view what, int64_t done, int64_t total, int width);

/// Columns of the terminal at `fd`; 80 if it is none.
int TerminalWidth(int fd);
/// Its lines; 24 if it is none.
int TerminalHeight(int fd);
/// Whether the terminal's locale says that it shows Unicode.
bool ShowsUnicode();

}  // namespace sparsed::cli
