// Worker slots and their queue: which job runs where and when. Knows nothing of matrices.
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
#include "engine/execution/costs.h"
#include "engine/execution/executor.h"
#include "engine/execution/fair_queue.h"
#include "engine/execution/job.h"
#include "engine/execution/tenant_seconds.h"
#include "engine/execution/token.h"
#include "engine/execution/turns.h"
#include "kernels/device_id.h"

namespace sparsed::engine {

/// What a worker slot is doing for a tenant, and until when that was counted.
struct SlotTurn {
  FairQueue::Turn turn;
  std::string_view tenant;
  bool is_long = false;
  bool express = false;
  double counted = 0;         ///< by the device's clock for it
  double kernel_seconds = 0;  ///< of an express one's kernels, since
};

/// Thread-safe. Tenants have equal device seconds, or as their weights say; see FairQueue.
class Scheduler : public std::enable_shared_from_this<Scheduler> {
 public:
  /// The worker slots of all these, which outlive the scheduler.
  Scheduler(const ExecutorOptions& options, const std::vector<Backend*>& backends);
  ~Scheduler();
  void Open();
  /// Ends every job with UNAVAILABLE and joins the threads.
  void Close();

  /// As Executor::RunIdlePieces.
  absl::Status RunIdle(DeviceId device, const std::function<bool(WorkerSlot&)>& piece,
                       const std::atomic<bool>* stop,
                       std::chrono::steady_clock::time_point until = kNever);
  /// Runs `work` on the thread for what blocks on the disk.
  void RunBlocking(std::function<void()> work);
  /// Kernels ran for so long; `turn`: whose, if that is a worker slot's.
  void AddBusy(DeviceId device, uint64_t nanoseconds, SlotTurn* turn = nullptr);
  /// Time of the device that no worker slot had a part in.
  void Charge(DeviceId device, std::string_view tenant, double seconds);
  /// Tenants' parts of every device, from now on.
  void SetWeights(const TenantWeights& weights);
  const std::atomic<bool>* wanted(DeviceId device) const { return &slots_of(device).wanted; }
  Costs& costs(DeviceId device) { return slots_of(device).costs; }

  size_t deadlines() const { return timer_.watched(); }
  const ExecutorOptions& options() const { return options_; }
  int64_t in_flight() const;
  /// Begun to run on that device, and not ended.
  int64_t in_flight(DeviceId device) const { return slots_of(device).begun; }
  /// Jobs and idle work that worker slots of that device run just now.
  int running(DeviceId device) const;
  int64_t queue_depth(DeviceId device) const;
  /// What tenants had of that device, by worker slots' time.
  TenantSeconds tenant_seconds(DeviceId device) const;
  double busy_seconds(DeviceId device) const {
    return static_cast<double>(slots_of(device).busy_ns.load()) * 1e-9;
  }
  SlotWaits slot_waits(DeviceId device) const;

