#include "engine/execution/backend.h"

#include <algorithm>
#include <utility>

namespace sparsed::engine {

void Backend::Use(Calibration calibration) {
  const DeviceConstants constants = WithDefaults(calibration.constants, id_.kind, threads_);
  RaiseRate(std::max(calibration.constants.read_bytes_per_second,
                     calibration.constants.copy_bytes_per_second));
  OnConstants(constants);
  const MutexLock lock(constants_mutex_);
  constants_ = constants;
  calibration_ = std::move(calibration);
}

}  // namespace sparsed::engine
