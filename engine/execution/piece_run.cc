#include "engine/execution/piece_run.h"

#include <algorithm>
#include <chrono>

#include "kernels/spgemm_blocks.h"

namespace sparsed::engine {

namespace {

/// Parts that a piece should have, where `parts` took so many milliseconds: at least one.
int64_t PartsOfPiece(int64_t parts, double milliseconds) {
  const double fit = 1e3 * kPieceSeconds / milliseconds * static_cast<double>(parts);
  return static_cast<int64_t>(std::clamp(fit, 1.0, 1e9));
}

}  // namespace

double UsualRate(const DeviceConstants& constants) {
  constexpr double kUsual = 0.375;
  return kUsual * constants.multiplications_per_second;
}

double LongWork(const DeviceConstants& constants, DeviceKind device) {
  return UsualRate(constants) * (device == DeviceKind::kCpu ? kPieceSeconds : kShortOnGpuSeconds);
}

int64_t BlockOfPiece::entries(int threads) const {
  const int64_t most = RowBlockEntries(threads);
  // A block that took long because other programs had the processors must not make the next ones so
  // small that their ends count.
  constexpr int64_t kLeast = 16;
  return std::clamp(fit_, most / kLeast, most);
}

void BlockOfPiece::Took(int64_t entries, double milliseconds) {
  // The next rows may have more products for each entry.
  constexpr double kHarder = 4.0 / 3;
  if (entries > 0 && milliseconds > 0) fit_ = PartsOfPiece(entries, kHarder * milliseconds);
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
      progress_.least = PartsOfPiece(parts, taken);
    }
  } while (!gives_way());
  return absl::OkStatus();
}

}  // namespace sparsed::engine
