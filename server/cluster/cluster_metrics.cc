#include "server/cluster/cluster_metrics.h"

#include <string>

#include "server/cluster/cluster.h"
#include "server/telemetry/sample.h"

namespace sparsed::server {

nlohmann::json ClusterTable(const Cluster& cluster) {
  nlohmann::json nodes = nlohmann::json::array();
  // Nobody knows who is there while etcd does not answer.
  const char* const away = cluster.Problem().empty() ? "gone" : "unknown";
  for (const Cluster::Node& node : cluster.Nodes()) {
    const bool empty = node.matrices + node.copies == 0;
    nodes.push_back({{"name", node.record.name},
                     {"state", !node.alive      ? away
                               : !node.draining ? "serving"
                               : empty          ? "drained"
                                                : "draining"},
                     {"address", node.record.address},
                     {"devices", node.record.devices},
                     {"matrices", node.matrices},
                     {"copies", node.copies},
                     {"memory_bytes", node.record.memory_bytes},
                     {"free_memory_bytes", node.record.free_memory_bytes},
                     {"self", node.record.name == cluster.self().name}});
  }
  return {{"problem", cluster.Problem()}, {"nodes", std::move(nodes)}};
}

std::vector<prometheus::MetricFamily> ClusterMetrics(const Cluster* cluster) {
  using prometheus::MetricFamily;
  using prometheus::MetricType;
  if (cluster == nullptr) return {};
  const Cluster::Counts counts = cluster->counts();
  int64_t alive = 0, draining = 0, gone = 0, unknown = 0, matrices = 0, copies = 0;
  const bool known = cluster->Problem().empty();
  for (const Cluster::Node& node : cluster->Nodes()) {
    // One that records name, and that has nothing any more, is nobody's loss.
    if (!node.alive && node.matrices + node.copies == 0) continue;
    ++(!node.alive ? (known ? gone : unknown) : node.draining ? draining : alive);
    if (node.record.name != cluster->self().name) continue;
    matrices = node.matrices;
    copies = node.copies;
  }
  std::vector<MetricFamily> families;
  const auto add = [&](const char* name, const char* help, MetricType type,
                       std::vector<prometheus::ClientMetric> samples) {
    families.push_back({name, help, type, std::move(samples)});
  };
  add("sparsed_cluster_nodes",
      "Nodes of the cluster, as this one knows them: serving, draining, gone though they own "
      "something, or unknown, as etcd does not answer",
      MetricType::Gauge,
      {Sample(static_cast<double>(alive), {{"state", "serving"}}),
       Sample(static_cast<double>(draining), {{"state", "draining"}}),
       Sample(static_cast<double>(gone), {{"state", "gone"}}),
       Sample(static_cast<double>(unknown), {{"state", "unknown"}})});
  add("sparsed_cluster_matrices", "Matrices that this node owns, and copies of others' that it has",
      MetricType::Gauge,
      {Sample(static_cast<double>(matrices), {{"role", "owner"}}),
       Sample(static_cast<double>(copies), {{"role", "copy"}})});
  const auto one = [&](const char* name, const char* help, MetricType type, double value) {
    add(name, help, type, {Sample(value)});
  };
  one("sparsed_cluster_copies_missing",
      "Copies that matrices of this node have fewer of, on nodes that are there, than they are to "
      "have",
      MetricType::Gauge, static_cast<double>(counts.copies_missing));
  one("sparsed_cluster_redirects_total", "Requests that were sent to another node",
      MetricType::Counter, static_cast<double>(counts.redirects));
  add("sparsed_cluster_copies_total",
      "Copies of this node's matrices on others, by what became of them", MetricType::Counter,
      {Sample(static_cast<double>(counts.copies_made), {{"result", "made"}}),
       Sample(static_cast<double>(counts.copies_failed), {{"result", "failed"}})});
  one("sparsed_cluster_copy_bytes_total", "Bytes of arrays that other nodes copied from this one",
      MetricType::Counter, static_cast<double>(counts.copy_bytes));
  one("sparsed_cluster_copy_seconds_total", "Seconds that copying to other nodes took",
      MetricType::Counter, counts.copy_seconds);
  one("sparsed_cluster_takeovers_total",
      "Matrices whose owner was gone and that this node took over", MetricType::Counter,
      static_cast<double>(counts.takeovers));
  one("sparsed_cluster_moves_total",
      "Copies of this node's matrices that were made on nodes which joined, to move there",
      MetricType::Counter, static_cast<double>(counts.moves));
  one("sparsed_cluster_moves_waiting",
      "Matrices of this node that are to move to nodes which joined, the one under way included",
      MetricType::Gauge, static_cast<double>(counts.moves_waiting));
  one("sparsed_cluster_matrices_in_shards",
      "Matrices of the cluster that are in shards, as this node knows them", MetricType::Gauge,
      static_cast<double>(counts.in_shards));
  one("sparsed_cluster_shards_dropped_total",
      "Shards of this node that were dropped because no matrix is made of them",
      MetricType::Counter, static_cast<double>(counts.shards_dropped));
  add("sparsed_cluster_row_bytes_total",
      "Bytes of operands' rows that came from other nodes, and went to them, for products with "
      "matrices in shards",
      MetricType::Counter,
      {Sample(static_cast<double>(counts.row_bytes_received), {{"direction", "received"}}),
       Sample(static_cast<double>(counts.row_bytes_sent), {{"direction", "sent"}})});
  one("sparsed_cluster_row_bytes_copied_total",
      "Bytes of this node's own rows that were copied into operands of products with matrices in "
      "shards, as they could not be multiplied with where they lie",
      MetricType::Counter, static_cast<double>(counts.row_bytes_copied));
  one("sparsed_cluster_directory_errors_total", "Questions that etcd did not answer",
      MetricType::Counter, static_cast<double>(counts.directory_errors));
  one("sparsed_cluster_directory_silence_seconds", "Seconds since etcd answered", MetricType::Gauge,
      counts.directory_silence);
  one("sparsed_cluster_view_age_seconds",
      "Seconds since which what this node knows of etcd may have changed unheard",
      MetricType::Gauge, counts.view_age);
  return families;
}

}  // namespace sparsed::server
