// Orders the changes of each name: one at a time writes its record and publishes it, while changes
// of other names go on.
#pragma once

#include <set>
#include <string>
#include <utility>

#include "base/mutex.h"

namespace sparsed::engine {

using NameKey = std::pair<std::string, std::string>;  ///< tenant, name

/// Thread-safe.
class NameLocks {
 public:
  /// Holds the name until it is destroyed. Not movable.
  class Guard {
   public:
    /// Waits until nobody else holds `key`.
    Guard(NameLocks& locks, NameKey key) : locks_(locks), key_(std::move(key)) {
      locks_.Lock(key_);
    }
    ~Guard() { locks_.Unlock(key_); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    NameLocks& locks_;
    const NameKey key_;
  };

 private:
  void Lock(const NameKey& key) {
    const MutexLock lock(mutex_);
    while (!held_.insert(key).second) released_.Wait(mutex_);
  }
  void Unlock(const NameKey& key) {
    {
      const MutexLock lock(mutex_);
      held_.erase(key);
    }
    released_.NotifyAll();
  }

  Mutex mutex_;
  CondVar released_;
  std::set<NameKey> held_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sparsed::engine
