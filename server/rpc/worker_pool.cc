#include "server/rpc/worker_pool.h"

#include <fmt/format.h>

#include "engine/retry.h"

namespace sparsed::server {

WorkerPool::WorkerPool(int threads, size_t max_waiting) : max_waiting_(max_waiting) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { RunThread(); });
}

WorkerPool::~WorkerPool() {
  {
    const MutexLock lock(mutex_);
    closing_ = true;
  }
  changed_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

absl::Status WorkerPool::Run(std::function<void()> work) {
  {
    const MutexLock lock(mutex_);
    if (waiting_.size() >= max_waiting_) {
      return engine::RetryLater(absl::ResourceExhaustedError(fmt::format(
          "{} calls already wait for the disk or for validation; retry later", waiting_.size())));
    }
    waiting_.push_back(std::move(work));
  }
  changed_.NotifyOne();
  return absl::OkStatus();
}

void WorkerPool::RunThread() {
  MutexLock lock(mutex_);
  while (true) {
    while (!closing_ && waiting_.empty()) changed_.Wait(mutex_);
    if (waiting_.empty()) return;
    std::function<void()> work = std::move(waiting_.front());
    waiting_.pop_front();
    lock.Unlock();
    work();
    work = nullptr;  // what it holds goes without the lock, too
    lock.Lock();
  }
}

}  // namespace sparsed::server
