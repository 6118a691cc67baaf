// A call as the scheduler sees it: its state, its token, its steps and its one end.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "engine/execution/backend.h"
#include "engine/execution/call.h"
#include "engine/execution/fair_queue.h"
#include "engine/execution/token.h"
#include "kernels/device_id.h"

namespace sparsed::engine {

class Scheduler;
struct SlotTurn;

uint64_t NanosecondsSince(std::chrono::steady_clock::time_point begin);

/// Seconds that a device has given until `at`, as one who waits for its worker slots sees it: one
/// second each second while all of them are busy.
struct SlotTime {
  std::chrono::steady_clock::time_point at;
  double trials = 0;  ///< to autotuning, and other work that can wait
  double own = 0;     ///< to its tenant's jobs
  double others = 0;  ///< to other tenants'
};

/// Nanoseconds of a wait.
struct WaitedBehind {
  uint64_t trials = 0, others = 0;
};
/// By what they gave meanwhile. The rest is behind its tenant's own jobs, or a wait for processors.
WaitedBehind Between(const SlotTime& before, const SlotTime& after);

/// What lets a job run together with others.
struct Joint {
  std::string key;    ///< jobs of one tenant and equal keys may run as one; empty: it runs alone
  int64_t width = 0;  ///< its part of such a run
  int64_t most = 0;   ///< the width of all of it; equal keys have the same
};

/// What every call has in common: its state, its token, its end. A job is run in steps; between two
/// steps others may run.
class Job : public Call, public FairEntry, public std::enable_shared_from_this<Job> {
 public:
  /// Keeps what was read from being evicted before the job uses it.
  using Held = std::vector<std::shared_ptr<const void>>;
  /// Reads from the disk; ends soon when the flag becomes true.
  using Loader = std::function<Held(const std::atomic<bool>* stop)>;
  enum class Next {
    kEnded,   ///< with `*end`
    kAgain,   ///< another step, after whoever waits
    kPaused,  ///< until Release brings its unreleased bytes below the credit
    kLeft,    ///< another thread goes on with it and calls Finish
  };

  Job(std::shared_ptr<Scheduler> scheduler, std::string tenant, std::shared_ptr<ResultSink> sink,
      DeviceId device);
  /// Second half of the construction: enters the register, starts the deadline. UNAVAILABLE, and no
  /// OnEnd, if the scheduler is closing.
  absl::Status Start(uint64_t timeout_ns);

  void Submit() final { Submit(/*here=*/false); }
  void SubmitHere() final { Submit(/*here=*/true); }
  void Cancel() final;
  void Fail(absl::Status status) final;
  void Release(int64_t bytes) final;

 protected:
  /// One step, on a worker slot. Not called again after kEnded or kLeft.
  virtual Next Run(WorkerSlot& slot, absl::Status* end) = 0;
  /// Told of a job, by its place in the batch, that ended.
  using Ended = std::function<void(size_t job, absl::Status end)>;
  /// As what it may join others; asked once, by Start.
  virtual Joint JoinsAs() const { return {}; }
  /// Runs a batch of jobs whose keys are its own, itself the first of them, as one, in their only
  /// step. Those that it does not tell `ended` of, having sent nothing for them, run each by itself
  /// afterwards. `stop` becomes true when nobody wants any of them any more.
  virtual void RunTogether(WorkerSlot& /*slot*/, std::span<Job* const> /*batch*/,
                           const std::atomic<bool>* /*stop*/, const Ended& /*ended*/) {}
  /// Lets go of whatever it holds; called once, before OnEnd.
  virtual void Drop() = 0;
  /// What reads from the disk before it can run; null if all is in memory. Run once, elsewhere than
  /// on a worker slot, holding nothing of the job: it may end meanwhile.
  virtual Loader ToLoad() const { return nullptr; }
  /// Nobody feeds it any more.
  bool submitted() ABSL_LOCKS_EXCLUDED(mutex_);
  /// What its next step, and all that are left, will take there; asked by Start, and after each
  /// step.
  struct Cost {
    double next_seconds = 0;  ///< 0: who knows
    double rest_seconds = 0;  ///< from measurements; 0: there are none
    bool is_long = false;     ///< it takes many steps
  };
  virtual Cost Predict() const { return {}; }
  /// Of one that is not long: nothing of it is long, so that its caller's thread may wait for it.
  virtual bool IsOneStep() const { return false; }
  /// Within a step: the time so far is its tenant's, and whoever waits may be to go before it. If
  /// so it had better return kAgain.
  bool GivesWay();
  /// True while it is worth asking.
  const std::atomic<bool>* wanted() const;
  /// Within a step: its kernels ran for so long.
  void AddBusy(uint64_t nanoseconds);
  /// The device whose worker slots take it.
  DeviceId device() const { return device_; }
  /// Before Start, or in Run before kAgain: that device's worker slots take it.
  void MoveTo(DeviceId device) {
    device_ = device;
    loaded_ = false;  // It may need other things there.
  }

