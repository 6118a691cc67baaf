// Whether queues move. Where requests wait for a device and nothing runs there for long, something
// is stuck that no error tells of.
#pragma once

#include <prometheus/metric_family.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace sparsed::engine {
class Engine;
}

namespace sparsed::server {

/// A queue as it is now.
struct QueueState {
  std::string device;
  int64_t waiting = 0;
  double busy_seconds = 0;  ///< grows whenever something ran there
};
/// Of every device.
std::vector<QueueState> QueuesOf(engine::Engine& engine);

/// Which queues have stood still for how long. Not thread-safe.
class QueueStalls {
 public:
  using Clock = std::chrono::steady_clock;

  explicit QueueStalls(Clock::duration patience) : patience_(patience) {}

  /// To be called every so often. Names of the devices for which requests have waited since
  /// `patience` before `now` while nothing ran.
  std::vector<std::string> Look(const std::vector<QueueState>& queues, Clock::time_point now);

 private:
  struct Seen {
    double busy_seconds = 0;
    Clock::time_point moved;  ///< when it last was seen to move, or to be empty
  };

  const Clock::duration patience_;
  std::map<std::string, Seen> seen_;
};

/// Looks at all queues from a thread of its own. Thread-safe.
class QueueWatch {
 public:
  struct Options {
    std::chrono::milliseconds interval = std::chrono::seconds(1);
    std::chrono::duration<double> patience = std::chrono::minutes(10);
    std::function<std::vector<QueueState>()> look;
    std::function<void()> changed;  ///< Reason() is another now
  };

  explicit QueueWatch(Options options);

  /// Empty, or why requests are not served: "requests wait for cuda:0, where ...".
  std::string Reason() const;
  /// sparsed_queue_stalled.
  prometheus::MetricFamily Metric() const;

 private:
  void Run(const std::stop_token& stop);

  const Options options_;
  mutable Mutex mutex_;
  std::map<std::string, bool> stalled_ ABSL_GUARDED_BY(mutex_);  ///< by device
  std::jthread thread_;                                          ///< last
};

}  // namespace sparsed::server
