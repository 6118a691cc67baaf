// Requests as they end, for whoever records them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "server/telemetry/slow_requests.h"
#include "server/telemetry/stage_record.h"

namespace sparsed::server {

/// The bytes of a record in memory.
size_t BytesOf(const EndedRequest& request);

/// Records that somebody has yet to read, who may be slow: those beyond kMostBytes are counted and
/// left out. Not thread-safe.
class WaitingRequests {
 public:
  /// Of records in memory, which take some 700 bytes each, wherever else they wait, too.
  static constexpr size_t kMostBytes = size_t{1} << 20;

  void Add(std::shared_ptr<const EndedRequest> request);
  /// The first `most` of them, and how many were left out since it was called last.
  std::pair<std::vector<std::shared_ptr<const EndedRequest>>, int64_t> Take(size_t most);
  bool empty() const { return requests_.empty() && left_out_ == 0; }

 private:
  std::deque<std::shared_ptr<const EndedRequest>> requests_;
  size_t bytes_ = 0;
  int64_t left_out_ = 0;
};

/// Thread-safe. Costs nothing while nobody listens.
class RequestFeed {
 public:
  static constexpr size_t kMostOfTenant = 8;

  class Listener {
   public:
    virtual ~Listener() = default;
    /// Keeps the record, and does nothing else: every request's end waits for it. True: Proceed is
    /// to be called.
    virtual bool Take(const std::shared_ptr<const EndedRequest>& request) = 0;
    /// Goes on with what it kept. May still be called once after Remove.
    virtual void Proceed() = 0;
  };

  /// `tenant`'s, which hears of its own requests or of `all`. RESOURCE_EXHAUSTED if the tenant has
  /// kMostOfTenant.
  absl::Status Add(std::shared_ptr<Listener> listener, const std::string& tenant, bool all);
  /// From now on it takes nothing.
  void Remove(const Listener* listener);
  /// Tells all, unless it is about a request that asks the server for its own state.
  void Tell(const StageRecord& record);

 private:
  struct Listening {
    std::shared_ptr<Listener> listener;
    std::string tenant;
    bool all = false;
  };

  Mutex mutex_;
  std::vector<Listening> listening_ ABSL_GUARDED_BY(mutex_);
  std::atomic<size_t> count_ = 0;
};

}  // namespace sparsed::server
