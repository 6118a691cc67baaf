// top: what a server does now.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "client/cli/command_line.h"
#include "client/cli/commands.h"
#include "client/cli/progress_bar.h"
#include "client/cli/top_page.h"

namespace sparsed::cli {
namespace {

struct TopArguments {
  double interval = 2;  ///< seconds
  bool once = false;
  int64_t count = 0;  ///< pages; 0: no end
};

absl::StatusOr<Look> LookAt(const Client& client) {
  Look look;
  absl::StatusOr<sparsed::Stats> stats = client.GetStats();
  if (!stats.ok()) return stats.status();
  look.stats = *std::move(stats);
  absl::StatusOr<std::vector<TenantInfo>> tenants = client.ListTenants(/*all=*/true);
  if (!tenants.ok()) return tenants.status();
  look.tenants = *std::move(tenants);
  return look;
}

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

std::string PageText(const Json& page, OutputFormat format, bool terminal, bool first) {
  if (format == OutputFormat::kJson) return Formatted(page, format);
  if (format == OutputFormat::kYaml) return "---\n" + Formatted(page, format);
  if (!terminal) return (first ? "" : "\n") + TopText(page);
  Style().width = TerminalWidth(STDOUT_FILENO);
  const int height = TerminalHeight(STDOUT_FILENO);
  return (first ? "\033[2J" : "") + Redrawn(TopText(page, height - 1), height);
}

absl::StatusOr<Report> Top(const Client& client, const TopArguments& arguments,
                           OutputFormat format) {
  const absl::StatusOr<ServerInfo> server = client.GetServerInfo();
  if (!server.ok()) return server.status();
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  const std::chrono::duration<double> interval(arguments.interval);
  absl::StatusOr<Look> before = LookAt(client);
  if (!before.ok()) return before.status();
  if (arguments.once) {
    // Averages since the start would say little of now.
    std::this_thread::sleep_for(interval);
    const absl::StatusOr<Look> now = LookAt(client);
    if (!now.ok()) return now.status();
    const Json page = TopJson(*server, &*before, *now);
    return Report{page, TopText(page)};
  }
  for (int64_t pages = 0; arguments.count == 0 || pages < arguments.count; ++pages) {
    std::this_thread::sleep_for(interval);
    absl::StatusOr<Look> now = LookAt(client);
    if (!now.ok()) return now.status();
    const Json page = TopJson(*server, &*before, *now);
    absl::Status written = WriteOut(PageText(page, format, terminal, pages == 0));
    if (!written.ok()) return written;
    before = std::move(now);
  }
  Report done;
  done.written = true;
  return done;
}

}  // namespace

void AddTop(CLI::App& app, Invocation& invocation) {
  CLI::App* top = app.add_subcommand(
      "top", "What the server does now: devices, requests, tenants, memory; for operators");
  top->footer(ExampleLines(
      {"sparsectl top --once --interval=0.5", "sparsectl top --count=2 --interval=0.5 -o json"}));
  auto arguments = std::make_shared<TopArguments>();
  top->add_option("-i,--interval", arguments->interval, "Seconds between two pages")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  CLI::Option* once = top->add_flag("--once", arguments->once, "One page, of one interval");
  top->add_option("-n,--count", arguments->count, "So many pages (default: until it is stopped)")
      ->check(Between(1, 1'000'000'000))
      ->excludes(once);
  top->callback([&invocation, arguments] {
    invocation.run = [&invocation, arguments](const Client& client) {
      return Top(client, *arguments, invocation.output);
    };
  });
}

}  // namespace sparsed::cli
