// Queues of callers on a GPU: the requests of one caller's stream, which run in a stream of the
// server's, in their order, each once the caller's stream is there.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/execution/backend.h"
#include "kernels/array.h"

namespace sparsed::engine {

class Device;
class DeviceQueue;

/// Those of one GPU, and the thread that looks after them. Thread-safe.
class DeviceQueues {
 public:
  /// Of all tenants; one has no more than are left for others.
  static constexpr size_t kMost = 256;
  /// What the words of a page are; as local.proto has them.
  static constexpr size_t kBegin = 0, kEnd = 1, kFailed = 2;
  static constexpr size_t kPageBytes = 4096;

  /// Both outlive it.
  DeviceQueues(Device& device, Backend& backend);
  /// Waits for what has begun.
  ~DeviceQueues();
  DeviceQueues(const DeviceQueues&) = delete;
  DeviceQueues& operator=(const DeviceQueues&) = delete;

  /// `page` is pinned for the GPU, and of kPageBytes. RESOURCE_EXHAUSTED; UNAVAILABLE.
  absl::StatusOr<std::shared_ptr<DeviceQueue>> Open(Buffer page, std::string_view tenant);
  /// Likewise: none is opened any more. Idempotent.
  void Close();
  int64_t count() const;

 private:
  friend class DeviceQueue;
  class Keeper;
  const std::shared_ptr<Keeper> keeper_;  ///< its queues', too
};

/// One caller's. What it and the caller tell one another is in a page of memory that both map:
/// words, of which the caller's stream and the queue's write one each
/// (proto/sparsed/v1/local.proto). The GPU never waits for a caller: what is not to begin yet waits
/// here, so that a caller whose stream does not come holds up nobody, and keeps nothing but its
/// own. Thread-safe.
class DeviceQueue {
 public:
  using Clock = std::chrono::steady_clock;
  /// Requests of one queue that have not ended.
  static constexpr size_t kMostRequests = 128;

  struct Request {
    /// One more than the last one's, or a few; they go round.
    uint32_t number = 0;
    /// Queues all of it in the worker slot's stream; nothing waits there for anybody but the GPU.
    /// Kept until the stream has passed it.
    std::function<absl::Status(WorkerSlot& slot)> run;
    /// Called when it has ended, with the GPU's milliseconds.
    std::function<void(double milliseconds)> ended;
    /// By when the caller's stream is to be there.
    Clock::time_point until = Clock::time_point::max();
  };

  ~DeviceQueue();
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;

  DeviceId device() const;
  /// Makes the workspace of its requests, which run one after the other, at least so large. May
  /// wait for those that have begun. RESOURCE_EXHAUSTED.
  absl::Status Reserve(size_t workspace_bytes);
  /// Takes a request, and returns. If the caller's stream is there it was queued, too. From then on
  /// it ends without an error, or breaks the queue. INVALID_ARGUMENT for a number that does not
  /// come next; RESOURCE_EXHAUSTED; ABORTED, or UNAVAILABLE, once the queue is broken or closed.
  absl::Status Take(Request request);
  /// Its caller has gone: what has not begun never does, what has runs to its end, and lets go of
  /// what it keeps then.
  void Close();

 private:
  friend class DeviceQueues;
  class State;
  DeviceQueue(std::shared_ptr<State> state, std::shared_ptr<DeviceQueues::Keeper> keeper);

  const std::shared_ptr<State> state_;  ///< its GPU's thread has it, too
  const std::shared_ptr<DeviceQueues::Keeper> keeper_;
};

}  // namespace sparsed::engine