  ResultSink& sink() { return *sink_; }
  const std::string& tenant() const { return tenant_name; }
  const Token& token() const { return *token_; }
  Scheduler& scheduler() const { return *scheduler_; }
  /// Counts block bytes handed to the sink; true if the credit is used up.
  bool Charge(int64_t bytes);
  /// Ends it. For kLeft; jobs on worker slots return kEnded instead.
  void Finish(absl::Status status);

  CallEnd end_;  ///< timings, nnz, version; status, queue_ns and setup_ns are set here

 private:
  friend class Scheduler;
  enum class State { kReceiving, kQueued, kLoading, kRunning, kPaused, kLeft, kEnded };

  /// Jobs that are being run as one.
  struct Together {
    std::vector<std::shared_ptr<Token>> tokens;
    std::atomic<bool> stop = false;

    /// One of them was stopped: so is the run with the last of them.
    void Look() {
      if (std::ranges::all_of(tokens, [](const auto& token) { return token->stopped(); })) {
        stop = true;
      }
    }
  };

  void Submit(bool here);
  /// What ToLoad asked for is in memory, or failed to get there.
  void Loaded(Held held);
  void AddSetup() ABSL_LOCKS_EXCLUDED(mutex_);
  /// By who begins it, or runs it.
  void TakePrediction();

  const std::shared_ptr<Scheduler> scheduler_;
  std::shared_ptr<ResultSink> sink_;
  std::shared_ptr<Token> token_;
  std::atomic<int64_t> unreleased_{0};
  DeviceId begun_on_;    ///< known at the start
  DeviceId device_;      ///< changed by who runs it, looked at by who queues it or takes it out
  bool loaded_ = false;  ///< only who runs it looks at it
  SlotTurn* turn_ = nullptr;  ///< of the worker slot that runs it, or did
  Joint joint_;               ///< known at the start; without a key once a batch left it to itself
  bool coming_ = false;  ///< it may join others, once it is submitted; guarded by the scheduler's
  /// When it was queued last, and of that wait once it was taken out of the queue; guarded by the
  /// scheduler's until then.
  SlotTime queued_at_;
  WaitedBehind behind_;
  Mutex mutex_;  ///< taken before the scheduler's
  State state_ ABSL_GUARDED_BY(mutex_) = State::kReceiving;
  Held held_ ABSL_GUARDED_BY(mutex_);  ///< from when it was loaded until it ends
  std::shared_ptr<Together> together_ ABSL_GUARDED_BY(mutex_);  ///< null: it is not in a batch
  std::optional<DeadlineTimer::Ticket> deadline_ ABSL_GUARDED_BY(mutex_);
  using Time = std::chrono::steady_clock::time_point;
  Time submitted_ ABSL_GUARDED_BY(mutex_);
  Time queued_ ABSL_GUARDED_BY(mutex_);  ///< last
  Time paused_ ABSL_GUARDED_BY(mutex_);  ///< set while it is
  std::chrono::nanoseconds pauses_ ABSL_GUARDED_BY(mutex_){};
};

}  // namespace sparsed::engine
