// Threads for what blocks: disks, long validations. Reactors hand such work over and return.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"

namespace sparsed::server {

/// Thread-safe.
class WorkerPool {
 public:
  WorkerPool(int threads, size_t max_waiting);
  /// Does what still waits, then returns.
  ~WorkerPool();

  /// RESOURCE_EXHAUSTED if too much waits already; then `work` is not run.
  absl::Status Run(std::function<void()> work);

 private:
  void RunThread();

  const size_t max_waiting_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace sparsed::server