 private:
  friend class Job;
  struct IdleWork {
    const std::function<bool(WorkerSlot&)>* piece;  ///< true: that was the last
    Turns::Time asked;  ///< for it, or for what is left once others wanted the worker slot
    Turns::Time due_since = {};
    /// It goes before calls: no worker slot takes one as long as it is the first.
    bool due = false;
    bool started = false;  ///< a piece of it
    bool done = false;
  };
  /// Jobs that a worker slot runs as one; where nothing can join the first of them, that alone.
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
             job.is_long == jobs.front()->is_long && job.tenant() == jobs.front()->tenant() &&
             job.priority == jobs.front()->priority && width + job.joint_.width <= joint().most;
    }
  };
  /// Of one worker slot's thread, guarded by mutex_.
  struct Worker {
    WorkerSlot slot;  ///< its thread's own
    CondVar work;
    bool sleeps = false;
    bool looks = false;  ///< for the next job, without sleeping
    bool lent = false;   ///< its worker slot, to a thread that runs its own job
    std::thread thread = {};
  };
  /// The worker slots of one device and what waits for them: guarded by mutex_, but for the
  /// backend, the threads and what is atomic.
  ///
  /// Of several worker slots of a GPU the first is for short jobs alone: its kernels go before
  /// those of the others, and long ones never have all worker slots. While a long one runs, the
  /// other slots take no short ones, which would wait for its kernel there.
  struct WorkerSlots {
    Backend* backend = nullptr;
    FairQueue queue;
    std::atomic<int64_t> queued = 0, short_queued = 0;  ///< its size, and short ones of that
    /// Somebody waits for a worker slot: who runs long is to ask whether to give way.
    std::atomic<bool> wanted = false;
    TenantSeconds seconds;
    Costs costs;                     ///< has a lock of its own
    std::atomic<int64_t> begun = 0;  ///< jobs that began with this device and have not ended
    int running = 0;                 ///< jobs and idle work
    std::vector<SlotTurn*> turns;    ///< of jobs that run
    bool used = false;               ///< since Rest looked last
    bool rested = true;              ///< since it was used last
    std::deque<IdleWork*> idle;
    /// Jobs that began with this device and are not submitted yet, by the key of what they may
    /// join.
    std::map<std::string, int64_t> coming;
    std::vector<Batch*> gathering;  ///< whose worker slots wait for more of them
    CondVar gathered;               ///< there is less to wait for
    Turns idle_turns;               ///< of idle work
    bool alone = false;             ///< such a turn is under way that has the device to itself
    Turns::Time alone_since;
    std::optional<WorkerSlot> trial_slot;  ///< of idle work; none: the thread's
    std::atomic<uint64_t> busy_ns{0};
    std::deque<Worker> workers;  ///< an express one first
    /// As SlotWaits.
    std::array<std::atomic<int64_t>, 2> turns_begun{};
    std::array<std::atomic<uint64_t>, 2> waited_ns{};
    std::atomic<uint64_t> waited_for_trials_ns = 0, waited_for_others_ns = 0;
    std::atomic<int64_t> begun_beside = 0;

    double trial_clock = 0;  ///< seconds of idle work, of all worker slots
    int trials = 0;          ///< idle work that runs

    // Seconds of the device that each turn has had since the start. Worker slots of the CPU have
    // threads of their own: each has all of the time. A GPU's share it evenly, but that kernels of
    // the express slot have the GPU for as long as they run, at the cost of those that ran beside
    // them.
    std::chrono::steady_clock::time_point clocks_at;
    double express_clock = 0, clock = 0;

    bool is_gpu() const { return backend->id().kind == DeviceKind::kCuda; }
    bool has_express() const { return !workers.empty() && workers.front().slot.express; }
    bool long_runs() const {
      return std::ranges::any_of(turns, [](const SlotTurn* turn) { return turn->is_long; });
    }
    bool idle_is_due() const { return !idle.empty() && idle.front()->due; }
  };
  /// Of a device that there are worker slots of.
  WorkerSlots& slots_of(DeviceId device) {
    return *std::ranges::find(slots_, device,
                              [](const WorkerSlots& of) { return of.backend->id(); });
  }
  const WorkerSlots& slots_of(DeviceId device) const {
    return const_cast<Scheduler*>(this)->slots_of(device);
  }

  bool Register(const std::shared_ptr<Job>& job);  ///< false: closing
  void Unregister(Job* job);
  /// RESOURCE_EXHAUSTED if the queue is full; DEADLINE_EXCEEDED if it cannot end by its deadline.
  /// `here`: one that may, runs before this returns; see Call::SubmitHere.
  absl::Status Admit(std::shared_ptr<Job> job, std::optional<Turns::Time> deadline, bool here);
  /// One that was admitted comes back.
  void Enqueue(std::shared_ptr<Job> job);
  void EnqueueLocked(WorkerSlots& slots, std::shared_ptr<Job> job)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PushLocked(WorkerSlots& slots, std::shared_ptr<Job> job)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Wakes a worker slot that sleeps and has something to do, if none that is awake will do it.
  void WakeLocked(WorkerSlots& slots) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status MayEndLocked(const WorkerSlots& slots, const Job& job, Turns::Time deadline) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// What waits has changed.
  void CountLocked(WorkerSlots& slots) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    slots.queued = slots.queue.size();
    slots.short_queued = slots.queue.short_ones();
    slots.wanted = !slots.queue.empty() || slots.idle_is_due();
  }
  /// One that was taken out of the queue, before CountWait.
  void EndWaitLocked(WorkerSlots& slots, Job& job) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// What the worker slots have done until now, as that job sees it, which waits or was just taken.
  SlotTime SpentLocked(WorkerSlots& slots, const Job& job) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Moves the clocks on to now.
  void MoveClocksLocked(WorkerSlots& slots) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginTurnLocked(WorkerSlots& slots, SlotTurn& turn) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndTurnLocked(WorkerSlots& slots, SlotTurn& turn) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// The worker slot's time until now is the tenant's.
  void CountTurnLocked(WorkerSlots& slots, SlotTurn& turn) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool GivesWay(Job& job);
  /// Called when a token stopped: ends the job if no worker slot has it.
  void Reap(std::weak_ptr<Job> job);
  /// The next job, and those of its tenant's that wait and can join it. None: there was one that
  /// the express slot might take, and time has changed that.
  Batch PopLocked(WorkerSlots& slots, SlotTurn& turn, const WorkerSlot& slot)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Waits for jobs that can join, up to options().batch_wait, while one is coming, there is room
  /// for it, and nothing else waits for a worker slot.
  void GatherLocked(WorkerSlots& slots, const WorkerSlot& slot, Batch& batch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// It is submitted, or never will be.
  void ComesNoMoreLocked(Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// There is a job that this worker slot may take now.
  bool MayRunLocked(WorkerSlots& slots, const WorkerSlot& slot) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// The turns of long ones that run, with what they have had until now.
  std::vector<const FairQueue::Turn*> LongTurnsLocked(WorkerSlots& slots) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Trials on the GPU run alone: what else runs there would be in their times. Of several worker
  /// slots the express one stays free.
  bool MayIdleLocked(const WorkerSlots& slots, const WorkerSlot& slot) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !slots.idle.empty() && !slot.express && (!slots.is_gpu() || slots.running == 0);
  }
  void RunSlot(Worker& worker, WorkerSlots& slots);
  void SleepLocked(Worker& worker, WorkerSlots& slots) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// It is to look for the next job before it sleeps: that often follows at once, and to be woken
  /// for it takes as long as a small kernel.
  bool LooksLocked(const Worker& worker, const WorkerSlots& slots) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// What a worker slot runs at a time.
  struct Run {
    Batch batch;
    std::string tenant;  ///< of the turn; the jobs may be gone when its time is counted last
    SlotTurn turn;
  };
  /// Pops what the worker slot is to run. False: there is nothing after all.
  bool BeginRunLocked(WorkerSlots& slots, const WorkerSlot& slot, Run& run)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndRunLocked(WorkerSlots& slots, Run& run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// A worker slot of a GPU whose thread has nothing to do, and which may run the next job. Null:
  /// none.
  Worker* FindIdleLocked(WorkerSlots& slots) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Takes the first idle work, which then is run without the lock.
  IdleWork& BeginIdleLocked(WorkerSlots& slots) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndIdleLocked(WorkerSlots& slots, IdleWork& idle, bool done, Turns::Time end)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// As one, if that can be; else, and where that comes to nothing, its jobs one by one.
  void RunBatch(WorkerSlots& slots, WorkerSlot& slot, Run& run);
  /// Of one whose wait has ended: into its timings.
  CallTimings CountWait(Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(job.mutex_);
  /// False if no worker slot is to run it now: it has ended meanwhile, or its data is read first.
  bool BeginRun(const std::shared_ptr<Job>& job);
  /// Leaves those in `jobs` that have not ended.
  void RunTogether(std::vector<std::shared_ptr<Job>>& jobs, WorkerSlot& slot);
  void RunJob(const std::shared_ptr<Job>& job, WorkerSlot& slot, SlotTurn& turn);
  /// A worker slot has done a step of it; `end`: how it ended, if it did.
  void EndStep(const std::shared_ptr<Job>& job, Job::Next next, absl::Status end);
  void EndJob(Job& job, absl::Status end);
  void RunReaper();
  /// Called now and then: the worker slots had nothing to do since the last call but one, for the
  /// first time since they had.
  bool BeginRestLocked(WorkerSlots& slots) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunBlockingThread();

  const ExecutorOptions options_;

  mutable Mutex mutex_;
  CondVar idle_done_, reaper_work_, blocking_work_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  /// Worker slots are gone: nothing stops any more.
  bool reaper_closing_ ABSL_GUARDED_BY(mutex_) = false;
  /// Begun and not ended.
  std::unordered_map<Job*, std::weak_ptr<Job>> jobs_ ABSL_GUARDED_BY(mutex_);
  std::deque<WorkerSlots> slots_;  ///< of each backend
  std::deque<std::weak_ptr<Job>> stopped_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::function<void()>> blocking_ ABSL_GUARDED_BY(mutex_);
  std::thread reaper_, blocking_thread_;
  DeadlineTimer timer_;  ///< last: its thread wakes the reaper until it is joined
};

}  // namespace sparsed::engine
