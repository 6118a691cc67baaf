#include "engine/execution/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/retry.h"

namespace sparsed::engine {
namespace {

/// After as long without a call, or twice as long, memory of the GPU that was kept for the next one
/// is given back.
constexpr auto kRest = std::chrono::seconds(2);
/// For which a GPU's worker slot looks for the next job before it sleeps: a small request there and
/// back over a slow host's sockets. One that slept would make the next answer late, and sleep
/// before that.
constexpr auto kLook = std::chrono::microseconds(400);
/// For which a trial's turn has the GPU to itself though short jobs wait: then these go beside it.
constexpr auto kAlone = std::chrono::milliseconds(1);
/// After which the express slot looks again whether those that wait may begin beside long ones.
constexpr auto kLookAgain = std::chrono::microseconds(500);
/// After which who waits for a worker slot looks whether it is to stop.
constexpr auto kBetweenLooks = std::chrono::milliseconds(50);
/// Waiting jobs among which others are looked for that can join the one before them: a queue may
/// have thousands, and nobody else gets at it meanwhile.
constexpr size_t kMostLookedAt = 256;
/// Of what was predicted: a request whose deadline is earlier than that is not begun.
constexpr double kSurely = 0.7;

}  // namespace

uint64_t NanosecondsSince(std::chrono::steady_clock::time_point begin) {
  return static_cast<uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count());
}

Scheduler::Scheduler(const ExecutorOptions& options, const std::vector<Backend*>& backends)
    : options_(options) {
  for (Backend* const backend : backends) slots_.emplace_back().backend = backend;
}

Scheduler::~Scheduler() = default;

void Scheduler::Open() {
  for (WorkerSlots& slots : slots_) {
    slots.trial_slot = slots.backend->TrialSlot();
    for (WorkerSlot& slot : slots.backend->NewWorkerSlots()) {
      slots.workers.emplace_back().slot = std::move(slot);
    }
  }
  for (WorkerSlots& slots : slots_) {
    for (Worker& worker : slots.workers) {
      worker.thread = std::thread([this, &slots, &worker] {
        slots.backend->OnThread([&] {
          RunSlot(worker, slots);
          worker.slot.workspace = Buffer();
        });
      });
    }
  }
  reaper_ = std::thread([this] { RunReaper(); });
  blocking_thread_ = std::thread([this] { RunBlockingThread(); });
}

void Scheduler::Close() {
  std::vector<std::shared_ptr<Job>> jobs;
  {
    const MutexLock lock(mutex_);
    if (closing_) return;
    closing_ = true;
    for (const auto& [unused, job] : jobs_) {
      if (auto alive = job.lock()) jobs.push_back(std::move(alive));
    }
  }
  for (const auto& job : jobs) {
    job->token_->Stop(absl::UnavailableError("the server is shutting down"));
  }
  for (WorkerSlots& slots : slots_) {
    for (Worker& worker : slots.workers) worker.work.NotifyAll();
    slots.gathered.NotifyAll();
  }
  blocking_work_.NotifyAll();
  for (WorkerSlots& slots : slots_) {
    for (Worker& worker : slots.workers) worker.thread.join();
    slots.trial_slot.reset();
  }
  blocking_thread_.join();
  {
    const MutexLock lock(mutex_);
    reaper_closing_ = true;
  }
  reaper_work_.NotifyAll();
  reaper_.join();
  idle_done_.NotifyAll();
  for (const auto& job : jobs) job->Finish(absl::UnavailableError("the server is shutting down"));
}

int64_t Scheduler::in_flight() const {
  const MutexLock lock(mutex_);
  return static_cast<int64_t>(jobs_.size());
}

int Scheduler::running(DeviceId device) const {
  const MutexLock lock(mutex_);
  return slots_of(device).running;
}

int64_t Scheduler::queue_depth(DeviceId device) const {
  const MutexLock lock(mutex_);
  return slots_of(device).queued;
}

