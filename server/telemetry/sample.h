// One number of a metric family.
#pragma once

#include <prometheus/client_metric.h>

#include <utility>
#include <vector>

namespace sparsed::server {

/// Of a counter or a gauge: the serialiser reads the one of the family's type.
inline prometheus::ClientMetric Sample(double value,
                                       std::vector<prometheus::ClientMetric::Label> labels = {}) {
  prometheus::ClientMetric metric;
  metric.label = std::move(labels);
  metric.gauge.value = value;
  metric.counter.value = value;
  return metric;
}

}  // namespace sparsed::server
