#include "engine/execution/piece_run.h"

#include <algorithm>

namespace sparsed::engine {

double LongWork(int threads_per_lane, DeviceKind device) {
  constexpr double kOfThread = 4 << 20, kOfGpu = 256 << 20;
  return device == DeviceKind::kCpu ? kOfThread * threads_per_lane : kOfGpu;
}

absl::Status PieceRun::Run(Lane& lane, const BoundRun& run, MemorySource& memory,
                           const std::atomic<bool>* stop, const std::function<bool()>& gives_way,
                           double* milliseconds) {
  const RunOptions options{
      .workspace = workspace_, .memory = memory, .stop = stop, .progress = &progress_};
  *milliseconds = 0;
  do {
    const int phase = progress_.phase;
    const int64_t done = progress_.done;
    double taken = 0;
    absl::Status status = lane.backend->Run(lane, run, options, &taken);
    *milliseconds += taken;
    if (!status.ok() || progress_.finished) return status;
    const int64_t parts = progress_.done - (progress_.phase == phase ? done : 0);
    if (parts > 0 && taken > 0) {
      const double fit = 1e3 * kPieceSeconds / taken * static_cast<double>(parts);
      progress_.least = static_cast<int64_t>(std::clamp(fit, 1.0, 1e9));
    }
  } while (!gives_way());
  return absl::OkStatus();
}

}  // namespace sparsed::engine
