// One opening of a compute stream or a ring: which requests are on it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "client/src/carrier.h"
#include "client/src/stream.h"
#include "proto/wire/chunk_codec.h"
#include "sparsed/v1/compute.pb.h"

namespace sparsed {
inline namespace client {

class Connection;
class DenseCall;

/// Thread-safe. Requests beyond the server's limit wait here for their turn. Large ones share the
/// session's carriers: the first opens them, and those that are there carry the next.
class ComputeSession : public Stream::Handler, public std::enable_shared_from_this<ComputeSession> {
 public:
  /// Large requests have so many carriers.
  ComputeSession(Connection& connection, size_t max_in_flight, size_t carriers);

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
  bool closed() const;
  void WaitUntilClosed();

  // For its carriers.
  void OnCarried(Carrier& carrier, const grpc::ByteBuffer& bytes);
  void OnCarrierClosed(const Carrier& carrier, const absl::Status& status);

 private:
  Next OnMessage(const grpc::ByteBuffer& bytes) override;
  void OnClosed(const absl::Status& status) override;

  /// A request that was sent.
  struct Sent {
    std::shared_ptr<DenseCall> call;
    std::vector<std::shared_ptr<Carrier>> carriers;
  };
  /// For one of ClientOptions::streams, but for the first.
  struct Slot {
    std::shared_ptr<Carrier> carrier;
    bool gave_up = false;  ///< it could not be opened
  };

  void OnReply(uint64_t id, const wire::Frame<v1::ComputeReply>& frame);
  void OnChunk(uint64_t id, const wire::ChunkView& chunk, bool carried);
  /// Ends the stream, as nothing that follows can be trusted, and with `status` all its requests.
  void EndForViolation(absl::Status status);
  /// With the lock, so that a request that was ended lends no memory any more.
  void SendLocked(const std::shared_ptr<DenseCall>& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendWaitingLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Those that are open; opens the others.
  std::vector<std::shared_ptr<Carrier>> TakeCarriersLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Streams of the carriers that are open.
  std::vector<std::shared_ptr<Stream>> CarryingLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Sends nothing more of a request's operands.
  void DropArrays(uint64_t id);
  bool closed_locked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return closed_ && open_carriers_ == 0;
  }
  bool WasSent(uint64_t id) const;
  /// Null if nothing is awaited for it.
  std::shared_ptr<DenseCall> Find(uint64_t id) const;
  /// Null once it has ended.
  std::shared_ptr<ComputeChannel> channel() const;
  /// A request that was ended early, which the server has yet to end. Its call waits for that, too,
  /// if it shares memory; others have ended.
  struct Aborted {
    std::shared_ptr<DenseCall> call;
    absl::Status status;
  };
  /// Of a request that the server ended; sends one that waits. Null if it is not over, as carriers
  /// have yet to bring some of its result, or was before; `status` is how it is over.
  std::shared_ptr<DenseCall> TakeEnded(uint64_t id, const v1::End& end, absl::Status* status);
  /// The rest of a result that carriers brought behind its end.
  void Arrived(uint64_t id);
  /// Ends a request that the server should not go on with; nothing if it is not in flight. Until
  /// the server has ended it, too, it takes up one of the places that the server grants.
  void Abort(uint64_t id, absl::Status status);

  Connection& connection_;
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
  std::unordered_map<uint64_t, Sent> in_flight_ ABSL_GUARDED_BY(mutex_);
  /// The server has ended them, and carriers have yet to bring the rest of their results.
  std::unordered_map<uint64_t, Sent> arriving_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Aborted> aborted_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<DenseCall>> waiting_ ABSL_GUARDED_BY(mutex_);
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mutex_);
  size_t open_carriers_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace client
}  // namespace sparsed
