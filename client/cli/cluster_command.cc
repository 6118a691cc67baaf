// cluster: the nodes that there are, and draining one.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "client/cli/command_line.h"
#include "client/cli/commands.h"

namespace sparsed::cli {
namespace {

const char* StateOf(const ClusterNode& node) {
  if (!node.alive) return "gone";
  if (!node.draining) return "serving";
  return node.matrices + node.copies > 0 ? "draining" : "drained";
}

absl::StatusOr<Report> ListNodes(const Client& client) {
  const absl::StatusOr<ClusterInfo> cluster = client.ListNodes();
  if (!cluster.ok()) return cluster.status();
  Report report{{{"problem", cluster->problem}, {"nodes", Json::array()}}, ""};
  Table table({"NODE", "STATE", "ADDRESS", "DEVICES", "MATRICES", "COPIES", "FREE", "MEMORY"});
  for (const ClusterNode& node : cluster->nodes) {
    report.json["nodes"].push_back({{"name", node.name},
                                    {"state", StateOf(node)},
                                    {"address", node.address},
                                    {"devices", node.devices},
                                    {"matrices", node.matrices},
                                    {"copies", node.copies},
                                    {"free_memory_bytes", node.free_memory_bytes},
                                    {"memory_bytes", node.memory_bytes},
                                    {"asked", node.asked}});
    table.Add({node.name + (node.asked ? " (asked)" : ""), StateOf(node), node.address,
               fmt::format("{}", fmt::join(node.devices, ",")), Count(node.matrices),
               Count(node.copies), Bytes(node.free_memory_bytes), Bytes(node.memory_bytes)});
  }
  report.text = table.Text();
  if (!cluster->problem.empty()) report.text += cluster->problem + "\n";
  return report;
}

}  // namespace

void AddCluster(CLI::App& app, Invocation& invocation) {
  CLI::App* cluster = app.add_subcommand("cluster", "The nodes of a cluster; for operators");
  cluster->footer(ExampleLines({"sparsectl cluster list", "sparsectl cluster drain node-2"}));
  cluster->require_subcommand(1);
  cluster->add_subcommand("list", "Which nodes there are, and what each of them has")
      ->callback([&invocation] { invocation.run = ListNodes; });
  CLI::App* drain = cluster->add_subcommand(
      "drain",
      "Have a node give its matrices to others, in the background while it serves them, and get no "
      "more");
  auto node = std::make_shared<std::string>();
  auto undo = std::make_shared<bool>(false);
  drain->add_option("NODE", *node, "Its name")->type_name("TEXT")->required();
  drain->add_flag("--undo", *undo, "It gets matrices again");
  drain->callback([&invocation, node, undo] {
    invocation.run = [node, undo](const Client& client) -> absl::StatusOr<Report> {
      const absl::StatusOr<int64_t> matrices = client.DrainNode(*node, *undo);
      if (!matrices.ok()) return matrices.status();
      return Report{
          {{"node", *node}, {"draining", !*undo}, {"matrices", *matrices}},
          *undo ? fmt::format("{} gets matrices again\n", *node)
                : fmt::format(
                      "{} gives {} matrices to others; sparsectl cluster list says when it is "
                      "drained\n",
                      *node, Count(*matrices))};
    };
  });
}

}  // namespace sparsed::cli
