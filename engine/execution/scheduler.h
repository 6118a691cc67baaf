// Lanes and their queue: which job runs where and when. Knows nothing of matrices.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "engine/execution/backend.h"
#include "engine/execution/call.h"
#include "engine/execution/executor.h"
#include "engine/execution/token.h"
#include "engine/execution/turns.h"
#include "kernels/device_id.h"

namespace sparsed::engine {

class Scheduler;

uint64_t NanosecondsSince(std::chrono::steady_clock::time_point begin);

/// What lets a job run together with others.
struct Joint {
  std::string key;    ///< jobs of one tenant and equal keys may run as one; empty: it runs alone
  int64_t width = 0;  ///< its part of such a run
  int64_t most = 0;   ///< the width of all of it; equal keys have the same
};

/// What every call has in common: its state, its token, its end. A job is run in steps; between two
/// steps others may run.
class Job : public Call, public std::enable_shared_from_this<Job> {
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

  void Submit() final;
  void Cancel() final;
  void Fail(absl::Status status) final;
  void Release(int64_t bytes) final;

 protected:
  /// One step, on a lane. Not called again after kEnded or kLeft.
  virtual Next Run(Lane& lane, absl::Status* end) = 0;
  /// Told of a job, by its place in the batch, that ended.
  using Ended = std::function<void(size_t job, absl::Status end)>;
  /// As what it may join others; asked once, by Start.
  virtual Joint JoinsAs() const { return {}; }
  /// Runs a batch of jobs whose keys are its own, itself the first of them, as one, in their only
  /// step. Those that it does not tell `ended` of, having sent nothing for them, run each by itself
  /// afterwards. `stop` becomes true when nobody wants any of them any more.
  virtual void RunTogether(Lane& /*lane*/, std::span<Job* const> /*batch*/,
                           const std::atomic<bool>* /*stop*/, const Ended& /*ended*/) {}
  /// Lets go of whatever it holds; called once, before OnEnd.
  virtual void Drop() = 0;
  /// What reads from the disk before it can run; null if all is in memory. Run once, elsewhere than
  /// on a lane, holding nothing of the job: it may end meanwhile.
  virtual Loader ToLoad() const { return nullptr; }
  /// Nobody feeds it any more.
  bool submitted() ABSL_LOCKS_EXCLUDED(mutex_);
  /// The device whose lanes take it.
  DeviceId device() const { return device_; }
  /// Before Start, or in Run before kAgain: that device's lanes take it.
  void MoveTo(DeviceId device) {
    device_ = device;
    loaded_ = false;  // It may need other things there.
  }

  ResultSink& sink() { return *sink_; }
  const std::string& tenant() const { return tenant_; }
  const Token& token() const { return *token_; }
  Scheduler& scheduler() { return *scheduler_; }
  /// Counts block bytes handed to the sink; true if the credit is used up.
  bool Charge(int64_t bytes);
  /// Ends it. For kLeft; jobs on lanes return kEnded instead.
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

  /// What ToLoad asked for is in memory, or failed to get there.
  void Loaded(Held held);
  void AddSetup() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::shared_ptr<Scheduler> scheduler_;
  const std::string tenant_;
  std::shared_ptr<ResultSink> sink_;
  std::shared_ptr<Token> token_;
  std::atomic<int64_t> unreleased_{0};
  DeviceId begun_on_;    ///< known at the start
  DeviceId device_;      ///< changed by who runs it, looked at by who queues it or takes it out
  bool loaded_ = false;  ///< only who runs it looks at it
  Joint joint_;          ///< known at the start; without a key once a batch left it to itself
  bool coming_ = false;  ///< it may join others, once it is submitted; guarded by the scheduler's
  Mutex mutex_;          ///< taken before the scheduler's
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

/// Thread-safe. Tenants take turns; within a tenant, first come first served.
class Scheduler : public std::enable_shared_from_this<Scheduler> {
 public:
  /// The lanes of all these, which outlive the scheduler.
  Scheduler(const ExecutorOptions& options, const std::vector<Backend*>& backends);
  ~Scheduler();
  void Open();
  /// Ends every job with UNAVAILABLE and joins the threads.
  void Close();

  absl::Status RunIdle(DeviceId device, const std::function<void(Lane&)>& work,
                       const std::atomic<bool>* stop,
                       std::chrono::steady_clock::time_point until = kNever);
  /// Runs `work` on the thread for what blocks on the disk.
  void RunBlocking(std::function<void()> work);
  void AddBusy(DeviceId device, uint64_t nanoseconds) { lanes_of(device).busy_ns += nanoseconds; }

  size_t deadlines() const { return timer_.watched(); }
  const ExecutorOptions& options() const { return options_; }
  int64_t in_flight() const;
  /// Begun to run on that device, and not ended.
  int64_t in_flight(DeviceId device) const { return lanes_of(device).begun; }
  int64_t queue_depth(DeviceId device) const;
  double busy_seconds(DeviceId device) const {
    return static_cast<double>(lanes_of(device).busy_ns.load()) * 1e-9;
  }

 private:
  friend class Job;
  struct IdleWork {
    const std::function<void(Lane&)>* work;
    Turns::Time due_since = {};
    bool due = false;  ///< it goes before calls: no lane takes one as long as it is the first
    bool started = false;
    bool done = false;
  };
  /// Jobs that a lane runs as one; where nothing can join the first of them, that alone.
  struct Batch {
    std::vector<std::shared_ptr<Job>> jobs;
    int64_t width = 0;

