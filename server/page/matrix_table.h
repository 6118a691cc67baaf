// The matrices as the status page lists them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/telemetry/live_requests.h"

namespace sparsed::server {

/// Holds nothing in memory that the matrix is made of.
struct MatrixRow {
  std::string tenant, name;
  std::weak_ptr<engine::Pattern> pattern;
  const void* identity = nullptr;  ///< of the pattern: to tell those that are shared
  int64_t rows = 0, cols = 0, nnz = 0;
  ElementType type = ElementType::kF32;
  uint64_t version = 0;
  int64_t created_unix_ns = 0;
  bool durable = false;
  int64_t bytes = 0;  ///< in host memory now: pattern, values, layouts
  engine::PreparationState state = engine::PreparationState::kQueued;
  /// Of the class that takes plain CSR longest: what serves it, its speed-up over CSR, and its
  /// share of the roofline. 0: not known.
  std::string problem_class, plan;
  double gain = 0, roofline = 0;
  MatrixUse use;
};

struct MatrixTable {
  /// More are not listed.
  static constexpr size_t kMost = 50'000;

  std::vector<MatrixRow> rows;  ///< by tenant and name
  int64_t all = 0;

  /// Null if there is none.
  const MatrixRow* Find(std::string_view tenant, std::string_view name) const;
};

/// Of the fastest measurement of what the plan runs: the share of the roofline. 0: not known.
double FloorShare(const engine::Plan& plan, const std::vector<engine::Measurement>& measurements);

/// Takes some microseconds a matrix; no lock is held longer than for one of them, but for the list
/// of all.
MatrixTable MakeMatrixTable(engine::Engine& engine, const LiveRequests& live);

}  // namespace sparsed::server