bool Scheduler::Register(const std::shared_ptr<Job>& job) {
  const MutexLock lock(mutex_);
  if (closing_) return false;
  jobs_.emplace(job.get(), job);
  WorkerSlots& slots = slots_of(job->begun_on_);
  ++slots.begun;
  if (!job->joint_.key.empty()) {
    job->coming_ = true;
    ++slots.coming[job->joint_.key];
  }
  return true;
}

void Scheduler::Unregister(Job* job) {
  const MutexLock lock(mutex_);
  ComesNoMoreLocked(*job);
  if (jobs_.erase(job) > 0) --slots_of(job->begun_on_).begun;
}

void Scheduler::ComesNoMoreLocked(Job& job) {
  if (!std::exchange(job.coming_, false)) return;
  WorkerSlots& slots = slots_of(job.begun_on_);
  const auto coming = slots.coming.find(job.joint_.key);
  if (--coming->second == 0) slots.coming.erase(coming);
  if (!slots.gathering.empty()) slots.gathered.NotifyAll();
}

absl::Status Scheduler::Admit(std::shared_ptr<Job> job, std::optional<Turns::Time> deadline,
                              bool here) {
  WorkerSlots& slots = slots_of(job->device());
  MutexLock lock(mutex_);
  ComesNoMoreLocked(*job);
  if (slots.queued >= options_.max_queued) {
    return RetryLater(absl::ResourceExhaustedError("the queue is full; retry later"));
  }
  if (deadline.has_value()) {
    if (absl::Status status = MayEndLocked(slots, *job, *deadline); !status.ok()) return status;
  }
  // What waits for others to join it waits elsewhere.
  const bool next = slots.queue.empty() && slots.gathering.empty() && job->joint_.key.empty();
  if (!here || !next || job->is_long || !job->IsOneStep()) {
    EnqueueLocked(slots, std::move(job));
    return absl::OkStatus();
  }
  PushLocked(slots, std::move(job));
  Worker* const worker = FindIdleLocked(slots);
  Run run;
  if (worker == nullptr || !BeginRunLocked(slots, worker->slot, run)) {
    CountLocked(slots);
    WakeLocked(slots);
    return absl::OkStatus();
  }
  worker->lent = true;
  lock.Unlock();
  slots.backend->OnThread([&] { RunBatch(slots, worker->slot, run); });
  lock.Lock();
  worker->lent = false;
  EndRunLocked(slots, run);
  if (closing_) worker->work.NotifyAll();  // its thread waits for its worker slot
  return absl::OkStatus();
}

Scheduler::Worker* Scheduler::FindIdleLocked(WorkerSlots& slots) {
  // On the CPU a worker slot's threads are those of the thread that it is.
  if (closing_ || !slots.is_gpu()) return nullptr;
  for (Worker& worker : slots.workers) {
    const bool idle = (worker.sleeps || worker.looks) && !worker.lent;
    if (idle && MayRunLocked(slots, worker.slot)) return &worker;
  }
  return nullptr;
}

absl::Status Scheduler::MayEndLocked(const WorkerSlots& slots, const Job& job,
                                     Turns::Time deadline) const {
  // On an idle device it harms nobody, and is measured.
  if (slots.queue.empty() && slots.running == 0) return absl::OkStatus();
  const double left =
      std::chrono::duration<double>(deadline - std::chrono::steady_clock::now()).count();
  // Long ones have all worker slots but the express one.
  const auto workers = static_cast<int>(std::ssize(slots.workers));
  const double needs =
      slots.queue.SecondsUntilEnd(job, job.is_long && slots.has_express() ? workers - 1 : workers);
  if (kSurely * needs <= left) return absl::OkStatus();
  return absl::DeadlineExceededError(fmt::format(
      "it would end in {:.2g} s, {:.2g} s of them its own, and its deadline is in {:.2g} s; send "
      "it with more time, or with fewer before it",
      needs, job.rest_seconds, std::max(left, 0.0)));
}

void Scheduler::Enqueue(std::shared_ptr<Job> job) {
  WorkerSlots& slots = slots_of(job->device());
  const MutexLock lock(mutex_);
  EnqueueLocked(slots, std::move(job));
}

