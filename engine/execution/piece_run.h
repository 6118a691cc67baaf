// A long product on the CPU, computed in pieces between which others may have the lane.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "engine/execution/backend.h"
#include "engine/execution/executor.h"
#include "kernels/bound_run.h"
#include "kernels/device_id.h"

namespace sparsed::engine {

/// Seconds for which a long product has the lane while others wait.
inline constexpr double kPieceSeconds = 0.003;

/// Seconds of a GPU that a short request takes at most when it is alone: such ones go before long
/// ones there.
inline constexpr double kShortOnGpuSeconds = 0.001;

/// Multiplications from which on a product, or a chain of them, counts as long: about a piece on
/// the CPU, about kShortOnGpuSeconds on a GPU.
double LongWork(int threads_per_lane, DeviceKind device);

/// Joins parts of a key for Costs.
inline uint64_t MixKind(uint64_t kind, uint64_t part) {
  kind = (kind ^ part) * 0x9e3779b97f4a7c15ull;
  return kind ^ kind >> 29;
}

/// How far one is. Of a kernel that resumes.
class PieceRun {
 public:
  /// `wanted` outlives it: while it is true somebody waits for a lane.
  explicit PieceRun(const std::atomic<bool>* wanted) { progress_.pause = wanted; }

  /// Runs it until it is finished, or `gives_way` says after a piece that somebody goes before it.
  /// `memory`: of its workspace, which it keeps. `*milliseconds`: those of the kernel, this time.
  absl::Status Run(Lane& lane, const BoundRun& run, MemorySource& memory,
                   const std::atomic<bool>* stop, const std::function<bool()>& gives_way,
                   double* milliseconds);
  bool finished() const { return progress_.finished; }

 private:
  Progress progress_;
  Buffer workspace_;
};

}  // namespace sparsed::engine
