// A cluster's state, for /metrics.
#pragma once

#include <prometheus/metric_family.h>

#include <vector>

namespace sparsed::server {

class Cluster;

/// Null: a server by itself, which has none of it.
std::vector<prometheus::MetricFamily> ClusterMetrics(const Cluster* cluster);

}  // namespace sparsed::server
