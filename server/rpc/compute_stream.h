// The reactor of Compute.Spmm, Sddmm and Spgemm: many requests on one stream.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/rpc/compute_message.h"
#include "server/rpc/compute_request.h"
#include "server/rpc/live_streams.h"
#include "server/rpc/reactors.h"

namespace sparsed::server {

/// gRPC reads on one thread at a time; lanes bring results on theirs; one write is outstanding.
/// Requests with something to send take turns, a message each. The stream is finished only when no
/// call can reach it any more, so requests refer to it without counting.
class ComputeStream final : public BytesBidiReactor, public LiveStream {
 public:
  ComputeStream(Op op, const ServiceContext& service, grpc::CallbackServerContext* context);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  void OnDrain() override;
  void OnTick(const Patience& patience) override;
  void Count(InFlightTable& table) override;

  /// For requests: `add` queues a reply, under the lock.
  template <typename Add>
  void Queue(ComputeRequest& request, const Add& add) {
    std::unique_lock lock(mutex_);
    if (abandoned_) return;
    const bool waits = request.has_queued();
    add();
    if (!waits && request.has_queued()) sending_.push_back(requests_.at(request.id()));
    Todo todo;
    if (!request.refused.ok() && !request.failed) Stop(request, request.refused, todo);
    Proceed(lock, std::move(todo));
  }
  /// For requests: their call has ended.
  void QueueEnd(ComputeRequest& request, engine::CallEnd end);

 private:
  /// Found to do under the lock, done without it.
  struct Todo {
    std::vector<std::pair<std::shared_ptr<engine::Call>, absl::Status>> stop;
    std::vector<StageRecord> ended;
    std::shared_ptr<engine::Call> credit_of;
    int64_t credit = 0;
    bool read = false;
  };

  void OnReadsDone();
  absl::Status Handle(ComputeMessage message);
  void Start(ComputeStart start);
  absl::Status Receive(const wire::ChunkView& chunk);
  void Cancel(const ComputeCancel& cancel);
  void Submit(ComputeRequest& request, engine::Call& call);

  // With the lock held.
  void StopSilent(const Patience& patience, Todo& todo);
  void EndLate(Patience::Clock::time_point now);
  absl::Status Admit(const ComputeStart& start, Todo& todo);
  void Refuse(const std::shared_ptr<ComputeRequest>& request, absl::Status status, Todo& todo);
  void RememberFailed(uint64_t id);
  /// False if it was refused, and so was never among the requests in flight.
  bool Forget(const ComputeRequest& request);
  void Stop(ComputeRequest& request, absl::Status status, Todo& todo);
  void Abandon(absl::Status status, Todo& todo);
  bool TakeWrite(Todo& todo);
  std::optional<absl::Status> TakeFinish();

  /// Writes or finishes if it is time, and does what is to do. Releases the lock; `this` may be
  /// gone afterwards.
  void Proceed(std::unique_lock<std::mutex>& lock, Todo todo);

  const Op op_;
  const ServiceContext& service_;
  grpc::CallbackServerContext& context_;
  const std::string tenant_;
  const size_t max_requests_;
  const std::shared_ptr<ConnectionShare> share_;
  grpc::ByteBuffer in_;

  std::mutex mutex_;  ///< guards what follows, and the requests
  std::map<uint64_t, std::shared_ptr<ComputeRequest>> requests_;  ///< whose end was not sent yet
  std::deque<std::shared_ptr<ComputeRequest>> sending_;           ///< with queued replies, in turn
  std::deque<uint64_t> recently_failed_;  ///< their chunks may still be on the way
  size_t refused_ = 0;                    ///< in `sending_` but not in `requests_`
  bool reads_done_ = false;
  bool handling_ = true;  ///< a message, or none was asked for yet: the stream is not finished
  Patience::Clock::time_point read_began_;
  bool read_paused_ = false;  ///< until the client takes its refusals
  bool draining_ = false;
  bool abandoned_ = false;  ///< nothing more is sent: the stream failed or is gone
  bool finished_ = false;
  absl::Status status_;  ///< of the stream

  bool writing_ = false;
  Patience::Clock::time_point write_began_;
  bool cancelled_ = false;  ///< by us: its client took nothing
  grpc::ByteBuffer out_;
  grpc::WriteOptions out_options_;
  std::shared_ptr<engine::Call> credit_of_;  ///< what `out_` gives back when it is written
  int64_t credit_ = 0;
};

}  // namespace sparsed::server