void Scheduler::EnqueueLocked(WorkerSlots& slots, std::shared_ptr<Job> job) {
  if (!slots.gathering.empty()) {
    slots.gathered.NotifyAll();
    const auto batch = std::ranges::find_if(
        slots.gathering, [&](const Batch* gathers) { return gathers->Takes(*job); });
    if (batch != slots.gathering.end()) {
      (*batch)->Add(std::move(job));
      return;
    }
  }
  PushLocked(slots, std::move(job));
  CountLocked(slots);
  WakeLocked(slots);
}

void Scheduler::PushLocked(WorkerSlots& slots, std::shared_ptr<Job> job) {
  Job& queued = *job;
  slots.queue.Push(std::move(job));
  queued.queued_at_ = SpentLocked(slots, queued);
}

void Scheduler::WakeLocked(WorkerSlots& slots) {
  for (Worker& worker : slots.workers) {
    if (worker.lent || (!worker.sleeps && !worker.looks)) continue;
    const bool runs = MayIdleLocked(slots, worker.slot) || MayRunLocked(slots, worker.slot);
    // The express slot looks now and then, while there is somebody whom it will take.
    if (worker.sleeps && (runs || (worker.slot.express && slots.short_queued > 0))) {
      worker.sleeps = false;
      worker.work.NotifyOne();
    }
    if (runs) return;  // who looks sees it
  }
}

bool Scheduler::MayRunLocked(WorkerSlots& slots, const WorkerSlot& slot) const {
  if (slots.queue.empty()) return false;
  const bool stands_back = slots.alone || slots.idle_is_due();
  if (!slots.has_express()) return !stands_back;
  const bool long_runs = slots.long_runs();
  // Beside a long one, short ones have the express slot.
  if (!slot.express) return !stands_back && (!long_runs || slots.queue.HasLong());
  // Short ones would stand back in vain from a trial that waits for the end of a long one.
  if (slots.idle_is_due() && !slots.alone && !long_runs) return false;
  if (slots.alone && std::chrono::steady_clock::now() < slots.alone_since + kAlone) return false;
  return slots.queue.NextShort(LongTurnsLocked(slots), slots.alone) != nullptr;
}

std::vector<const FairQueue::Turn*> Scheduler::LongTurnsLocked(WorkerSlots& slots) const {
  std::vector<const FairQueue::Turn*> turns;
  for (SlotTurn* const turn : slots.turns) {
    if (!turn->is_long) continue;
    CountTurnLocked(slots, *turn);
    turns.push_back(&turn->turn);
  }
  return turns;
}

void Scheduler::Reap(std::weak_ptr<Job> job) {
  {
    const MutexLock lock(mutex_);
    stopped_.push_back(std::move(job));
  }
  reaper_work_.NotifyOne();
}

Scheduler::Batch Scheduler::PopLocked(WorkerSlots& slots, SlotTurn& turn, const WorkerSlot& slot) {
  Batch batch;
  std::shared_ptr<FairEntry> first;
  if (slot.express) {
    first = slots.queue.PopShort(turn.turn, LongTurnsLocked(slots), slots.alone);
    if (first == nullptr) return batch;
  } else {
    const bool long_ones = slots.has_express() && slots.long_runs();
    first = long_ones ? slots.queue.PopLong(turn.turn) : slots.queue.Pop(turn.turn);
  }
  turn.is_long = first->is_long;
  turn.express = slot.express;
  if (!turn.is_long && slots.long_runs()) ++slots.begun_beside;
  batch.Add(std::static_pointer_cast<Job>(std::move(first)));
  if (!batch.joint().key.empty()) {
    int64_t width = batch.width;
    const auto joins = [&](const FairEntry& entry) {
      const Joint& joint = static_cast<const Job&>(entry).joint_;
      if (joint.key != batch.joint().key || width + joint.width > batch.joint().most) return false;
      width += joint.width;
      return true;
    };
    for (auto& entry : slots.queue.PopWith(turn.turn, kMostLookedAt, joins)) {
      batch.Add(std::static_pointer_cast<Job>(std::move(entry)));
    }
  }
  CountLocked(slots);
  return batch;
}

