// Threads for what blocks: disks, long validations. Reactors hand such work over and return.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"

namespace sparsed::server {

/// Tenants take turns. Thread-safe.
class WorkerPool {
 public:
  /// None ever has all threads.
  WorkerPool(int threads, size_t max_waiting);
  /// None ever has more than `most_of_one` threads.
  WorkerPool(int threads, size_t max_waiting, int most_of_one);
  /// Does what still waits, then returns.
  ~WorkerPool();

  /// RESOURCE_EXHAUSTED if too much waits already; then `work` is not run.
  absl::Status Run(std::string_view tenant, std::function<void()> work);
  /// The server's own.
  absl::Status Run(std::function<void()> work) { return Run("", std::move(work)); }

 private:
  struct Tenant {
    std::deque<std::function<void()>> waiting;
    size_t running = 0;
  };
  using Tenants = std::map<std::string, Tenant, std::less<>>;

  void RunThread();
  /// Whose work is next, after who was last; the end: nobody's.
  Tenants::iterator NextLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t max_waiting_;
  const size_t most_of_one_;  ///< threads
  Mutex mutex_;
  CondVar changed_;
  Tenants tenants_ ABSL_GUARDED_BY(mutex_);  ///< whose work waits or runs
  std::string last_ ABSL_GUARDED_BY(mutex_);
  size_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace sparsed::server
