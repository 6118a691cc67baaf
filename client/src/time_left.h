// What is left of the time that a call may take.
#pragma once

#include <algorithm>
#include <chrono>

#include "sparsed/client.h"

namespace sparsed {
inline namespace client {

/// Of a call that begins when this is made and goes through several hands.
class TimeLeft {
 public:
  using Clock = std::chrono::steady_clock;

  explicit TimeLeft(const CallOptions& options) : options_(options) {
    if (!options.timeout) return;
    const Clock::time_point now = Clock::now();
    if (*options.timeout < Clock::time_point::max() - now) {
      deadline_ = now + *options.timeout;
    }
  }

  /// Clock::time_point::max(): it may take for ever.
  Clock::time_point deadline() const { return deadline_; }
  /// Those of the call, for the rest of it.
  CallOptions rest() const {
    CallOptions rest = options_;
    if (deadline_ != Clock::time_point::max()) {
      rest.timeout = std::max(Clock::duration(0), deadline_ - Clock::now());
    }
    return rest;
  }
  /// Of what may take no longer than `most` either.
  std::chrono::nanoseconds AtMost(std::chrono::nanoseconds most) const {
    return std::min(most, rest().timeout.value_or(most));
  }

 private:
  const CallOptions options_;
  Clock::time_point deadline_ = Clock::time_point::max();
};

}  // namespace client
}  // namespace sparsed
