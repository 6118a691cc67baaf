// Long work on the CPU, done in pieces between which others may have the worker slot.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "engine/planning/calibration.h"
#include "kernels/device_id.h"
#include "kernels/problem.h"

namespace sparsed::engine {

/// Seconds for which long work has the worker slot while others wait.
inline constexpr double kPieceSeconds = 0.003;

/// Seconds of a GPU that a short request takes at most when it is alone: such ones go before long
/// ones there.
inline constexpr double kShortOnGpuSeconds = 0.001;

/// Multiplications a second of a product that nobody has timed: what most reach of that of the
/// calibration's (DeviceConstants::multiplications_per_second), whose matrix suits a device well.
double UsualRate(const DeviceConstants& constants);

/// Multiplications from which on a product, or a chain of them, counts as long: about a piece on
/// the CPU, about kShortOnGpuSeconds on a GPU, as fast as that one is.
double LongWork(const DeviceConstants& constants, DeviceKind device);

/// Joins parts of a key for Costs.
inline uint64_t MixKind(uint64_t kind, uint64_t part) {
  kind = (kind ^ part) * 0x9e3779b97f4a7c15ull;
  return kind ^ kind >> 29;
}

/// Entries that a block of rows of a sparse product should have: as many as by the last block take
/// three quarters of a piece, RowBlockEntries at most. The first has few, as nobody knows how long
/// it takes. For one product and one kernel.
class BlockOfPiece {
 public:
  int64_t entries(int threads) const;
  /// A block did. One without entries says nothing.
  void Took(int64_t entries, double milliseconds);

 private:
  int64_t fit_ = 0;
};

/// How far a run of a kernel is that knows Context::progress.
class PieceRun {
 public:
  /// `wanted` outlives it: while it is true somebody waits for a worker slot.
  explicit PieceRun(const std::atomic<bool>* wanted) { progress_.pause = wanted; }

  /// Calls `run`, which goes on from where the last one left the progress and the workspace, until
  /// it is finished, or `gives_way` says after a piece that somebody goes before it.
  /// `*milliseconds`: those of `run`, this time.
  absl::Status Run(const std::function<absl::Status(sparsed::Progress&)>& run,
                   const std::function<bool()>& gives_way, double* milliseconds);
  /// The same of one piece: until somebody waits for a worker slot.
  absl::Status RunPiece(const std::function<absl::Status(sparsed::Progress&)>& run,
                        double* milliseconds) {
    return Run(
        run, [] { return true; }, milliseconds);
  }
  bool finished() const { return progress_.finished; }

 private:
  sparsed::Progress progress_;  ///< a preparation has one, too
};

}  // namespace sparsed::engine
