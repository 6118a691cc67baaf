#include "server/rpc/worker_pool.h"

#include <fmt/format.h>

#include "engine/retry.h"

namespace sparsed::server {

WorkerPool::WorkerPool(int threads, size_t max_waiting) : max_waiting_(max_waiting) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { RunThread(); });
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

absl::Status WorkerPool::Run(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() >= max_waiting_) {
      return engine::RetryLater(absl::ResourceExhaustedError(fmt::format(
          "{} calls already wait for the disk or for validation; retry later", waiting_.size())));
    }
    waiting_.push_back(std::move(work));
  }
  changed_.notify_one();
  return absl::OkStatus();
}

void WorkerPool::RunThread() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closing_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const std::function<void()> work = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    work();
    lock.lock();
  }
}

}  // namespace sparsed::server