    void Add(std::shared_ptr<Job> job) {
      width += job->joint_.width;
      jobs.push_back(std::move(job));
    }
    const Joint& joint() const { return jobs.front()->joint_; }
    bool Takes(const Job& job) const {
      return !joint().key.empty() && job.joint_.key == joint().key &&
             job.tenant() == jobs.front()->tenant() && width + job.joint_.width <= joint().most;
    }
  };
  /// The lanes of one device and what waits for them: guarded by mutex_, but for the backend, the
  /// threads and what is atomic.
  struct Lanes {
    Backend* backend = nullptr;
    std::map<std::string, std::deque<std::shared_ptr<Job>>> queues;  ///< by tenant; none is empty
    std::string last_tenant;                                         ///< whose turn was last
    std::atomic<int64_t> queued = 0;
    std::atomic<int64_t> begun = 0;  ///< jobs that began with this device and have not ended
    int running = 0;                 ///< jobs and idle work
    int looking = 0;                 ///< lanes that look for the next job without sleeping
    bool used = false;               ///< since Rest looked last
    bool rested = true;              ///< since it was used last
    std::deque<IdleWork*> idle;
    /// Jobs that began with this device and are not submitted yet, by the key of what they may
    /// join.
    std::map<std::string, int64_t> coming;
    std::vector<Batch*> gathering;  ///< whose lanes wait for more of them
    CondVar gathered;               ///< there is less to wait for
    Turns turns;                    ///< of idle work
    bool alone = false;             ///< such a turn is under way that has the device to itself
    CondVar work;
    std::atomic<uint64_t> busy_ns{0};
    std::vector<std::thread> threads;

    bool is_gpu() const { return backend->id().kind == DeviceKind::kCuda; }
  };
  /// Of a device that there are lanes of.
  Lanes& lanes_of(DeviceId device) {
    return *std::ranges::find(lanes_, device, [](const Lanes& of) { return of.backend->id(); });
  }
  const Lanes& lanes_of(DeviceId device) const {
    return const_cast<Scheduler*>(this)->lanes_of(device);
  }

  bool Register(const std::shared_ptr<Job>& job);  ///< false: closing
  void Unregister(Job* job);
  /// False if the queue is full. `resumed` jobs are always taken.
  bool Enqueue(std::shared_ptr<Job> job, bool resumed);
  /// Called when a token stopped: ends the job if no lane has it.
  void Reap(std::weak_ptr<Job> job);
  /// The next job, and those of its tenant's that wait and can join it.
  Batch PopLocked(Lanes& lanes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Waits for jobs that can join, up to options().batch_wait, while one is coming, there is room
  /// for it, and nothing else waits for a lane.
  void GatherLocked(Lanes& lanes, Batch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// It is submitted, or never will be.
  void ComesNoMoreLocked(Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MayRunLocked(const Lanes& lanes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const bool stands_back = lanes.alone || (!lanes.idle.empty() && lanes.idle.front()->due);
    return lanes.queued > 0 && !stands_back;
  }
  /// Trials on the GPU run alone: what else runs there would be in their times.
  bool MayIdleLocked(const Lanes& lanes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !lanes.idle.empty() && (!lanes.is_gpu() || lanes.running == 0);
  }
  void RunLane(Lane& lane, Lanes& lanes);
  /// Takes the first idle work, which then is run without the lock.
  IdleWork& BeginIdleLocked(Lanes& lanes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndIdleLocked(Lanes& lanes, IdleWork& idle, Turns::Time end)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// As one, if that can be; else, and where that comes to nothing, its jobs one by one.
  void RunBatch(Batch batch, Lane& lane);
  /// False if no lane is to run it now: it has ended meanwhile, or its data is read first.
  bool BeginRun(const std::shared_ptr<Job>& job);
  /// Leaves those in `jobs` that have not ended.
  void RunTogether(std::vector<std::shared_ptr<Job>>& jobs, Lane& lane);
  void RunJob(const std::shared_ptr<Job>& job, Lane& lane);
  /// A lane has done a step of it; `end`: how it ended, if it did.
  void EndStep(const std::shared_ptr<Job>& job, Job::Next next, absl::Status end);
  void EndJob(Job& job, absl::Status end);
  void RunReaper();
  /// Called now and then: the lanes had nothing to do since the last call but one, for the first
  /// time since they had.
  bool BeginRestLocked(Lanes& lanes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunBlockingThread();

  const ExecutorOptions options_;

  mutable Mutex mutex_;
  CondVar idle_done_, reaper_work_, blocking_work_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  /// Lanes are gone: nothing stops any more.
  bool reaper_closing_ ABSL_GUARDED_BY(mutex_) = false;
  /// Begun and not ended.
  std::unordered_map<Job*, std::weak_ptr<Job>> jobs_ ABSL_GUARDED_BY(mutex_);
  std::deque<Lanes> lanes_;  ///< of each backend
  std::deque<std::weak_ptr<Job>> stopped_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::function<void()>> blocking_ ABSL_GUARDED_BY(mutex_);
  std::thread reaper_, blocking_thread_;
  DeadlineTimer timer_;  ///< last: its thread wakes the reaper until it is joined
};

}  // namespace sparsed::engine
