// What the threads of a worker slot do a second, where no calibration says it.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "engine/execution/calibrate.h"

namespace sparsed::engine {

/// One try at a rate.
struct RateTry {
  double per_second = 0;
  ProcessorShares shares;
};

/// Rates that stay what they are as long as the process runs: operations in registers, bytes from
/// the last level cache. What other worker slots do, or preparations, takes from them wherever it
/// runs: one that was measured beside it counts until it is measured again. Thread-safe.
class CpuRates {
 public:
  using Clock = std::chrono::steady_clock;
  /// The element type's name, or kCache; and threads.
  using Key = std::pair<std::string_view, int>;
  static constexpr std::string_view kCache = "cache";
  /// What is not certain is measured again.
  static constexpr std::chrono::minutes kAgainAfter{1};

  static CpuRates& OfThisProcess();

  /// 0: measure.
  double Known(const Key& key, Clock::time_point now = Clock::now()) const;
  /// The tries of one measurement agreed, and nobody else computed.
  bool certain(const Key& key) const;
  /// A few tries of `work`, which says how much it did. Takes them, and returns what is known then.
  double Measure(const Key& key, const std::function<double()>& work);
  /// The first tries that are certain replace what was known; others only raise it.
  void Take(const Key& key, const std::vector<RateTry>& tries,
            Clock::time_point now = Clock::now());

 private:
  struct Rate {
    double best = 0;
    bool certain = false;
    Clock::time_point taken;
  };

  mutable Mutex mutex_;
  std::map<Key, Rate> rates_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sparsed::engine
