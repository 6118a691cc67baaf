#include "server/rpc/worker_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/retry.h"

namespace sparsed::server {

WorkerPool::WorkerPool(int threads, size_t max_waiting)
    : WorkerPool(threads, max_waiting, std::max(threads - 1, 1)) {}

WorkerPool::WorkerPool(int threads, size_t max_waiting, int most_of_one)
    : max_waiting_(max_waiting), most_of_one_(static_cast<size_t>(most_of_one)) {
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

absl::Status WorkerPool::Run(std::string_view tenant, std::function<void()> work) {
  {
    const MutexLock lock(mutex_);
    if (waiting_ >= max_waiting_) {
      return engine::RetryLater(absl::ResourceExhaustedError(fmt::format(
          "{} calls already wait for the disk, for validation or for other nodes; retry later",
          waiting_)));
    }
    ++waiting_;
    auto found = tenants_.find(tenant);
    if (found == tenants_.end()) found = tenants_.emplace(tenant, Tenant()).first;
    found->second.waiting.push_back(std::move(work));
  }
  changed_.NotifyOne();
  return absl::OkStatus();
}

WorkerPool::Tenants::iterator WorkerPool::NextLocked() {
  const auto may = [&](const Tenants::value_type& tenant) {
    return !tenant.second.waiting.empty() && tenant.second.running < most_of_one_;
  };
  const auto after = tenants_.upper_bound(last_);
  const auto next = std::find_if(after, tenants_.end(), may);
  if (next != tenants_.end()) return next;
  const auto first = std::find_if(tenants_.begin(), after, may);
  return first == after ? tenants_.end() : first;
}

void WorkerPool::RunThread() {
  MutexLock lock(mutex_);
  while (true) {
    auto next = NextLocked();
    while (next == tenants_.end() && !(closing_ && waiting_ == 0)) {
      changed_.Wait(mutex_);
      next = NextLocked();
    }
    if (next == tenants_.end()) return;
    last_ = next->first;
    Tenant& tenant = next->second;
    std::function<void()> work = std::move(tenant.waiting.front());
    tenant.waiting.pop_front();
    --waiting_;
    ++tenant.running;
    lock.Unlock();
    work();
    work = nullptr;  // what it holds goes without the lock, too
    lock.Lock();
    if (--tenant.running == 0 && tenant.waiting.empty()) tenants_.erase(next);
    // Who waits for the tenant's turn, or for the end.
    if (waiting_ > 0 || closing_) changed_.NotifyAll();
  }
}

}  // namespace sparsed::server
