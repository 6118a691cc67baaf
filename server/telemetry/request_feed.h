// Requests as they end, for whoever records them.
#pragma once

#include <atomic>
#include <set>

#include "base/mutex.h"
#include "server/telemetry/slow_requests.h"
#include "server/telemetry/stage_record.h"

namespace sparsed::server {

/// Thread-safe. Costs nothing while nobody listens.
class RequestFeed {
 public:
  /// None of its calls blocks, or calls back into the feed.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void OnRequest(const EndedRequest& request) = 0;
  };

  void Add(Listener* listener);
  /// From now on it hears nothing.
  void Remove(Listener* listener);
  /// Tells all, unless it is about a request that asks the server for its own state.
  void Tell(const StageRecord& record);

 private:
  Mutex mutex_;
  std::set<Listener*> listeners_ ABSL_GUARDED_BY(mutex_);
  std::atomic<size_t> count_ = 0;
};

}  // namespace sparsed::server
