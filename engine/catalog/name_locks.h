// Orders the changes of each name: one at a time writes its record and publishes it, while changes
// of other names go on.
#pragma once

#include <condition_variable>
#include <mutex>
#include <set>
#include <string>
#include <utility>

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
      std::unique_lock lock(locks_.mutex_);
      locks_.released_.wait(lock, [&] { return locks_.held_.insert(key_).second; });
    }
    ~Guard() {
      {
        std::lock_guard lock(locks_.mutex_);
        locks_.held_.erase(key_);
      }
      locks_.released_.notify_all();
    }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    NameLocks& locks_;
    const NameKey key_;
  };

 private:
  std::mutex mutex_;
  std::condition_variable released_;
  std::set<NameKey> held_;
};

}  // namespace sparsed::engine
