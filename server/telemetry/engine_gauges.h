// What is read from the engine when somebody asks: gauges, and counters that it keeps itself.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <chrono>
#include <cstdint>

#include "engine/engine.h"
#include "server/telemetry/tenant_labels.h"

namespace sparsed::server {

/// Thread-safe. What it is made with outlives it.
class EngineGauges : public prometheus::Collectable {
 public:
  /// `reserved_bytes`: of --host-memory, set aside for messages on their way in.
  EngineGauges(engine::Engine& engine, TenantLabels& labels, int64_t reserved_bytes)
      : engine_(engine), labels_(labels), reserved_bytes_(reserved_bytes) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  engine::Engine& engine_;
  TenantLabels& labels_;
  const int64_t reserved_bytes_;
  const std::chrono::system_clock::time_point started_ = std::chrono::system_clock::now();
};

}  // namespace sparsed::server
