// Where the preparation of a pattern stands, for those who ask and those who watch.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "base/mutex.h"

namespace sparsed::engine {

enum class PreparationState : uint8_t { kQueued, kPreparing, kReady, kFailed };
/// "QUEUED", "PREPARING", "READY", "FAILED".
std::string_view Name(PreparationState state);

struct PreparationStatus {
  PreparationState state = PreparationState::kQueued;
  std::string stage;  ///< empty between stages
  int64_t done = 0;
  int64_t total = 0;
  std::string message;  ///< what just happened, for people
  std::string detail;   ///< the outcome so far: gained, skipped and why, failed
  double seconds = 0;   ///< spent so far
};

/// Thread-safe.
class PreparationProgress {
 public:
  PreparationStatus status() const;
  /// Changes the status and tells every watcher, in order. The lock is held while `change` runs,
  /// not while watchers are told.
  void Update(const std::function<void(PreparationStatus&)>& change);

  using Watcher = std::function<void(const PreparationStatus&)>;
  /// Tells `watcher` the present status at once and each change until Unwatch; it must not block or
  /// call back here.
  int64_t Watch(Watcher watcher);
  /// Afterwards the watcher is not called any more (waits for a call in progress on another
  /// thread).
  void Unwatch(int64_t id);

 private:
  mutable Mutex mutex_;
  PreparationStatus status_ ABSL_GUARDED_BY(mutex_);

  Mutex watchers_mutex_;  ///< taken before mutex_; orders the calls of watchers
  std::map<int64_t, Watcher> watchers_ ABSL_GUARDED_BY(watchers_mutex_);
  int64_t next_watcher_ ABSL_GUARDED_BY(watchers_mutex_) = 1;
};

}  // namespace sparsed::engine
