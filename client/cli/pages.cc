#include "client/cli/pages.h"

#include <unistd.h>

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

std::string PageText(const Page& page, OutputFormat format, bool terminal, bool first) {
  if (format == OutputFormat::kJson) return Formatted(page.json, format);
  if (format == OutputFormat::kYaml) return "---\n" + Formatted(page.json, format);
  if (!terminal) return (first ? "" : "\n") + page.text(0);
  Style().width = TerminalWidth(STDOUT_FILENO);
  const int height = TerminalHeight(STDOUT_FILENO);
  return (first ? "\033[2J" : "") + Redrawn(page.text(height - 1), height);
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
  for (int64_t pages = 0; arguments.count == 0 || pages < arguments.count; ++pages) {
    std::this_thread::sleep_for(interval);
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
