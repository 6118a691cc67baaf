// The front door's counts as metrics.
#pragma once

#include <prometheus/metric_family.h>

#include <vector>

#include "server/listener/connections.h"

namespace sparsed::server {

std::vector<prometheus::MetricFamily> ConnectionMetrics(const ConnectionCounts& counts,
                                                        int64_t max_connections, bool reachable);

}  // namespace sparsed::server
