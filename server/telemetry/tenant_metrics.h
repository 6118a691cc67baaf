// What tenants use of their quotas, for /metrics.
#pragma once

#include <prometheus/metric_family.h>

#include <vector>

#include "engine/engine.h"
#include "server/telemetry/tenant_labels.h"

namespace sparsed::server {

std::vector<prometheus::MetricFamily> TenantMetrics(engine::Engine& engine, TenantLabels& labels);

}  // namespace sparsed::server
