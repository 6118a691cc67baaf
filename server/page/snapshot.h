// Tables that take long to make: shown as they were a moment ago.
#pragma once

#include <time.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "base/mutex.h"

namespace sparsed::server {

/// Makes its value at most so often that this takes a hundredth of one thread's time, or once a
/// minute, however many ask. Thread-safe; who asks while it is being made waits.
template <typename T>
class Snapshot {
 public:
  explicit Snapshot(std::function<T()> make) : make_(std::move(make)) {}

  std::shared_ptr<const T> Get() {
    const MutexLock lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    if (value_ == nullptr || now >= old_at_) {
      const auto before = ThreadTime();
      value_ = std::make_shared<const T>(make_());
      old_at_ = now + std::min<std::chrono::nanoseconds>(100 * (ThreadTime() - before),
                                                         std::chrono::minutes(1));
    }
    return value_;
  }

 private:
  /// Not wall time: on a busy machine that says how long others computed.
  static std::chrono::nanoseconds ThreadTime() {
    timespec time = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  }

  const std::function<T()> make_;
  Mutex mutex_;
  std::shared_ptr<const T> value_ ABSL_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point old_at_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sparsed::server