void Scheduler::EndWaitLocked(WorkerSlots& slots, Job& job) const {
  job.behind_ = Between(job.queued_at_, SpentLocked(slots, job));
}

SlotTime Scheduler::SpentLocked(WorkerSlots& slots, const Job& job) const {
  MoveClocksLocked(slots);
  double all = slots.queue.had(), own = slots.queue.HadBy(job);
  for (const SlotTurn* const turn : slots.turns) {
    const double clock = turn->express ? slots.express_clock : slots.clock;
    const double since = std::max(0.0, clock - turn->counted);
    all += since;
    if (turn->tenant == job.tenant()) own += since;
  }
  // Of the GPU each turn has a share by the clocks already.
  const double each = slots.is_gpu() ? 1 : 1.0 / static_cast<double>(slots.workers.size());
  return {.at = slots.clocks_at,
          .trials = each * slots.trial_clock,
          .own = each * own,
          .others = each * (all - own)};
}

void Scheduler::MoveClocksLocked(WorkerSlots& slots) const {
  const auto now = std::chrono::steady_clock::now();
  const double seconds =
      std::chrono::duration<double>(now - std::exchange(slots.clocks_at, now)).count();
  slots.trial_clock += seconds * slots.trials;
  if (slots.turns.empty()) return;
  if (!slots.is_gpu()) {
    slots.clock += seconds;
    return;
  }
  const double each = seconds / static_cast<double>(slots.turns.size());
  slots.express_clock += each;
  slots.clock += each;
}

void Scheduler::CountTurnLocked(WorkerSlots& slots, SlotTurn& turn) const {
  MoveClocksLocked(slots);
  const double clock = turn.express ? slots.express_clock : slots.clock;
  double seconds = clock - std::exchange(turn.counted, clock);
  const double more = std::exchange(turn.kernel_seconds, 0) - seconds;
  if (more > 0 && slots.turns.size() > 1) {
    seconds += more;
    // That they did not have: those beside it were counted when it was taken, and have had an even
    // part since. One that came since has had less, and one that ended keeps its part.
    const double of_each = more / static_cast<double>(slots.turns.size() - 1);
    for (SlotTurn* const other : slots.turns) {
      if (other != &turn) other->counted += std::min(of_each, slots.clock - other->counted);
    }
  }
  slots.queue.Ran(turn.turn, seconds);
  slots.seconds.Add(turn.tenant, seconds);
}

void Scheduler::BeginTurnLocked(WorkerSlots& slots, SlotTurn& turn) {
  MoveClocksLocked(slots);
  turn.counted = turn.express ? slots.express_clock : slots.clock;
  slots.turns.push_back(&turn);
}

void Scheduler::EndTurnLocked(WorkerSlots& slots, SlotTurn& turn) {
  CountTurnLocked(slots, turn);
  std::erase(slots.turns, &turn);
  slots.queue.End(turn.turn);
}

void Scheduler::AddBusy(DeviceId device, uint64_t nanoseconds, SlotTurn* turn) {
  slots_of(device).busy_ns += nanoseconds;
  if (turn != nullptr && turn->express) {
    turn->kernel_seconds += 1e-9 * static_cast<double>(nanoseconds);
  }
}

SlotWaits Scheduler::slot_waits(DeviceId device) const {
  const WorkerSlots& slots = slots_of(device);
  SlotWaits waits;
  for (size_t i = 0; i < waits.turns.size(); ++i) {
    waits.turns[i] = slots.turns_begun[i];
    waits.seconds[i] = 1e-9 * static_cast<double>(slots.waited_ns[i].load());
  }
  waits.for_trials = 1e-9 * static_cast<double>(slots.waited_for_trials_ns.load());
  waits.for_others = 1e-9 * static_cast<double>(slots.waited_for_others_ns.load());
  waits.beside = slots.begun_beside;
  return waits;
}

bool Scheduler::GivesWay(Job& job) {
  WorkerSlots& slots = slots_of(job.device());
  const MutexLock lock(mutex_);
  CountTurnLocked(slots, *job.turn_);
  return closing_ || slots.idle_is_due() || slots.queue.Passes(job.turn_->turn);
}

