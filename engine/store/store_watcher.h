// Notices that the data directory went, before anybody wants to write to it.
#pragma once

#include <atomic>
#include <functional>
#include <stop_token>
#include <thread>

#include "absl/status/status.h"
#include "engine/store/store.h"

namespace sparsed::engine {

/// Asks a store every second, on a thread of its own, whether it is there.
class StoreWatcher {
 public:
  /// `changed` gets UNAVAILABLE when the store is gone and OK when it is there again; on the
  /// watcher's thread. `store` outlives this.
  StoreWatcher(Store& store, std::function<void(const absl::Status&)> changed);

  bool gone() const { return gone_; }

 private:
  void Watch(const std::stop_token& end);

  Store& store_;
  const std::function<void(const absl::Status&)> changed_;
  std::atomic<bool> gone_ = false;
  std::jthread thread_;  ///< ends first
};

}  // namespace sparsed::engine
