// An SpMM, SDDMM or chain: operands out of, and results into, the caller's memory.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/coverage.h"
#include "base/mutex.h"
#include "client/src/remote_call.h"
#include "client/src/shared_memory.h"
#include "client/src/stream.h"
#include "client/src/strided_bytes.h"
#include "proto/wire/chunk_codec.h"
#include "sparsed/v1/compute.pb.h"

namespace sparsed {
inline namespace client {

class ComputeSession;
class Ring;

/// What a dense request sends and where its result goes.
struct DenseRequest {
  /// The message that opens it, for an id, the nanoseconds that are left (0: no limit), a priority,
  /// the names of its carriers and the trace that it belongs to.
  std::function<grpc::ByteBuffer(uint64_t id, uint64_t timeout_ns, uint32_t priority,
                                 const std::vector<std::string>& carriers,
                                 const TraceHeaders& trace)>
      encode_start;
  /// Operands in the caller's memory, by array index.
  std::vector<StridedBytes> operands;
  /// A result that goes to the caller's memory.
  struct Result {
    StridedBytes bytes;
    ValueType type = ValueType::kF32;
  };
  std::vector<Result> results;
  /// What the result's shape must be; -1 if only the number of its elements counts (SDDMM, chains).
  int64_t result_rows = -1;
  int64_t result_cols = -1;
  /// What it reads or writes in shared memory: kept for as long as the server may use it.
  std::vector<SharedMemory::Place> shared;
  /// Whether sending it twice does no harm.
  bool repeatable = false;
  /// For a ring: what the message is, and no fewer bytes than it or its reply take.
  wire::RingMessage message = wire::RingMessage::kSpmm;
  size_t message_bytes = 0;

  bool carries_arrays() const { return !operands.empty() || !results.empty(); }
  /// How its arrays travel if it goes through no ring.
  Transport transport() const;
};

class DenseCall final : public RemoteCall {
 public:
  /// `streamed` is the same without shared memory, for attempts after one that lost it; where there
  /// is none, they take `request`, too.
  /// `stream`: which of a connection's.
  DenseCall(Connection& connection, ComputeStream& (Connection::*stream)(),
            const CallOptions& options, DenseRequest request, std::optional<DenseRequest> streamed,
            std::shared_ptr<CallState<ComputeResult>> state)
      : RemoteCall(connection, options, request.repeatable ? Repeat::kSafe : Repeat::kNever),
        first_connection_(&connection),
        stream_of_(stream),
        priority_(connection.PriorityOf(options)),
        trace_(TraceOf(options)),
        first_(std::move(request)),
        streamed_(std::move(streamed)),
        state_(std::move(state)) {}

  /// For who waits for it, until `end` at the longest (none: no end): reads the ring, if an attempt
  /// went through one; else looks for its end for as long as who waits is to spin.
  void Await(std::optional<std::chrono::steady_clock::time_point> end);

  // The session's side.

  /// The attempt goes through a ring; null: it does not.
  void Through(std::shared_ptr<Ring> ring);
  wire::RingMessage message() const { return request().message; }
  size_t message_bytes() const { return request().message_bytes + trace_.message_bytes(); }

  /// The attempt is on `session` now.
  void Joined(std::shared_ptr<ComputeSession> session, uint64_t id);
  uint64_t id() const;
  /// Whether an operand or a result is so large that carriers help.
  bool large() const;
  /// `carriers`: the names of those that bring chunks of its result, too.
  grpc::ByteBuffer EncodeStart(uint64_t id, const std::vector<std::string>& carriers);
  std::vector<OutgoingArray> LendOperands();
  /// Whether the server may use the caller's memory until it has ended the attempt.
  bool shares_memory() const { return !request().shared.empty(); }
  /// The attempt was aborted; its AttemptOver() waits for the server's end.
  void Aborted() { AwaitEnd(); }
  /// AttemptOver() without the server's end, once its memory is the caller's.
  void EndLost(absl::Status status);
  /// Errors are the server's fault and end the call. Nothing is written after AttemptOver().
  absl::Status OnBegin(const v1::Begin& begin);
  /// True: with it everything is here, and the end came before; AttemptOver is to follow.
  absl::StatusOr<bool> OnChunk(const wire::ChunkView& chunk, bool carried);
  /// How the attempt is over; none if carriers have yet to bring some of its result.
  std::optional<absl::Status> OnEnd(const v1::End& end);
  /// Once for each attempt.
  void AttemptOver(absl::Status status);

 private:
  void StartAttempt() override;
  void StopAttempt() override;
  void BreakTransport() override;
  void EndOverdue() override;
  void Deliver(absl::Status status) override;

  std::shared_ptr<ComputeSession> session() const;
  std::shared_ptr<Ring> ring() const;
  /// The attempt's.
  const DenseRequest& request() const { return *request_.load(); }

  ComputeStream& stream() const { return (connection().*stream_of_)(); }

  const Connection* const first_connection_;
  ComputeStream& (Connection::*const stream_of_)();
  const uint32_t priority_;
  const TraceHeaders trace_;
  const DenseRequest first_;
  const std::optional<DenseRequest> streamed_;
  std::atomic<const DenseRequest*> request_ = &first_;
  std::atomic<bool> memory_lost_ = false;  ///< the next attempt sends what it shared
  bool first_attempt_ = true;
  const std::shared_ptr<CallState<ComputeResult>> state_;
  std::atomic<bool> delivered_ = false;

  bool CompleteLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::shared_ptr<ComputeSession> session_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Ring> ring_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> on_ring_ = false;  ///< there is a ring_
  uint64_t id_ ABSL_GUARDED_BY(mutex_) = 0;
  bool receiving_ ABSL_GUARDED_BY(mutex_) = false;
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  bool carried_ ABSL_GUARDED_BY(mutex_) = false;  ///< has carriers
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;    ///< well, by the server
  int copying_ ABSL_GUARDED_BY(mutex_) = 0;       ///< threads that write to the caller's memory
  /// The attempt is over when the last of them is done.
  std::optional<absl::Status> over_ ABSL_GUARDED_BY(mutex_);
  std::vector<Coverage> received_ ABSL_GUARDED_BY(mutex_);  ///< of each result
  ComputeResult result_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace client
}  // namespace sparsed
