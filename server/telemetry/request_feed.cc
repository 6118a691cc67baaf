#include "server/telemetry/request_feed.h"

#include <chrono>

#include "server/telemetry/live_requests.h"

namespace sparsed::server {

void RequestFeed::Add(Listener* listener) {
  const MutexLock lock(mutex_);
  listeners_.insert(listener);
  count_ = listeners_.size();
}

void RequestFeed::Remove(Listener* listener) {
  const MutexLock lock(mutex_);
  listeners_.erase(listener);
  count_ = listeners_.size();
}

void RequestFeed::Tell(const StageRecord& record) {
  if (count_.load(std::memory_order_relaxed) == 0 || IsStatusCall(record.op)) return;
  const EndedRequest request{std::chrono::system_clock::now(), record};
  const MutexLock lock(mutex_);
  for (Listener* listener : listeners_) listener->OnRequest(request);
}

}  // namespace sparsed::server
