// The front door's counts as metrics.
#pragma once

#include <prometheus/metric_family.h>

#include <vector>

#include "server/listener/connections.h"

namespace sparsed::server {

std::vector<prometheus::MetricFamily> ConnectionMetrics(const ConnectionCounts& counts,
                                                        int64_t max_connections, bool reachable);

/// Of the local socket and of what is shared over it.
std::vector<prometheus::MetricFamily> LocalMetrics(int64_t connections, int64_t refused,
                                                   int64_t regions, int64_t queues,
                                                   int64_t attachments, int64_t rings);

}  // namespace sparsed::server
