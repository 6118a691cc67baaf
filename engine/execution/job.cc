#include "engine/execution/job.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/execution/scheduler.h"

namespace sparsed::engine {

Job::Job(std::shared_ptr<Scheduler> scheduler, std::string tenant, std::shared_ptr<ResultSink> sink,
         DeviceId device)
    : FairEntry(std::move(tenant)),
      scheduler_(std::move(scheduler)),
      sink_(std::move(sink)),
      device_(device) {}

absl::Status Job::Start(uint64_t timeout_ns) {
  begun_on_ = device_;
  if (scheduler_->options().batch_wait.count() > 0) joint_ = JoinsAs();
  TakePrediction();
  token_ = std::make_shared<Token>([scheduler = scheduler_.get(), job = weak_from_this()] {
    // The job keeps the scheduler alive; without the job there is nothing to reap.
    if (!job.expired()) scheduler->Reap(job);
  });
  if (!scheduler_->Register(shared_from_this())) {
    Drop();
    return absl::UnavailableError("the server is shutting down");
  }
  // Beyond a century a deadline is none, and the clock's arithmetic stays in range.
  constexpr uint64_t kLongest = 100ull * 365 * 24 * 3600 * 1000000000;
  if (timeout_ns > 0 && timeout_ns < kLongest) {
    const MutexLock lock(mutex_);  // it may be up before it is known here
    if (state_ == State::kEnded) return absl::OkStatus();
    deadline_ = scheduler_->timer_.Watch(
        token_,
        DeadlineTimer::Clock::now() + std::chrono::nanoseconds(static_cast<int64_t>(timeout_ns)));
  }
  return absl::OkStatus();
}

void Job::Submit(bool here) {
  std::optional<Time> deadline;
  {
    const MutexLock lock(mutex_);
    if (state_ != State::kReceiving) return;  // it was stopped meanwhile
    state_ = State::kQueued;
    submitted_ = queued_ = std::chrono::steady_clock::now();
    if (deadline_.has_value()) deadline = deadline_->first;
  }
  absl::Status admitted = scheduler_->Admit(shared_from_this(), deadline, here);
  if (!admitted.ok()) token_->Stop(std::move(admitted));
}

bool Job::submitted() {
  const MutexLock lock(mutex_);
  return submitted_ != Time();
}

WaitedBehind Between(const SlotTime& before, const SlotTime& after) {
  // Who runs on the express slot takes time back from turns beside it, counted before or not.
  const double trials = std::max(0.0, after.trials - before.trials);
  const double own = std::max(0.0, after.own - before.own);
  const double others = std::max(0.0, after.others - before.others);
  const double waited = std::chrono::duration<double>(after.at - before.at).count();
  // What nobody had is a thread's that waits for a processor.
  const double all = std::max(trials + own + others, waited);
  if (all <= 0) return {};
  const auto nanoseconds = [&](double part) {
    return static_cast<uint64_t>(1e9 * waited * part / all);
  };
  return {.trials = nanoseconds(trials), .others = nanoseconds(others)};
}

void Add(const CallTimings& more, CallTimings& to) {
  to.queue_ns += more.queue_ns;
  to.queue_trials_ns += more.queue_trials_ns;
  to.queue_others_ns += more.queue_others_ns;
  to.setup_ns += more.setup_ns;
  to.to_device_ns += more.to_device_ns;
  to.kernel_ns += more.kernel_ns;
  to.from_device_ns += more.from_device_ns;
}

void Job::Cancel() { token_->Stop(absl::CancelledError("the request was cancelled")); }

void Job::Fail(absl::Status status) { token_->Stop(std::move(status)); }

bool Job::Charge(int64_t bytes) {
  return unreleased_.fetch_add(bytes) + bytes > scheduler_->options().block_credit_bytes;
}

void Job::Release(int64_t bytes) {
  const int64_t left = unreleased_.fetch_sub(bytes) - bytes;
  if (left > scheduler_->options().block_credit_bytes / 2) return;
  {
    const MutexLock lock(mutex_);
    if (state_ != State::kPaused) return;
    state_ = State::kQueued;
    queued_ = std::chrono::steady_clock::now();
    pauses_ += queued_ - std::exchange(paused_, Time());
  }
  scheduler_->Enqueue(shared_from_this());
}

void Job::Loaded(Held held) {
  {
    const MutexLock lock(mutex_);
    if (state_ != State::kLoading) return;  // it ended meanwhile
    state_ = State::kQueued;
    held_ = std::move(held);
    queued_ = std::chrono::steady_clock::now();
  }
  scheduler_->Enqueue(shared_from_this());
}

void Job::Finish(absl::Status status) {
  Held held;  // let go of without the lock
  {
    const MutexLock lock(mutex_);
    if (state_ == State::kEnded) return;
    state_ = State::kEnded;
    held.swap(held_);
    if (deadline_.has_value()) scheduler_->timer_.Forget(*deadline_);
  }
  Drop();
  held.clear();
  scheduler_->Unregister(this);
  AddSetup();
  end_.status = std::move(status);
  sink_->OnEnd(std::move(end_));
  sink_.reset();
}

void Job::AddSetup() {
  const MutexLock lock(mutex_);
  if (submitted_ == Time()) return;
  const Time now = std::chrono::steady_clock::now();
  if (paused_ != Time()) pauses_ += now - paused_;
  const CallTimings& timings = end_.timings;
  const auto known = static_cast<int64_t>(timings.queue_ns + timings.to_device_ns +
                                          timings.kernel_ns + timings.from_device_ns);
  const std::chrono::nanoseconds rest =
      now - submitted_ - pauses_ - std::chrono::nanoseconds(known);
  end_.timings.setup_ns = static_cast<uint64_t>(std::max<int64_t>(0, rest.count()));
}

void Job::TakePrediction() {
  const Cost cost = Predict();
  next_seconds = cost.next_seconds;
  rest_seconds = cost.rest_seconds;
  is_long = cost.is_long;
}

void Job::AddBusy(uint64_t nanoseconds) { scheduler_->AddBusy(device_, nanoseconds, turn_); }

bool Job::GivesWay() { return scheduler_->GivesWay(*this); }

const std::atomic<bool>* Job::wanted() const { return scheduler_->wanted(device_); }

}  // namespace sparsed::engine