void Scheduler::Charge(DeviceId device, std::string_view tenant, double seconds) {
  WorkerSlots& slots = slots_of(device);
  const MutexLock lock(mutex_);
  slots.queue.Charge(tenant, seconds);
  slots.seconds.Add(tenant, seconds);
  WakeLocked(slots);
}

void Scheduler::SetWeights(const TenantWeights& weights) {
  const MutexLock lock(mutex_);
  for (WorkerSlots& slots : slots_) {
    slots.queue.SetWeights(weights);
    WakeLocked(slots);
  }
}

TenantSeconds Scheduler::tenant_seconds(DeviceId device) const {
  const MutexLock lock(mutex_);
  return slots_of(device).seconds;
}

void Scheduler::GatherLocked(WorkerSlots& slots, const WorkerSlot& slot, Batch& batch) {
  const std::string& key = batch.joint().key;
  if (key.empty()) return;
  const auto until = std::chrono::steady_clock::now() + options_.batch_wait;
  const std::atomic<int64_t>& waiting = slot.express ? slots.short_queued : slots.queued;
  slots.gathering.push_back(&batch);
  const auto helps = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !closing_ && batch.width < batch.joint().most && slots.coming.contains(key) &&
           waiting == 0;
  };
  while (helps() && slots.gathered.WaitUntil(mutex_, until)) {
  }
  std::erase(slots.gathering, &batch);
}

Scheduler::IdleWork& Scheduler::BeginIdleLocked(WorkerSlots& slots) {
  IdleWork& idle = *slots.idle.front();
  slots.idle.pop_front();
  idle.started = true;
  CountLocked(slots);
  slots.alone = idle.due && slots.is_gpu();
  MoveClocksLocked(slots);
  slots.alone_since = slots.clocks_at;
  ++slots.trials;
  return idle;
}

void Scheduler::EndIdleLocked(WorkerSlots& slots, IdleWork& idle, bool done, Turns::Time end) {
  slots.alone = false;
  MoveClocksLocked(slots);
  --slots.trials;
  if (idle.due) slots.idle_turns.Took(idle.due_since, end);
  idle.done = done;
  if (!done) {
    // Who came meanwhile goes first, with as much patience as at the beginning; between turns that
    // it takes that is a matter of their part of the time.
    if (!idle.due) idle.asked = end;
    idle.due = idle.started = false;
    // Not before one whose turn has come meanwhile: only the first is looked at.
    const bool other_is_due = !slots.idle.empty() && slots.idle.front()->due;
    slots.idle.insert(slots.idle.begin() + (other_is_due ? 1 : 0), &idle);
    CountLocked(slots);
  }
  idle_done_.NotifyAll();
}

void Scheduler::SleepLocked(Worker& worker, WorkerSlots& slots) {
  worker.sleeps = true;
  if (worker.slot.express && slots.short_queued > 0) {
    worker.work.WaitUntil(mutex_, std::chrono::steady_clock::now() + kLookAgain);
  } else {
    worker.work.Wait(mutex_);
  }
  worker.sleeps = false;
}

bool Scheduler::LooksLocked(const Worker& worker, const WorkerSlots& slots) const {
  if (!slots.is_gpu()) return false;
  if (worker.slot.express) return true;
  // Trials are taken first, but not by the express slot.
  return slots.idle.empty() && std::ranges::none_of(slots.workers, [](const Worker& other) {
           return other.looks && !other.slot.express;
         });
}

