// A stream of Compute requests: many at once, whatever carries their messages.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "server/rpc/carrier.h"
#include "server/rpc/compute_message.h"
#include "server/rpc/compute_request.h"
#include "server/rpc/live_streams.h"
#include "server/rpc/service.h"
#include "server/security/caller.h"

namespace sparsed::server {

/// What carries the messages of a stream: gRPC, or a ring. The stream calls it from any thread.
class ComputeTransport {
 public:
  virtual ~ComputeTransport() = default;
  /// Asks for the next message, or the end of them: ComputeStream::OnMessage or OnReadsDone comes,
  /// but not in here, where the stream's lock is held.
  virtual void Read() = 0;
  /// Sends `*message`, which stays until ComputeStream::OnWritten comes; `more` follow at once.
  /// True: it is gone already, and OnWritten does not come.
  virtual bool Write(const grpc::ByteBuffer* message, bool more) = 0;
  /// The stream's last call: nothing is being read, written or in flight.
  virtual void Finish(const absl::Status& status) = 0;
  /// The client takes nothing: what is being written is dropped. Finish has yet to come.
  virtual void Cancel(const absl::Status& status) = 0;
  virtual bool IsCancelled() const = 0;
  /// Whether it is a ring, which carries no arrays.
  virtual bool is_ring() const = 0;
  /// Within OnMessage: its thread has nothing to do but to wait for the end of the request.
  virtual bool idle() const = 0;
};

/// Messages come on one thread at a time; worker slots bring results on theirs; one write is
/// outstanding. Requests with something to send take turns, a message each. The stream is finished
/// only when no call can reach it any more, so requests refer to it without counting. Its carriers
/// bring chunks on threads of their own, write whatever chunk is next when they are ready, and may
/// keep it for a while after its end.
class ComputeStream final : public LiveStream, public std::enable_shared_from_this<ComputeStream> {
 public:
  /// `transport` stays until OnDone.
  ComputeStream(const ServiceContext& service, const Caller& caller,
                std::shared_ptr<ConnectionShare> share, ComputeTransport& transport);

  /// Begins to use the transport.
  void Begin();
  /// The transport is gone, after its Finish.
  void OnDone();

  /// What was asked for with Read: a request's message, of `op` (kSpmm, kSddmm, kSpgemm, kChain).
  /// Whether it began a request, which has an end.
  bool OnMessage(Op op, grpc::ByteBuffer bytes);
  /// Likewise: the transport's messages are at their end, or `why` none can follow, which ends the
  /// stream with it.
  void OnReadsDone(const absl::Status& why = absl::OkStatus());
  void OnWritten(bool ok);
  /// The client is gone.
  void OnCancel();
  void OnRefused(const absl::Status& why) override;
  void OnDrain() override;
  void OnTick(const Patience& patience) override;
  void Count(InFlightTable& table) override;

  /// For requests: `add` queues a reply, under the lock.
  template <typename Add>
  void Queue(ComputeRequest& request, const Add& add) {
    Todo todo;
    bool carried = false;
    {
      const MutexLock lock(mutex_);
      if (abandoned_) return;
      const bool waits = request.has_queued();
      carried = !request.carriers.empty();
      add();
      if (!waits && request.has_queued()) sending_.push_back(requests_.at(request.id()));
      if (!request.refused.ok() && !request.failed) Stop(request, request.refused, todo);
      Proceed(todo);
    }
    // A worker slot that filled several connections would be slower than these.
    if (carried && (todo.write || !todo.carried.empty())) {
      DoElsewhere(std::move(todo));
    } else {
      Do(std::move(todo));
    }
  }
  /// For requests: their call has ended.
  void QueueEnd(ComputeRequest& request, engine::CallEnd end);

  // For its carriers.

  /// False if the chunk's request is not there: the carrier keeps it, and is resumed. An error ends
  /// the carrier; what is wrong with the chunk ends its request.
  absl::StatusOr<bool> ReceiveFrom(Carrier& carrier, wire::ChunkView chunk);
  /// What it had to write is written.
  void CarrierReady(const Carrier& carrier);
  /// Requests that use it fail. OK: its client closed it.
  void CarrierEnded(const Carrier& carrier, const absl::Status& why);

 private:
  /// The end of one that nothing is left to do for.
  void QueueLastly(ComputeRequest& request, engine::CallEnd end);

  /// Found to do under the lock, done without it.
  struct Todo {
    std::vector<std::pair<std::shared_ptr<engine::Call>, absl::Status>> stop;
    std::vector<StageRecord> ended;
    std::shared_ptr<engine::Call> credit_of;
    int64_t credit = 0;
    bool read = false;
    bool write = false;
    bool more_follow = false;  ///< what follows at once may share a packet with it
    std::vector<std::pair<std::shared_ptr<Carrier>, grpc::ByteBuffer>> carried;
    std::vector<std::pair<std::shared_ptr<Carrier>, absl::Status>> end_carriers;
    std::optional<absl::Status> finish;
    /// Whose `write` or `finish` it is, which then is not gone before; null: neither is to do.
    ComputeStream* stream = nullptr;
    Telemetry* telemetry = nullptr;  ///< of `ended`
  };

