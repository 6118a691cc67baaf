#include "engine/execution/piece_run.h"

#include <algorithm>
#include <chrono>

namespace sparsed::engine {

double UsualRate(const DeviceConstants& constants) {
  constexpr double kUsual = 0.375;
  return kUsual * constants.multiplications_per_second;
}

double LongWork(const DeviceConstants& constants, DeviceKind device) {
  return UsualRate(constants) * (device == DeviceKind::kCpu ? kPieceSeconds : kShortOnGpuSeconds);
}

absl::Status PieceRun::Run(const std::function<absl::Status(sparsed::Progress&)>& run,
                           const std::function<bool()>& gives_way, double* milliseconds) {
  using Clock = std::chrono::steady_clock;
  *milliseconds = 0;
  do {
    const int phase = progress_.phase;
    const int64_t done = progress_.done;
    progress_.other_parts = false;
    const Clock::time_point begin = Clock::now();
    absl::Status status = run(progress_);
    const double taken = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
    *milliseconds += taken;
    if (!status.ok() || progress_.finished) return status;
    const int64_t parts = progress_.done - done;
    if (progress_.phase != phase || progress_.other_parts) {
      progress_.least = 1;
    } else if (parts > 0 && taken > 0) {
      const double fit = 1e3 * kPieceSeconds / taken * static_cast<double>(parts);
      progress_.least = static_cast<int64_t>(std::clamp(fit, 1.0, 1e9));
    }
  } while (!gives_way());
  return absl::OkStatus();
}

}  // namespace sparsed::engine
