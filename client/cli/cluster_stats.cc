// cluster stats, cluster top: what all nodes of a cluster did, and do now, side by side.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/command_line.h"
#include "client/cli/commands.h"
#include "client/cli/output.h"
#include "client/cli/pages.h"
#include "client/cli/report.h"

namespace sparsed::cli {
namespace {

using std::chrono::steady_clock;

/// What a node said of itself at one moment.
struct NodeLook {
  ClusterNode node;
  absl::Status status;  ///< why it said nothing
  sparsed::Stats stats;
  steady_clock::time_point time;
  int64_t requests = 0, failed = 0, memory = 0;
};

/// Connections to nodes, each made when it is first needed.
class NodeClients {
 public:
  NodeClients(const Client& client, ClientOptions options)
      : client_(client), options_(std::move(options)) {
    constexpr std::chrono::seconds kPatience(3);
    options_.connect_timeout =
        std::min<decltype(options_.connect_timeout)>(options_.connect_timeout, kPatience);
    options_.max_attempts = 1;
  }

  /// All nodes, by name; those that are not there say so.
  absl::StatusOr<std::vector<NodeLook>> Look() {
    const absl::StatusOr<ClusterInfo> cluster = client_.ListNodes();
    if (!cluster.ok()) return cluster.status();
    std::vector<NodeLook> looks;
    for (const ClusterNode& node : cluster->nodes) {
      looks.push_back(LookAt(node, cluster->problem.empty()));
    }
    return looks;
  }

 private:
  /// `known`: who is there.
  NodeLook LookAt(const ClusterNode& node, bool known) {
    NodeLook look;
    look.node = node;
    look.status = absl::UnavailableError(known ? "it is gone" : "unknown: etcd does not answer");
    if (!node.alive) return look;
    absl::StatusOr<sparsed::Stats> stats = StatsOf(node);
    look.status = stats.status();
    if (!stats.ok()) {
      clients_.erase(node.name);
      return look;
    }
    look.time = steady_clock::now();
    look.stats = *std::move(stats);
    for (const RequestCount& count : look.stats.requests) {
      if (count.status_call && count.code == "OK") continue;  // this look, for one
      look.requests += count.count;
      if (IsFailure(count)) look.failed += count.count;
    }
    look.memory = HostBytes(look.stats);
    return look;
  }

  absl::StatusOr<sparsed::Stats> StatsOf(const ClusterNode& node) {
    if (node.asked) return client_.GetStats();
    // A server says where others are: no file of this machine's.
    if (node.address.starts_with("unix")) {
      return absl::FailedPreconditionError(fmt::format("'{}' is not HOST:PORT", node.address));
    }
    auto known = clients_.find(node.name);
    if (known == clients_.end()) {
      absl::StatusOr<Client> opened = Client::Connect(node.address, options_);
      if (!opened.ok()) return opened.status();
      known = clients_.emplace(node.name, *std::move(opened)).first;
    }
    return known->second.GetStats();
  }