  /// A carrier of this stream.
  struct Joined {
    std::shared_ptr<Carrier> carrier;
    bool writing = false;
    std::shared_ptr<ComputeRequest> of;  ///< whose chunk it writes; null: its name
  };

  absl::Status Handle(Op op, ComputeMessage message);
  /// A message: the next one is read.
  void Handled(const absl::Status& status);
  void Open(Op op, ComputeStart start);
  /// On the thread that opened a request which waited for other nodes: goes on with what came for
  /// it meanwhile.
  void TakeEarly(const std::shared_ptr<ComputeRequest>& request);
  /// `here`: this thread has nothing else to do.
  void BeginAdmitted(ComputeSpec& spec, const std::shared_ptr<ComputeRequest>& request, bool here);
  void RefuseAdmitted(const std::shared_ptr<ComputeRequest>& request, const absl::Status& status);
  /// A redirect if another node serves it. May wait for other nodes (WaitsForNodes); `waited` for a
  /// thread that may.
  absl::StatusOr<std::shared_ptr<engine::Call>> BeginCall(
      ComputeSpec& spec, const std::shared_ptr<ComputeRequest>& request, bool waited);
  /// Carriers with chunks of requests that were not there look again.
  void ResumeCarriers();
  /// `by`: a carrier, which gets the chunk back, with `*kept`, if its request is not there; null:
  /// this stream itself. A request that waits for other nodes keeps chunks of the stream.
  absl::Status Receive(wire::ChunkView& chunk, Carrier* by, bool* kept);
  void Cancel(const ComputeCancel& cancel);

  /// It goes to the engine, or there are too many of the tenant's.
  absl::Status MarkSubmitted(ComputeRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StopSilent(const Patience& patience, Todo& todo) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndLate(Patience::Clock::time_point now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Admit(const ComputeStart& start, ComputeRequest& request, Todo& todo)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Join(const std::vector<std::string>& carriers, ComputeRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Whether a chunk came before its request's call.
  bool IsWaiting(const wire::ChunkView& chunk) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Likewise, or before its request.
  bool IsEarly(const wire::ChunkView& chunk) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool FailedRecently(uint64_t id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<Joined>::iterator Find(const Carrier& carrier) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Refuse(const std::shared_ptr<ComputeRequest>& request, absl::Status status, Todo& todo)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RememberFailed(uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// False if it was refused, and so was never among the requests in flight.
  bool Forget(const ComputeRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Stop(ComputeRequest& request, absl::Status status, Todo& todo)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Abandon(absl::Status status, Todo& todo) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool TakeWrite(Todo& todo) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Gives a chunk to each carrier that is ready.
  void TakeCarried(Todo& todo) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndCarriers(const absl::Status& status, Todo& todo) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<absl::Status> TakeFinish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  /// Takes the next write, or the stream's end, if it is time, and begins to read if that is to do:
  /// the last thing under the lock, before Do().
  void Proceed(Todo& todo) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Does what is to do. Unless that is to write or to finish, the stream may be gone already.
  static void Do(Todo todo);
  /// Likewise, on a thread of gRPC's. Where it writes, the stream is not finished before; chunks
  /// for carriers that have ended meanwhile are dropped.
  void DoElsewhere(Todo todo) ABSL_LOCKS_EXCLUDED(mutex_);

  const ServiceContext& service_;
  ComputeTransport& transport_;
  const std::string tenant_ = caller()->tenant;
  engine::Tenant& account_;
  const size_t max_requests_;
  const std::shared_ptr<ConnectionShare> share_;

  Mutex mutex_;  ///< also guards the requests
  /// Whose end was not sent yet.
  std::map<uint64_t, std::shared_ptr<ComputeRequest>> requests_ ABSL_GUARDED_BY(mutex_);
  /// With queued replies, in turn.
  std::deque<std::shared_ptr<ComputeRequest>> sending_ ABSL_GUARDED_BY(mutex_);
  std::vector<Joined> carriers_ ABSL_GUARDED_BY(mutex_);
  /// Those that may keep a chunk of a request that was not there.
  std::vector<std::shared_ptr<Carrier>> waiting_ ABSL_GUARDED_BY(mutex_);
  /// Their chunks may still be on the way.
  std::deque<uint64_t> recently_failed_ ABSL_GUARDED_BY(mutex_);
  /// In `sending_` but not in `requests_`.
  size_t refused_ ABSL_GUARDED_BY(mutex_) = 0;
  bool reads_done_ ABSL_GUARDED_BY(mutex_) = false;
  /// A message, or none was asked for yet: the stream is not finished.
  bool handling_ ABSL_GUARDED_BY(mutex_) = true;
  Patience::Clock::time_point read_began_ ABSL_GUARDED_BY(mutex_);
  bool read_paused_ ABSL_GUARDED_BY(mutex_) = false;  ///< until the client takes its refusals
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  /// Nothing more is sent: the stream failed or is gone.
  bool abandoned_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);  ///< of the stream

  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  Patience::Clock::time_point write_began_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;  ///< by us: its client took nothing
  /// What `out_` gives back when it is written.
  std::shared_ptr<engine::Call> credit_of_ ABSL_GUARDED_BY(mutex_);
  int64_t credit_ ABSL_GUARDED_BY(mutex_) = 0;
  grpc::ByteBuffer out_;  ///< while `writing_`, of who writes
};

}  // namespace sparsed::server
