// Layouts that found no room, which the next requests need not find out again.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "engine/memory/lazy_array.h"
#include "kernels/device_id.h"

namespace sparsed::engine {

/// To find that there is no room for a layout takes what a copy of it takes, and lets others go for
/// nothing: so who found it says so here, and for a while the others do without. Thread-safe.
class NoRoom {
 public:
  using Time = std::chrono::steady_clock::time_point;
  /// Memory that was short may be free again.
  static constexpr std::chrono::minutes kTryAgainAfter{1};

  /// It could not be placed on the device for want of memory, the device's or the host's.
  void Note(DeviceId device, const std::shared_ptr<LazyLayout>& layout,
            Time now = std::chrono::steady_clock::now());
  /// That was so less than kTryAgainAfter ago.
  bool Has(DeviceId device, const std::shared_ptr<LazyLayout>& layout,
           Time now = std::chrono::steady_clock::now()) const;

 private:
  struct Refusal {
    DeviceId device;
    std::weak_ptr<LazyLayout> layout;
    Time until;
  };

  mutable Mutex mutex_;
  /// Few; what is past goes with the next Note.
  std::vector<Refusal> refusals_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> any_ = false;  ///< was noted since the start: until then nobody locks
};

}  // namespace sparsed::engine
