// How often an event that anybody can cause is logged.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/mutex.h"

namespace sparsed::server {

/// A bucket of tokens: `burst` events at once, `per_second` in the long run. Thread-safe.
class LogLimit {
 public:
  using Clock = std::chrono::steady_clock;

  LogLimit(double per_second, int burst) : per_second_(per_second), burst_(burst), tokens_(burst) {}

  /// Whether an event of now is to be logged: if so, how many before it were not since the last one
  /// that was.
  std::optional<int64_t> Admit(Clock::time_point now = Clock::now()) {
    const MutexLock lock(mutex_);
    const std::chrono::duration<double> passed = now - filled_;
    if (passed.count() > 0) {
      tokens_ = std::min(burst_, tokens_ + passed.count() * per_second_);
      filled_ = now;
    }
    if (tokens_ < 1) {
      ++suppressed_;
      return std::nullopt;
    }
    tokens_ -= 1;
    return std::exchange(suppressed_, 0);
  }

  /// Events that were not logged since the last one that was.
  int64_t suppressed() const {
    const MutexLock lock(mutex_);
    return suppressed_;
  }

 private:
  const double per_second_, burst_;
  mutable Mutex mutex_;
  double tokens_ ABSL_GUARDED_BY(mutex_);
  int64_t suppressed_ ABSL_GUARDED_BY(mutex_) = 0;
  Clock::time_point filled_ ABSL_GUARDED_BY(mutex_) = Clock::now();
};

}  // namespace sparsed::server
