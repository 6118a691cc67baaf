// cluster: the nodes that there are, draining one, and forgetting one.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "client/cli/command_line.h"
#include "client/cli/commands.h"

namespace sparsed::cli {
namespace {

/// Nobody knows who is there while etcd does not answer.
const char* StateOf(const ClusterNode& node, bool known) {
  if (!node.alive) return known ? "gone" : "unknown";
  if (!node.draining) return "serving";
  return node.matrices + node.copies > 0 ? "draining" : "drained";
}

absl::StatusOr<Report> ListNodes(const Client& client) {
  const absl::StatusOr<ClusterInfo> cluster = client.ListNodes();
  if (!cluster.ok()) return cluster.status();
  Report report{{{"problem", cluster->problem}, {"nodes", Json::array()}}, ""};
  Table table({"NODE", "STATE", "ADDRESS", "DEVICES", "MATRICES", "COPIES", "FREE", "MEMORY"});
  const bool known = cluster->problem.empty();
  std::string gone;
  for (const ClusterNode& node : cluster->nodes) {
    report.json["nodes"].push_back({{"name", node.name},
                                    {"state", StateOf(node, known)},
                                    {"address", node.address},
                                    {"devices", node.devices},
                                    {"matrices", node.matrices},
                                    {"copies", node.copies},
                                    {"free_memory_bytes", node.free_memory_bytes},
                                    {"memory_bytes", node.memory_bytes},
                                    {"asked", node.asked}});
    table.Add({node.name + (node.asked ? " (asked)" : ""), StateOf(node, known), node.address,
               fmt::format("{}", fmt::join(node.devices, ",")), Count(node.matrices),
               Count(node.copies), node.alive ? Bytes(node.free_memory_bytes) : "",
               node.alive ? Bytes(node.memory_bytes) : ""});
    if (!node.alive && known) {
      gone += fmt::format("{} is gone: if it never comes back, sparsectl cluster forget {}\n",
                          node.name, node.name);
    }
  }
  report.text = table.Text() + gone;
  if (!cluster->problem.empty()) report.text += cluster->problem + "\n";
  return report;
}

/// DEADLINE_EXCEEDED with what it still has.
absl::Status WaitUntilDrained(const Client& client, const std::string& name, double seconds) {
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                            std::chrono::duration<double>(seconds));
  while (true) {
    const absl::StatusOr<ClusterInfo> cluster = client.ListNodes();
    if (!cluster.ok()) return cluster.status();
    const auto node = std::ranges::find(cluster->nodes, name, &ClusterNode::name);
    const int64_t left = node == cluster->nodes.end() ? 0 : node->matrices + node->copies;
    if (left == 0) return absl::OkStatus();
    if (std::chrono::steady_clock::now() >= deadline) {
      return absl::DeadlineExceededError(
          fmt::format("{} still has {} after {:.3g} s; it goes on giving them to others", name,
                      left == 1 ? "a matrix" : fmt::format("{} matrices", left), seconds));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  }
}

}  // namespace

void AddCluster(CLI::App& app, Invocation& invocation) {
  CLI::App* cluster = app.add_subcommand("cluster", "The nodes of a cluster; for operators");
  cluster->footer(
      ExampleLines({"sparsectl cluster list", "sparsectl cluster drain node-2",
                    "sparsectl cluster forget node-3", "sparsectl cluster top --once"}));
  cluster->require_subcommand(1);
  cluster->add_subcommand("list", "Which nodes there are, and what each of them has")
      ->callback([&invocation] { invocation.run = ListNodes; });
  AddClusterStats(*cluster, invocation);
  CLI::App* drain = cluster->add_subcommand(
      "drain",
      "Have a node give its matrices to others, in the background while it serves them, and get no "
      "more; buffers do not move");
  auto node = std::make_shared<std::string>();
  auto undo = std::make_shared<bool>(false);
  auto wait = std::make_shared<double>(0);
  drain->add_option("NODE", *node, "Its name")->type_name("TEXT")->required();
  drain->add_flag("--undo", *undo, "It gets matrices again");
  drain
      ->add_option("--wait", *wait,
                   "Seconds, at most, to wait until it has nothing any more (default: it does not)")
      ->type_name("SECONDS")
      ->check(BetweenReals(0.0, 86400.0));
  drain->callback([&invocation, node, undo, wait] {
    invocation.run = [node, undo, wait](const Client& client) -> absl::StatusOr<Report> {
      const absl::StatusOr<int64_t> matrices = client.DrainNode(*node, *undo);
      if (!matrices.ok()) return matrices.status();
      if (!*undo && *wait > 0) {
        if (absl::Status s = WaitUntilDrained(client, *node, *wait); !s.ok()) return s;
        return Report{{{"node", *node}, {"draining", true}, {"matrices", 0}},
                      fmt::format("{} is drained\n", *node)};
      }
      return Report{
          {{"node", *node}, {"draining", !*undo}, {"matrices", *matrices}},
          *undo ? fmt::format("{} gets matrices again\n", *node)
                : fmt::format(
                      "{} gives {} matrices to others; sparsectl cluster list says when it is "
                      "drained\n",
                      *node, Count(*matrices))};
    };
  });
  CLI::App* forget = cluster->add_subcommand(
      "forget",
      "Take a node that never comes back out of all that the cluster knows, so that nothing waits "
      "for it");
  auto gone = std::make_shared<std::string>();
  auto lose = std::make_shared<bool>(false);
  forget->add_option("NODE", *gone, "Its name")->type_name("TEXT")->required();
  forget->add_flag("--lose-matrices", *lose, "Also matrices that it alone has: they are deleted");
  forget->callback([&invocation, gone, lose] {
    invocation.run = [gone, lose](const Client& client) -> absl::StatusOr<Report> {
      const absl::StatusOr<ForgottenNode> forgotten = client.ForgetNode(*gone, *lose);
      if (!forgotten.ok()) return forgotten.status();
      return Report{
          {{"node", *gone}, {"records", forgotten->records}, {"lost", forgotten->lost}},
          fmt::format("{} is forgotten: {} records named it, {} matrices are lost with it\n", *gone,
                      Count(forgotten->records), Count(forgotten->lost))};
    };
  });
}

}  // namespace sparsed::cli