  const Client& client_;
  ClientOptions options_;
  std::map<std::string, Client> clients_;
};

std::string NameOf(const NodeLook& look) {
  return look.node.name + (look.node.asked ? " (asked)" : "");
}

Json JsonOf(const NodeLook& look) {
  Json json = {{"name", look.node.name},
               {"address", look.node.address},
               {"matrices", look.node.matrices},
               {"copies", look.node.copies}};
  if (look.status.ok()) {
    json["stats"] = ToJson(look.stats);
  } else {
    json["problem"] = std::string(look.status.message());
  }
  return json;
}

absl::StatusOr<Report> ClusterStats(const Client& client, const ClientOptions& options) {
  NodeClients nodes(client, options);
  const auto looks = nodes.Look();
  if (!looks.ok()) return looks.status();
  Report report{{{"nodes", Json::array()}}, ""};
  Table table({"NODE", "UP", "REQUESTS", "FAILED", "IN FLIGHT", "BUSY", "MATRICES", "COPIES",
               "BUFFERS", "MEMORY"});
  NodeLook all;
  double busy = 0;
  for (const NodeLook& look : *looks) {
    report.json["nodes"].push_back(JsonOf(look));
    if (!look.status.ok()) {
      table.Add({NameOf(look), std::string(look.status.message()), "", "", "", "",
                 Count(look.node.matrices), Count(look.node.copies), "", ""});
      continue;
    }
    const sparsed::Stats& stats = look.stats;
    table.Add({NameOf(look), fmt::format("{:.0f} s", stats.uptime_seconds), Count(look.requests),
               Count(look.failed), Count(stats.requests_in_flight),
               fmt::format("{:.1f} s", stats.device_busy_seconds), Count(look.node.matrices),
               Count(look.node.copies), Count(stats.dense_matrices), Bytes(look.memory)});
    all.requests += look.requests;
    all.failed += look.failed;
    all.memory += look.memory;
    all.stats.requests_in_flight += stats.requests_in_flight;
    all.stats.dense_matrices += stats.dense_matrices;
    all.node.matrices += look.node.matrices;
    all.node.copies += look.node.copies;
    busy += stats.device_busy_seconds;
  }
  table.Add({"all", "", Count(all.requests), Count(all.failed), Count(all.stats.requests_in_flight),
             fmt::format("{:.1f} s", busy), Count(all.node.matrices), Count(all.node.copies),
             Count(all.stats.dense_matrices), Bytes(all.memory)});
  report.json["all"] = {{"requests", all.requests},
                        {"failed", all.failed},
                        {"requests_in_flight", all.stats.requests_in_flight},
                        {"device_busy_seconds", busy},
                        {"matrices", all.node.matrices},
                        {"copies", all.node.copies},
                        {"buffers", all.stats.dense_matrices},
                        {"memory_bytes", all.memory}};
  report.text = table.Text();
  return report;
}

/// Rates between two looks; of a node that began anew, or was away, there are none.
Report RatesOf(const std::vector<NodeLook>& before, const std::vector<NodeLook>& now) {
  Report report{{{"nodes", Json::array()}}, ""};
  Table table({"NODE", "REQUESTS/S", "FAILED/S", "IN FLIGHT", "DEVICES BUSY", "MATRICES", "COPIES",
               "MEMORY"});
  double all_requests = 0, all_failed = 0, all_busy = 0;
  int64_t all_in_flight = 0;
  for (const NodeLook& look : now) {
    Json json = {{"name", look.node.name}};
    const auto old = std::ranges::find_if(
        before, [&](const NodeLook& one) { return one.node.name == look.node.name; });
    const bool known = look.status.ok() && old != before.end() && old->status.ok() &&
                       old->stats.uptime_seconds <= look.stats.uptime_seconds;
    if (!known) {
      const std::string why = look.status.ok() ? "just began" : std::string(look.status.message());
      json["problem"] = why;
      report.json["nodes"].push_back(std::move(json));
      table.Add(
          {NameOf(look), why, "", "", "", Count(look.node.matrices), Count(look.node.copies), ""});
      continue;
    }
    const double seconds = std::chrono::duration<double>(look.time - old->time).count();
    const auto rate = [&](int64_t later, int64_t earlier) {
      return static_cast<double>(later - earlier) / seconds;
    };
    const double requests = rate(look.requests, old->requests),
                 failed = rate(look.failed, old->failed);
    const double busy = (look.stats.device_busy_seconds - old->stats.device_busy_seconds) / seconds;
    all_requests += requests;
    all_failed += failed;
    all_busy += busy;
    all_in_flight += look.stats.requests_in_flight;
    json.update({{"requests_per_second", requests},
                 {"failed_per_second", failed},
                 {"requests_in_flight", look.stats.requests_in_flight},
                 {"devices_busy", busy},
                 {"matrices", look.node.matrices},
                 {"copies", look.node.copies},
                 {"memory_bytes", look.memory}});
    report.json["nodes"].push_back(std::move(json));
    table.Add({NameOf(look), fmt::format("{:.1f}", requests), fmt::format("{:.1f}", failed),
               Count(look.stats.requests_in_flight), fmt::format("{:.0f} %", 100 * busy),
               Count(look.node.matrices), Count(look.node.copies), Bytes(look.memory)});
  }
  table.Add({"all", fmt::format("{:.1f}", all_requests), fmt::format("{:.1f}", all_failed),
             Count(all_in_flight), fmt::format("{:.0f} %", 100 * all_busy), "", "", ""});
  report.json["all"] = {{"requests_per_second", all_requests},
                        {"failed_per_second", all_failed},
                        {"requests_in_flight", all_in_flight},
                        {"devices_busy", all_busy}};
  report.text = table.Text();
  return report;
}

absl::StatusOr<Report> ClusterTop(const Client& client, const PageArguments& arguments,
                                  const Invocation& invocation) {
  NodeClients nodes(client, invocation.options);
  auto before = nodes.Look();
  if (!before.ok()) return before.status();
  return ShowPages(arguments, invocation.output, [&]() -> absl::StatusOr<Page> {
    auto now = nodes.Look();
    if (!now.ok()) return now.status();
    Report rates = RatesOf(*before, *now);
    before = std::move(now);
    return Page{std::move(rates.json), [text = std::move(rates.text)](int) { return text; }};
  });
}

}  // namespace

void AddClusterStats(CLI::App& cluster, Invocation& invocation) {
  cluster.add_subcommand("stats", "Counters of all nodes since each began, side by side")
      ->callback([&invocation] {
        invocation.run = [&invocation](const Client& client) {
          return ClusterStats(client, invocation.options);
        };
      });
  CLI::App* top = cluster.add_subcommand("top", "What all nodes do now, side by side");
  auto arguments = std::make_shared<PageArguments>();
  AddPageOptions(*top, arguments);
  top->callback([&invocation, arguments] {
    invocation.run = [&invocation, arguments](const Client& client) {
      return ClusterTop(client, *arguments, invocation);
    };
  });
}

}  // namespace sparsed::cli
