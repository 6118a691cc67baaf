// What is read from the engine when somebody asks: gauges, and counters that it keeps itself.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <chrono>

#include "engine/engine.h"
#include "server/telemetry/tenant_labels.h"

namespace sparsed::server {

/// Thread-safe. What it is made with outlives it.
class EngineGauges : public prometheus::Collectable {
 public:
  EngineGauges(engine::Engine& engine, TenantLabels& labels) : engine_(engine), labels_(labels) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  engine::Engine& engine_;
  TenantLabels& labels_;
  const std::chrono::system_clock::time_point started_ = std::chrono::system_clock::now();
};

}  // namespace sparsed::server
