// top: what a server does now.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/command_line.h"
#include "client/cli/commands.h"
#include "client/cli/pages.h"
#include "client/cli/top_page.h"

namespace sparsed::cli {
namespace {

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

absl::StatusOr<Report> Top(const Client& client, const PageArguments& arguments,
                           OutputFormat format, const std::string& sort) {
  const absl::StatusOr<ServerInfo> server = client.GetServerInfo();
  if (!server.ok()) return server.status();
  // Averages since the start would say little of now.
  absl::StatusOr<Look> before = LookAt(client);
  if (!before.ok()) return before.status();
  return ShowPages(arguments, format, [&]() -> absl::StatusOr<Page> {
    absl::StatusOr<Look> now = LookAt(client);
    if (!now.ok()) return now.status();
    Json json = TopJson(*server, &*before, *now);
    if (!sort.empty()) SortTop(sort, json);
    before = std::move(now);
    return Page{json, [json](int lines) { return TopText(json, lines); }};
  });
}

}  // namespace

void AddTop(CLI::App& app, Invocation& invocation) {
  CLI::App* top = app.add_subcommand("top",
                                     "What the server does now: devices, requests, tenants, "
                                     "memory; for operators. At a terminal q "
                                     "ends it");
  top->footer(
      ExampleLines({"sparsectl top --once --interval=0.5", "sparsectl top --once --sort=-total",
                    "sparsectl top --count=2 --interval=0.5 -o json"}));
  invocation.columns[top] = TopColumns();
  auto arguments = std::make_shared<PageArguments>();
  AddPageOptions(*top, arguments);
  top->callback([&invocation, arguments] {
    invocation.lists = true;
    if (!invocation.sort.empty() && SortKey(invocation.sort, TopColumns()).empty()) {
      throw CLI::ValidationError("--sort", NoSuchColumn(invocation.sort, TopColumns()));
    }
    invocation.run = [&invocation, arguments](const Client& client) {
      return Top(client, *arguments, invocation.output, invocation.sort);
    };
  });
}

}  // namespace sparsed::cli