void Scheduler::RunSlot(Worker& worker, WorkerSlots& slots) {
  using Clock = std::chrono::steady_clock;
  WorkerSlot& slot = worker.slot;
  MutexLock lock(mutex_);
  while (true) {
    bool has_job = false;
    while (worker.lent ||
           (!closing_ && !(has_job = MayRunLocked(slots, slot)) && !MayIdleLocked(slots, slot))) {
      SleepLocked(worker, slots);
    }
    if (closing_) return;
    if (has_job) {
      Run run;
      if (!BeginRunLocked(slots, slot, run)) continue;
      lock.Unlock();
      RunBatch(slots, slot, run);
      lock.Lock();
      EndRunLocked(slots, run);
    } else {
      slots.used = true;
      ++slots.running;
      IdleWork& idle = BeginIdleLocked(slots);
      lock.Unlock();
      const Turns::Time begin = Clock::now();
      const bool done = (*idle.piece)(slots.trial_slot ? *slots.trial_slot : slot);
      const Turns::Time end = Clock::now();
      slots.busy_ns += (end - begin).count();
      lock.Lock();
      EndIdleLocked(slots, idle, done, end);
      --slots.running;
      WakeLocked(slots);
    }
    worker.looks = has_job && LooksLocked(worker, slots);
    if (!worker.looks) continue;
    lock.Unlock();
    const std::atomic<int64_t>& waiting = slot.express ? slots.short_queued : slots.queued;
    const Clock::time_point end = Clock::now() + kLook;
    while (waiting == 0 && Clock::now() < end) std::this_thread::yield();
    // What is seen was brought under the lock.
    lock.LockSoon();
    worker.looks = false;
  }
}

bool Scheduler::BeginRunLocked(WorkerSlots& slots, const WorkerSlot& slot, Run& run) {
  run.batch = PopLocked(slots, run.turn, slot);
  if (run.batch.jobs.empty()) return false;
  slots.used = true;
  ++slots.running;
  for (const std::shared_ptr<Job>& job : run.batch.jobs) {
    EndWaitLocked(slots, *job);
  }
  GatherLocked(slots, slot, run.batch);
  run.tenant = run.batch.jobs.front()->tenant();
  run.turn.tenant = run.tenant;
  BeginTurnLocked(slots, run.turn);
  WakeLocked(slots);  // who may go now that others do not any more
  return true;
}

void Scheduler::EndRunLocked(WorkerSlots& slots, Run& run) {
  EndTurnLocked(slots, run.turn);
  --slots.running;
  WakeLocked(slots);
}

void Scheduler::RunBatch(WorkerSlots& slots, WorkerSlot& slot, Run& run) {
  std::vector<std::shared_ptr<Job>> jobs = std::move(run.batch.jobs);
  SlotTurn& turn = run.turn;
  std::erase_if(jobs, [this](const std::shared_ptr<Job>& job) { return !BeginRun(job); });
  for (const std::shared_ptr<Job>& job : jobs) job->turn_ = &turn;
  if (jobs.size() > 1) {
    RunTogether(jobs, slot);
    for (const std::shared_ptr<Job>& job : jobs) {
      job->joint_.key.clear();
      // Each in a turn of its own.
      if (job != jobs.front()) EndStep(job, Job::Next::kAgain, absl::OkStatus());
    }
  }
  if (!jobs.empty()) RunJob(jobs.front(), slot, turn);
  jobs.clear();
  // Large ones are given to whoever needs memory next; taking one again is cheap.
  if (slot.workspace.size() > slots.backend->kept_workspace()) slot.workspace = Buffer();
}

CallTimings Scheduler::CountWait(Job& job) {
  const WaitedBehind behind = std::exchange(job.behind_, {});
  const CallTimings wait{.queue_ns = NanosecondsSince(job.queued_),
                         .queue_trials_ns = behind.trials,
                         .queue_others_ns = behind.others};
  Add(wait, job.end_.timings);
  return wait;
}

bool Scheduler::BeginRun(const std::shared_ptr<Job>& job) {
  using State = Job::State;
  CallTimings wait;
  {
    const MutexLock lock(job->mutex_);
    if (job->state_ != State::kQueued) return false;  // reaped while it waited
    job->state_ = State::kRunning;
    wait = CountWait(*job);
  }
  WorkerSlots& slots = slots_of(job->device());
  ++slots.turns_begun[job->is_long ? 1 : 0];
  slots.waited_ns[job->is_long ? 1 : 0] += wait.queue_ns;
  slots.waited_for_trials_ns += wait.queue_trials_ns;
  slots.waited_for_others_ns += wait.queue_others_ns;
  if (!job->loaded_ && !job->token_->stopped()) {
    job->loaded_ = true;
    if (Job::Loader load = job->ToLoad()) {
      {
        const MutexLock lock(job->mutex_);
        job->state_ = State::kLoading;
      }
      // Who stopped it before it was seen to load left it to us.
      if (job->token_->stopped()) {
        Reap(job);
        return false;
      }
      RunBlocking([load = std::move(load), token = job->token_, weak = std::weak_ptr<Job>(job)] {
        if (weak.expired() || token->stopped()) return;
        Job::Held held = load(token->flag());
        if (const std::shared_ptr<Job> job = weak.lock()) job->Loaded(std::move(held));
      });
      return false;
    }
  }
  return true;
}

