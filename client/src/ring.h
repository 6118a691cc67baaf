// A ring to a server on this machine (OpenRing of proto/sparsed/v1/local.proto): requests whose
// operands and results the server finds by itself, without gRPC.
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "client/src/compute_channel.h"
#include "client/src/local_socket.h"
#include "client/src/shared_memory.h"
#include "client/src/stream.h"
#include "proto/wire/ring.h"

namespace sparsed {
inline namespace client {

class ComputeSession;
class Connection;
class DenseCall;

/// It has no thread: whoever waits for a call reads the replies of all. Thread-safe. Belongs to the
/// process that opened it.
class Ring final : public ComputeChannel {
 public:
  using Clock = std::chrono::steady_clock;

  /// Asks for it over `socket`, and waits. Errors as of OpenRing, or of LocalSocket::Ask.
  static absl::StatusOr<std::shared_ptr<Ring>> Open(std::shared_ptr<LocalSocket> socket,
                                                    std::chrono::microseconds spin);
  ~Ring() override;

  /// Before anything else: who gets the replies, for as long as the ring has not ended.
  void Start(std::shared_ptr<Stream::Handler> session);
  /// The largest message, and requests at once.
  size_t message_bytes() const { return ring_.size().message_bytes(); }
  size_t slots() const { return ring_.size().slots; }
  bool ended() const { return ended_; }
  /// Whether server and ring are still there; what else was in flight has ended if not.
  bool Usable();

  void Send(wire::RingMessage what, grpc::ByteBuffer message,
            std::shared_ptr<OutgoingArrays> arrays) override;
  void DropArrays(uint64_t /*request_id*/) override {}
  void Cancel() override;

  /// Hands what came to the session.
  void Read();
  /// Reads until `done`, or `end` (none: no end), or the ring's end.
  void ReadUntil(std::optional<Clock::time_point> end, const std::function<bool()>& done);
  /// A call that somebody may wait for has ended by other means than a reply.
  void Wake();

 private:
  Ring(std::shared_ptr<LocalSocket> socket, std::unique_ptr<SharedBlock> block, wire::RingSize size,
       std::chrono::microseconds spin);

  bool OfThisProcess() const { return getpid() == process_; }
  void PutWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mutex_);
  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(read_mutex_);

  const int process_ = getpid();
  const std::chrono::microseconds spin_;
  const std::shared_ptr<LocalSocket> socket_;
  const std::unique_ptr<SharedBlock> block_;
  wire::RingMemory ring_;

  // Taken after the reading side's and the session's locks.
  Mutex send_mutex_;
  wire::RingProducer requests_ ABSL_GUARDED_BY(send_mutex_);
  /// For which there was no room.
  std::deque<std::pair<wire::RingMessage, grpc::ByteBuffer>> waiting_ ABSL_GUARDED_BY(send_mutex_);

  Mutex read_mutex_;  ///< held while the session gets what came
  std::shared_ptr<Stream::Handler> session_ ABSL_GUARDED_BY(read_mutex_);
  wire::RingConsumer replies_;  ///< guarded by read_mutex_, but for Ready()
  std::atomic<std::thread::id> reader_{};
  std::atomic<bool> cancelled_ = false, ended_ = false;
};

/// Opens the ring on first use, and again after it ended. Thread-safe.
class ComputeRing {
 public:
  explicit ComputeRing(Connection& connection) : connection_(connection) {}
  ComputeRing(const ComputeRing&) = delete;
  ComputeRing& operator=(const ComputeRing&) = delete;
  ~ComputeRing();

  /// Sends an attempt of `call` through the ring. False, and nothing is done, if it does not fit,
  /// or there is no ring. May block: who comes first opens it, and others do without.
  bool Submit(const std::shared_ptr<DenseCall>& call);

 private:
  struct Opened {
    std::shared_ptr<Ring> ring;
    std::shared_ptr<ComputeSession> session;
  };
  Opened Current();

  Connection& connection_;
  Mutex mutex_;
  Opened opened_ ABSL_GUARDED_BY(mutex_);
  bool opening_ ABSL_GUARDED_BY(mutex_) = false;
  Ring::Clock::time_point not_before_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace client
}  // namespace sparsed
