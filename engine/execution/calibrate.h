// Measures a device's constants, on an idle worker slot and a step at a time.
#pragma once

#include <atomic>
#include <chrono>

#include "absl/status/statusor.h"
#include "engine/execution/executor.h"
#include "engine/planning/calibration.h"
#include "kernels/device_id.h"

namespace sparsed::engine {

/// All constants of the device, in about a second. Steps are of 0.3 s at most, and requests go
/// between them. ABORTED, with a sentence, where others used the device meanwhile: what it did in a
/// second differed from time to time. UNAVAILABLE of a device that is lost; RESOURCE_EXHAUSTED
/// without free memory for it; CANCELLED and DEADLINE_EXCEEDED as Executor::RunIdle's, `until`
/// being when the last step has to have begun.
absl::StatusOr<Calibration> Calibrate(Executor& executor, MemorySource& host, DeviceId device,
                                      const std::atomic<bool>* stop,
                                      std::chrono::steady_clock::time_point until);

/// What several tries agree on: the best, if the median is near it (`near`, a share). ABORTED
/// with a sentence about `what` if it is not.
absl::StatusOr<double> Agreed(std::string_view what, std::vector<double> rates, double near);

}  // namespace sparsed::engine