void Scheduler::RunTogether(std::vector<std::shared_ptr<Job>>& jobs, WorkerSlot& slot) {
  const auto together = std::make_shared<Job::Together>();
  std::vector<Job*> batch;
  for (const std::shared_ptr<Job>& job : jobs) {
    together->tokens.push_back(job->token_);
    batch.push_back(job.get());
  }
  const auto set = [&](const std::shared_ptr<Job::Together>& in) {
    for (Job* const job : batch) {
      const MutexLock lock(job->mutex_);
      job->together_ = in;
    }
  };
  set(together);
  together->Look();  // for those that were stopped before
  std::vector<bool> ended(jobs.size());
  batch.front()->RunTogether(slot, batch, &together->stop, [&](size_t job, absl::Status end) {
    ended[job] = true;
    EndJob(*batch[job], std::move(end));
  });
  set(nullptr);
  size_t at = 0;
  std::erase_if(jobs, [&](const std::shared_ptr<Job>&) { return ended[at++]; });
}

void Scheduler::RunJob(const std::shared_ptr<Job>& job, WorkerSlot& slot, SlotTurn& turn) {
  absl::Status end;
  Job::Next next = Job::Next::kEnded;
  if (job->token_->stopped()) {
    end = job->token_->status();
  } else {
    next = job->Run(slot, &end);
    {
      // Before anybody hears of the end.
      const MutexLock lock(mutex_);
      CountTurnLocked(slots_of(slot.backend->id()), turn);
    }
    // One that left has perhaps ended elsewhere.
    if (next == Job::Next::kAgain || next == Job::Next::kPaused) job->TakePrediction();
  }
  EndStep(job, next, std::move(end));
}

void Scheduler::EndStep(const std::shared_ptr<Job>& job, Job::Next next, absl::Status end) {
  using State = Job::State;
  if (next == Job::Next::kLeft) return;
  if (next != Job::Next::kEnded) {
    MutexLock lock(job->mutex_);
    // A stop while the worker slot had it, and a release while it was about to pause, are seen
    // here: both look at state_ under the lock.
    const bool paused =
        next == Job::Next::kPaused && job->unreleased_.load() > options_.block_credit_bytes / 2;
    if (!job->token_->stopped()) {
      job->state_ = paused ? State::kPaused : State::kQueued;
      (paused ? job->paused_ : job->queued_) = std::chrono::steady_clock::now();
      lock.Unlock();
      if (!paused) Enqueue(job);
      return;
    }
    end = job->token_->status();
  }
  EndJob(*job, std::move(end));
}

void Scheduler::EndJob(Job& job, absl::Status end) {
  // What a kernel says when it was stopped is less than why it was stopped.
  if (!end.ok() && job.token_->stopped()) end = job.token_->status();
  job.Finish(std::move(end));
}

