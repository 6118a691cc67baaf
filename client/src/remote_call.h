// What every call has: attempts, a deadline, cancellation, memory lent to the transport, one end.
#pragma once

#include <grpcpp/alarm.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "client/src/connection.h"
#include "client/src/shard_work.h"
#include "sparsed/call.h"
#include "sparsed/client.h"

namespace sparsed {
inline namespace client {

/// Keeps itself from Start() until its result is delivered. Thread-safe.
class RemoteCall : public std::enable_shared_from_this<RemoteCall> {
 public:
  virtual ~RemoteCall() = default;

  /// Begins the first attempt.
  void Start();
  /// Ends the call soon, with `reason` unless it was faster. No further attempts.
  void Cancel(absl::Status reason);
  /// If the call ends because its matrix is in shards, `instead` goes on, with the call's status,
  /// and nothing is delivered. Set before Start().
  void InsteadInShards(std::function<void(const absl::Status&)> instead) {
    instead_ = std::move(instead);
  }

 protected:
  enum class Repeat {
    kSafe,
    kUntilSent,  // the server does nothing before the sending side is closed
    kIfRefused,  // what a quota refused was not begun; of what else failed nobody knows
    kNever
  };

  RemoteCall(Connection& connection, const CallOptions& options, Repeat repeat);

  /// Each attempt ends with one AttemptEnded().
  virtual void StartAttempt() = 0;
  /// Ends the attempt under way soon, if there is one.
  virtual void StopAttempt() = 0;
  /// Whether another node of a cluster may answer in the place of one that does not.
  virtual bool AnyNode() const { return true; }
  /// Memory is still lent a while after the end: break whatever holds it.
  virtual void BreakTransport() {}
  /// The server has not said that it ended the attempt, long after it was asked to.
  virtual void EndOverdue() {}
  /// Hands the result out: the last thing that happens to the call.
  virtual void Deliver(absl::Status status) = 0;

  /// From here on another attempt would do harm.
  void MustNotRepeat();
  /// The server may have everything that it needs to act.
  void SendingClosed();
  /// The attempts so far do not count any more.
  void MadeProgress();
  /// Decides between another attempt and the end.
  void AttemptEnded(absl::Status status);
  /// Starts an attempt, unless the call was stopped meanwhile; in the place of AttemptEnded, if the
  /// call takes one exchange more.
  void RunAttempt();
  /// The call is not delivered while copies of a lease exist.
  std::shared_ptr<void> Lease();
  std::chrono::system_clock::time_point deadline() const { return deadline_; }
  bool has_deadline() const { return deadline_ != std::chrono::system_clock::time_point::max(); }
  /// The attempt is over but for the server's word that it is: sees to EndOverdue().
  void AwaitEnd();
  /// Cancels the call at its deadline; for calls whose stream has none.
  void EnforceDeadline();
  /// That of the attempt: a redirect, or a node that does not answer, makes it another.
  Connection& connection() const { return *connection_; }

 private:
  using Alarm = std::unique_ptr<grpc::Alarm>;
  /// Sets `alarm` to run `action` unless the call is gone before.
  void RunAt(std::chrono::system_clock::time_point time, Alarm RemoteCall::*alarm,
             void (RemoteCall::*action)());
  void NextAttempt();
  /// The attempt, if there was one, is over; `sent`: the server may have got something of it.
  void Ended(absl::Status status, bool sent);
  /// Goes on at the first of these that answers. The caller took a lease when it set `waiting_`,
  /// which ends here: who cancels meanwhile may let go of the connection once the call is
  /// delivered.
  void GoTo(std::vector<std::string> addresses);
  void WentTo(absl::StatusOr<Connection*> there);
  void DeadlinePassed();
  void LeaseEnded();
  void LeasesOverdue();
  bool ReadyToDeliverLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return ended_ && leases_ == 0;
  }
  void DeliverOnce();

  std::function<void(const absl::Status&)> instead_;
  std::atomic<Connection*> connection_;  ///< changes between attempts
  const std::chrono::system_clock::time_point deadline_;

  Mutex mutex_;
  Repeat repeat_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<RemoteCall> self_ ABSL_GUARDED_BY(mutex_);
  Alarm alarm_ ABSL_GUARDED_BY(mutex_);  // the next attempt, or what is overdue
  Alarm deadline_alarm_ ABSL_GUARDED_BY(mutex_);
  int attempts_ ABSL_GUARDED_BY(mutex_) = 0;
  int redirects_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string asked_ ABSL_GUARDED_BY(mutex_);  ///< the node that was tried last, by its address
  bool elsewhere_ ABSL_GUARDED_BY(mutex_) = false;  ///< the next attempt is at another node
  /// Since when no node answers; none: one has.
  std::optional<std::chrono::system_clock::time_point> lost_ ABSL_GUARDED_BY(mutex_);
  bool waiting_ ABSL_GUARDED_BY(mutex_) = false;  // between two attempts
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  int leases_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<absl::Status> stopped_ ABSL_GUARDED_BY(mutex_);
  absl::Status final_ ABSL_GUARDED_BY(mutex_);
};

/// What goes on in the place of a call whose matrix is in shards. Without `work`: nothing does.
template <typename T>
struct InShards {
  std::shared_ptr<ShardWork> work;
  /// With the status that the call ended with.
  std::function<Result<T>(ShardWork&, const absl::Status&)> run;
};

/// Runs it on a thread of its own.
template <typename T>
void Start(const InShards<T>& in_shards, const std::shared_ptr<CallState<T>>& state,
           const absl::Status& status) {
  in_shards.work->Start(
      [run = in_shards.run, state, status](ShardWork& work) {
        Result<T> result = run(work, status);
        return std::function<void()>(
            [state, result = std::move(result)]() mutable { state->Complete(std::move(result)); });
      },
      [state](absl::Status failed) { state->Complete(std::move(failed)); });
}

/// Starts `call`, which completes `state`.
template <typename T>
Call<T> Launch(std::shared_ptr<Connection> connection, const std::shared_ptr<RemoteCall>& call,
               std::shared_ptr<CallState<T>> state, InShards<T> in_shards = {}) {
  const std::shared_ptr<ShardWork> work = in_shards.work;
  if (work != nullptr) {
    call->InsteadInShards([in_shards = std::move(in_shards), state](const absl::Status& status) {
      client::Start(in_shards, state, status);
    });
  }
  call->Start();
  return Call<T>(std::move(state), [connection = std::move(connection),
                                    weak = std::weak_ptr<RemoteCall>(call), work] {
    if (work != nullptr) work->Cancel();
    if (const auto call = weak.lock()) {
      call->Cancel(absl::CancelledError("the caller cancelled the call"));
    }
  });
}

/// A call that failed before it began.
template <typename T>
Call<T> Refused(absl::Status status) {
  auto state = std::make_shared<CallState<T>>();
  state->Complete(std::move(status));
  return Call<T>(std::move(state), [] {});
}

}  // namespace client
}  // namespace sparsed
