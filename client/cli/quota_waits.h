// How long a command waited because the server had no room for its calls at the moment.
#pragma once

#include <chrono>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "base/mutex.h"

namespace sparsed::cli {

/// Of all calls of a command. Thread-safe.
class QuotaWaits {
 public:
  using Clock = std::chrono::steady_clock;

  /// A call was refused at `now` and is made again after the pause: ClientOptions::on_retry. Only
  /// RESOURCE_EXHAUSTED counts.
  void Add(const absl::Status& why, std::chrono::nanoseconds pause, Clock::time_point now);
  /// "waited 1.20 s for the quota requests_per_second (refused 3 times)", a line for each quota;
  /// empty: nothing waited.
  std::string Text() const;

 private:
  struct Wait {
    int refusals = 0;
    /// That at least one call waited; calls that wait side by side wait once.
    std::chrono::nanoseconds time{};
    Clock::time_point until{};
  };
  mutable Mutex mutex_;
  std::map<std::string, Wait> by_cause_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sparsed::cli