void Scheduler::RunReaper() {
  MutexLock lock(mutex_);
  while (true) {
    while (!reaper_closing_ && stopped_.empty()) reaper_work_.Wait(mutex_);
    if (stopped_.empty()) return;
    std::shared_ptr<Job> job = stopped_.front().lock();
    stopped_.pop_front();
    if (job == nullptr) continue;
    lock.Unlock();
    bool end = false;
    std::shared_ptr<Job::Together> together;
    {
      const MutexLock job_lock(job->mutex_);
      together = job->together_;
      end = job->state_ == Job::State::kReceiving || job->state_ == Job::State::kQueued ||
            job->state_ == Job::State::kLoading || job->state_ == Job::State::kPaused;
      if (end && job->state_ == Job::State::kQueued) {
        const MutexLock queue_lock(mutex_);
        WorkerSlots& slots = slots_of(job->device());
        if (slots.queue.Remove(*job)) {
          EndWaitLocked(slots, *job);
          CountLocked(slots);
          WakeLocked(slots);  // who had to wait for it
        }
        CountWait(*job);  // also of one that waits for others to join it
      }
      if (end) job->state_ = Job::State::kLeft;  // no worker slot takes it any more
    }
    if (together != nullptr) together->Look();
    if (end) job->Finish(job->token_->status());
    job.reset();  // its operands may be large: not under the lock
    lock.Lock();
  }
}

absl::Status Scheduler::RunIdle(DeviceId device, const std::function<bool(WorkerSlot&)>& piece,
                                const std::atomic<bool>* stop, Turns::Time until) {
  using Clock = std::chrono::steady_clock;
  WorkerSlots& slots = slots_of(device);
  IdleWork idle{&piece, Clock::now()};
  std::chrono::nanoseconds stand_back = Turns::kStandBack;
  MutexLock lock(mutex_);
  if (closing_) return absl::CancelledError("the server is shutting down");
  if (slots.workers.empty()) return absl::UnavailableError("the device has no worker slots");
  slots.idle.push_back(&idle);
  WakeLocked(slots);
  while (!idle.done) {
    Clock::time_point now = Clock::now();
    const Clock::time_point next =
        idle.due ? idle.due_since + stand_back : slots.idle_turns.DueAt(idle.asked);
    const Clock::time_point look = now + kBetweenLooks;
    idle_done_.WaitUntil(mutex_, next > now ? std::min(look, next) : look);
    if (idle.started) continue;
    now = Clock::now();
    const bool stopped = closing_ || (stop != nullptr && stop->load());
    if (stopped || now >= until) {
      std::erase(slots.idle, &idle);
      CountLocked(slots);
      WakeLocked(slots);  // calls that stood back
      return stopped ? absl::CancelledError("stopped before a worker slot was idle")
                     : absl::DeadlineExceededError("no worker slot had time for a trial");
    }
    if (!idle.due && slots.idle.front() == &idle && now >= slots.idle_turns.DueAt(idle.asked)) {
      idle.due = true;
      idle.due_since = now;
      CountLocked(slots);
      WakeLocked(slots);
    } else if (idle.due && now >= idle.due_since + stand_back) {
      // A long call holds a worker slot: the others are not to wait for its end.
      idle.due = false;
      CountLocked(slots);
      slots.idle_turns.Took(idle.due_since, now);
      stand_back *= 2;
      WakeLocked(slots);
    }
  }
  return absl::OkStatus();
}

void Scheduler::RunBlocking(std::function<void()> work) {
  {
    const MutexLock lock(mutex_);
    blocking_.push_back(std::move(work));
  }
  blocking_work_.NotifyOne();
}

bool Scheduler::BeginRestLocked(WorkerSlots& slots) {
  const bool used = std::exchange(slots.used, false);
  const bool rests = !used && !slots.rested && slots.running == 0;
  slots.rested = !used && (slots.rested || rests);
  return rests;
}

void Scheduler::RunBlockingThread() {
  MutexLock lock(mutex_);
  while (true) {
    const auto rest = std::chrono::steady_clock::now() + kRest;
    while (!closing_ && blocking_.empty() && blocking_work_.WaitUntil(mutex_, rest)) {
    }
    if (!closing_ && blocking_.empty()) {
      for (WorkerSlots& slots : slots_) {
        const bool rests = BeginRestLocked(slots);
        lock.Unlock();
        // What requests that ended early had sent; an error is the next request's to tell.
        slots.backend->Tidy(rests);
        lock.Lock();
      }
      continue;
    }
    if (blocking_.empty()) return;
    const std::function<void()> work = std::move(blocking_.front());
    blocking_.pop_front();
    lock.Unlock();
    work();
    lock.Lock();
  }
}

}  // namespace sparsed::engine
