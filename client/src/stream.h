// One gRPC stream of byte buffers: a queue of messages and arrays out, messages in.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/client_callback.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "client/src/compute_channel.h"
#include "client/src/shared_memory.h"
#include "client/src/strided_bytes.h"
#include "client/src/trace_headers.h"

namespace sparsed {
inline namespace client {

/// An array that leaves in chunks, straight from the caller's memory.
struct OutgoingArray {
  uint32_t array = 0;
  StridedBytes bytes;
  /// Where the server finds them by itself; none: they are sent.
  std::optional<SharedMemory::Place> shared;
  /// Copied into every chunk; the memory is free when the last copy is gone.
  std::shared_ptr<void> lease;

  /// For an attempt, counted from 0. After the first it is sent whatever comes: another run of the
  /// server knows no memory that was shared with an earlier one.
  OutgoingArray ForAttempt(int attempt, std::shared_ptr<void> lent) const {
    OutgoingArray array = *this;
    array.lease = std::move(lent);
    // Only the server reads a GPU's.
    if (attempt > 0 && array.shared && !array.shared->block->on_gpu()) array.shared.reset();
    return array;
  }
};

/// A request's arrays, chunk by chunk, for one stream or several that share them out. Thread-safe.
class OutgoingArrays {
 public:
  /// Of an array, bytes [offset, offset + size).
  struct Chunk {
    OutgoingArray array;
    size_t offset = 0;
    size_t size = 0;
  };

  /// `shared_out`: several streams send them.
  OutgoingArrays(uint64_t request_id, std::vector<OutgoingArray> arrays, bool shared_out = false);
  uint64_t request_id() const { return request_id_; }
  bool shared_out() const { return shared_out_; }
  bool empty() const;
  /// The next, of at most `chunk_bytes`; none if all are taken.
  std::optional<Chunk> Next(size_t chunk_bytes);

 private:
  const uint64_t request_id_;
  const bool shared_out_;
  mutable Mutex mutex_;
  std::deque<OutgoingArray> arrays_ ABSL_GUARDED_BY(mutex_);
  size_t taken_ ABSL_GUARDED_BY(mutex_) = 0;  ///< of the front array
};

/// A reactor of its own lifetime: it keeps itself until the call is over. Thread-safe; no method
/// blocks. Works for every kind of method, as all look alike on the wire.
class Stream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                     public ComputeChannel,
                     public std::enable_shared_from_this<Stream> {
 public:
  /// Called on gRPC's threads.
  class Handler {
   public:
    virtual ~Handler() = default;
    enum class Next { kRead, kPause };
    /// A message came. One at a time; after kPause none until Resume().
    virtual Next OnMessage(const grpc::ByteBuffer& bytes) = 0;
    /// A chunk of that many bytes of array data was handed to the transport.
    virtual void OnSent(size_t /*bytes*/) {}
    /// By which the server's log knows the call; before OnClosed, if it says so.
    virtual void OnRequestId(const std::string& /*id*/) {}
    /// The last call.
    virtual void OnClosed(const absl::Status& status) = 0;
  };

  /// `deadline` in gRPC's terms; chunks carry at most `chunk_bytes` of data.
  static std::shared_ptr<Stream> Create(grpc::GenericStub& stub, const std::string& method,
                                        std::chrono::system_clock::time_point deadline,
                                        size_t chunk_bytes, std::shared_ptr<Handler> handler,
                                        const std::string& token, const TraceHeaders& trace = {});

  void Start();
  /// Queues a message, and arrays behind it whose chunks bear `request_id`. Arrays of different
  /// requests take turns; messages overtake arrays. False if the stream is closed.
  bool Send(grpc::ByteBuffer message, uint64_t request_id = 0,
            std::vector<OutgoingArray> arrays = {});
  bool Send(grpc::ByteBuffer message, std::shared_ptr<OutgoingArrays> arrays);
  void Send(wire::RingMessage /*what*/, grpc::ByteBuffer message,
            std::shared_ptr<OutgoingArrays> arrays) override {
    Send(std::move(message), std::move(arrays));
  }
  bool SendArrays(uint64_t request_id, std::vector<OutgoingArray> arrays);
  /// Those that another stream sends, too.
  bool SendArrays(std::shared_ptr<OutgoingArrays> arrays);
  /// Forgets what is left of a request's arrays.
  void DropArrays(uint64_t request_id) override;
  /// Half-closes once everything queued is sent.
  void CloseSending();
  /// Whether the server may know that everything was sent.
  bool sending_closed() const;
  /// Reads on after Next::kPause.
  void Resume();
  /// Ends the call; OnClosed comes with CANCELLED or with how it ended otherwise.
  void Cancel() override;

 private:
  Stream(size_t chunk_bytes, std::shared_ptr<Handler> handler)
      : chunk_bytes_(chunk_bytes), handler_(std::move(handler)) {}

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  void WriteNextLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// False if none is left.
  bool TakeChunkLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t chunk_bytes_;
  std::shared_ptr<Handler> handler_;
  std::shared_ptr<Stream> self_;  // from Create until OnDone, so Start must follow
  grpc::ClientContext context_;
  grpc::ByteBuffer incoming_;

  mutable Mutex mutex_;
  bool open_ ABSL_GUARDED_BY(mutex_) = true;
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;
  bool resume_asked_ ABSL_GUARDED_BY(mutex_) = false;  // while a message was being handled
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool close_sending_ ABSL_GUARDED_BY(mutex_) = false;
  bool sending_closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<grpc::ByteBuffer> messages_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<OutgoingArrays>> arrays_ ABSL_GUARDED_BY(mutex_);
  grpc::ByteBuffer outgoing_ ABSL_GUARDED_BY(mutex_);
  size_t outgoing_data_ ABSL_GUARDED_BY(mutex_) = 0;
};

/// The same code, the same sentence.
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace client
}  // namespace sparsed
