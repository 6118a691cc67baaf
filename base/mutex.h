// Mutexes whose use the compiler checks: a member names the one that guards it (ABSL_GUARDED_BY), a
// function the one that its caller holds (ABSL_EXCLUSIVE_LOCKS_REQUIRED) or must not hold
// (ABSL_LOCKS_EXCLUDED), and clang's -Wthread-safety, which tests/check_tidy runs, finds whoever
// does otherwise. It looks into neither constructors nor destructors.
//
// They stand on the standard library's, which ThreadSanitizer understands. Of absl::Mutex it sees
// nothing, as Debian's Abseil is not built for it, and reports races where there are none.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"  // IWYU pragma: export

namespace sparsed {

/// To be locked with a MutexLock.
class ABSL_LOCKABLE Mutex {
 private:
  friend class MutexLock;
  friend class CondVar;
  std::mutex mutex_;
};

/// Holds a mutex until it goes out of scope, except between Unlock() and Lock().
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : lock_(mutex.mutex_) {}
  ~MutexLock() ABSL_UNLOCK_FUNCTION() = default;
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void Unlock() ABSL_UNLOCK_FUNCTION() { lock_.unlock(); }
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { lock_.lock(); }
  /// Likewise, looking for a moment before it sleeps: whoever has it is about to let it go.
  void LockSoon() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    for (int looks = 0; looks < 100; ++looks) {
      if (lock_.try_lock()) return;
    }
    lock_.lock();
  }

 private:
  std::unique_lock<std::mutex> lock_;
};

/// A std::condition_variable for a Mutex, which is released while waiting. Waits may end early, so
/// that who waits looks again: `while (queue_.empty()) changed_.Wait(mutex_);`
class CondVar {
 public:
  void NotifyOne() { changed_.notify_one(); }
  void NotifyAll() { changed_.notify_all(); }

  void Wait(Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    changed_.wait(lock);
    lock.release();
  }
  /// False if the time is over.
  bool WaitFor(Mutex& mutex, std::chrono::duration<double> time)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    const std::cv_status status = changed_.wait_for(lock, time);
    lock.release();
    return status == std::cv_status::no_timeout;
  }
  bool WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point end)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    const std::cv_status status = changed_.wait_until(lock, end);
    lock.release();
    return status == std::cv_status::no_timeout;
  }

 private:
  std::condition_variable changed_;
};

}  // namespace sparsed
