// What is read from the engine when somebody asks: gauges, and counters that it keeps itself.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <chrono>

#include "engine/engine.h"

namespace sparsed::server {

/// Thread-safe. The engine outlives it.
class EngineGauges : public prometheus::Collectable {
 public:
  explicit EngineGauges(engine::Engine& engine) : engine_(engine) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  engine::Engine& engine_;
  const std::chrono::system_clock::time_point started_ = std::chrono::system_clock::now();
};

}  // namespace sparsed::server
