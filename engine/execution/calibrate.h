// Measures a device's constants, on an idle worker slot and a step at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/execution/executor.h"
#include "engine/planning/calibration.h"
#include "kernels/device_id.h"

namespace sparsed::engine {

/// All constants of the device, in a second or two. Requests go between its steps, and a step for
/// which one waits ends, and is taken again. Of a CPU without
/// free memory for more than its caches hold, the rates of memory are not measured. Nothing is
/// evicted for it. ABORTED, with a sentence, where others used the device meanwhile: what it did in
/// a second differed from time to time, requests ran beside a step, or the CPU had more to do than
/// that, or less. UNAVAILABLE of a device that is lost; RESOURCE_EXHAUSTED without free memory for
/// it; CANCELLED and DEADLINE_EXCEEDED as Executor::RunIdle's, `until` being when the last step has
/// to have begun.
absl::StatusOr<Calibration> Calibrate(Executor& executor, MemorySource& host, DeviceId device,
                                      const std::atomic<bool>* stop,
                                      std::chrono::steady_clock::time_point until);

/// Processor time of tries over the time that they took: below 1, others ran where it was to run.
struct ProcessorShares {
  double caller = 1;   ///< of the thread that took them
  double process = 1;  ///< of all threads of the process over those that were to compute
};
/// OK if nobody else computed. `computes`: the thread did so all the time, as one of a team, which
/// waits for the others, does not. ABORTED with a sentence about `what`.
absl::Status CheckAlone(std::string_view what, const ProcessorShares& shares, bool computes);

/// Of an array whose reads tell the cache's rate: half of the last level cache, as others have a
/// part. Where the machine counts the caches of several groups of cores as one, a thread has no
/// more than 4 MiB of its group's.
int64_t CacheRateBytes(int64_t cache_bytes, int threads);

/// What several tries agree on: the best, if the median is near it (`near`, a share). ABORTED
/// with a sentence about `what` if it is not.
absl::StatusOr<double> Agreed(std::string_view what, std::vector<double> rates, double near);

}  // namespace sparsed::engine
