// A cluster's state, for /metrics and the status page.
#pragma once

#include <prometheus/metric_family.h>

#include <nlohmann/json.hpp>
#include <vector>

namespace sparsed::server {

class Cluster;

/// What the status page shows: {"problem": "...", "nodes": [{"name": "...", "state": "serving",
/// ...}]}.
nlohmann::json ClusterTable(const Cluster& cluster);
/// Null: a server by itself, which has none of it.
std::vector<prometheus::MetricFamily> ClusterMetrics(const Cluster* cluster);

}  // namespace sparsed::server
