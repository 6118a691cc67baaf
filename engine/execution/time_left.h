// What is left of a request's time for what is begun later.
#pragma once

#include <chrono>
#include <cstdint>

#include "engine/execution/job.h"

namespace sparsed::engine {

class TimeLeft {
 public:
  /// As a spec has it, from now on: 0 is no limit.
  explicit TimeLeft(uint64_t timeout_ns)
      : timeout_ns_(timeout_ns), begin_(std::chrono::steady_clock::now()) {}
  /// As a spec has it.
  uint64_t nanoseconds() const {
    if (timeout_ns_ == 0) return 0;
    const uint64_t passed = NanosecondsSince(begin_);
    return passed < timeout_ns_ ? timeout_ns_ - passed : 1;
  }

 private:
  const uint64_t timeout_ns_;
  const std::chrono::steady_clock::time_point begin_;
};

}  // namespace sparsed::engine
