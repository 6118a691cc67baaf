// One opening of a compute stream or a ring: which requests are on it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "client/src/stream.h"
#include "proto/wire/chunk_codec.h"
#include "sparsed/v1/compute.pb.h"

namespace sparsed {
inline namespace client {

class DenseCall;

/// Thread-safe. Requests beyond the server's limit wait here for their turn.
class ComputeSession : public Stream::Handler, public std::enable_shared_from_this<ComputeSession> {
 public:
  explicit ComputeSession(size_t max_in_flight) : max_in_flight_(max_in_flight) {}

  /// What carries it, and has this for its handler; before anything else.
  void Use(std::shared_ptr<ComputeChannel> channel) {
    const MutexLock lock(mutex_);
    channel_ = std::move(channel);
  }

  /// False if the stream has broken: nothing was done, try another session.
  bool Add(const std::shared_ptr<DenseCall>& call);
  /// Ends a request early, if it is still here, and tells the server.
  void Remove(const DenseCall& call, absl::Status status);
  /// The server has not ended a request that was ended early, and may still use its shared memory:
  /// that is taken back.
  void AwaitEndNoLonger(const DenseCall& call);
  /// Ends the stream and with it all its requests.
  void Break();
  void WaitUntilClosed();

 private:
  Next OnMessage(const grpc::ByteBuffer& bytes) override;
  void OnClosed(const absl::Status& status) override;

  void OnReply(uint64_t id, const wire::Frame<v1::ComputeReply>& frame);
  /// Ends the stream, as nothing that follows can be trusted, and with `status` all its requests.
  void EndForViolation(absl::Status status);
  /// With the lock, so that a request that was ended lends no memory any more.
  void SendLocked(const std::shared_ptr<DenseCall>& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendWaitingLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool WasSent(uint64_t id) const;
  /// Null if it is not in flight.
  std::shared_ptr<DenseCall> Find(uint64_t id) const;
  /// Null once it has ended.
  std::shared_ptr<ComputeChannel> channel() const;
  /// A request that was ended early, which the server has yet to end. Its call waits for that, too,
  /// if it shares memory; others have ended.
  struct Aborted {
    std::shared_ptr<DenseCall> call;
    absl::Status status;
  };
  /// Forgets a request that the server ended, and sends one that waits. Null if it has ended
  /// before; `status` is then that of its early end, if it had one.
  std::shared_ptr<DenseCall> TakeEnded(uint64_t id, std::optional<absl::Status>* status);
  /// Ends a request that the server should not go on with; nothing if it is not in flight. Until
  /// the server has ended it, too, it takes up one of the places that the server grants.
  void Abort(uint64_t id, absl::Status status);

  const size_t max_in_flight_;

  // Taken before calls' and the channel's locks. Calls end without it: what goes with them may be
  // anything.
  mutable Mutex mutex_;
  CondVar closed_changed_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  // Until the end: gRPC holds what was lent and not yet sent as long as the stream exists.
  std::shared_ptr<ComputeChannel> channel_ ABSL_GUARDED_BY(mutex_);
  absl::Status violation_ ABSL_GUARDED_BY(mutex_);  // of the protocol, by the server
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::unordered_map<uint64_t, std::shared_ptr<DenseCall>> in_flight_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Aborted> aborted_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<DenseCall>> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace client
}  // namespace sparsed
