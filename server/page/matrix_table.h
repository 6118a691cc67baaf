// The matrices as the status page lists them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "engine/execution/roofline.h"
#include "server/telemetry/live_requests.h"

namespace sparsed::server {

/// Of a part of a matrix in shards, by its tenant and name: "shard 2 of web", empty of what is no
/// shard's rows. None: it is a matrix by itself.
using ShardOf = std::function<std::optional<std::string>(const engine::NameKey&)>;

/// Holds nothing in memory that the matrix is made of.
struct MatrixRow {
  std::string tenant, name;
  std::string shard;  ///< "shard 2 of web"; empty: it is a matrix by itself
  std::weak_ptr<engine::Pattern> pattern;
  const void* identity = nullptr;  ///< of the pattern: to tell those that are shared
  int64_t rows = 0, cols = 0, nnz = 0;
  ElementType type = ElementType::kF32;
  uint64_t version = 0;
  int64_t created_unix_ns = 0;
  bool durable = false;
  int64_t bytes = 0;  ///< in host memory now: pattern, values, layouts
  engine::PreparationState state = engine::PreparationState::kQueued;
  /// Of the plan in use or, before any request, of that of the signature that takes plain CSR
  /// longest: what it is for, its speed-up over CSR (0: not known, or it is plain CSR), and where
  /// it is below the roofline.
  std::string signature, plan;
  bool in_use = false;
  double gain = 0;
  bool busy = false;  ///< the machine was, when that was timed (FindBusyTrials)
  engine::RooflinePosition roofline;
  /// Its owner's, which is all that he sees, and that of all tenants; without products.
  MatrixUse owners_use, use;
};

/// Speed-up of the plan over plain CSR; 0: it was not timed, or is plain CSR, which has none over
/// itself.
double GainOf(const engine::Plan& plan);

/// `tells_use`: which plan is in use, too, which whom it is only shared with is not told.
MatrixRow MakeMatrixRow(const engine::Matrix& matrix, engine::Engine& engine,
                        const LiveRequests& live, bool tells_use = true);
/// All of them, by tenant and name. Takes some microseconds a matrix, and less memory than it has
/// in the catalog; no lock is held longer than for one of them, but for the list of all.
/// Without what is of shards but their rows; `shard_of` may be null.
std::vector<MatrixRow> MakeMatrixTable(engine::Engine& engine, const LiveRequests& live,
                                       const ShardOf& shard_of);

}  // namespace sparsed::server
