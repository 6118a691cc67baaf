// Worker slots, queues, deadlines and the one end of every job, with jobs made for the purpose.
#include "engine/execution/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/execution/cpu_backend.h"

namespace sparsed::engine {
namespace {

using namespace std::chrono_literals;

/// Remembers how a job ended.
class Recorder final : public ResultSink {
 public:
  void OnBegin(CallBegin) override {}
  void OnArray(uint32_t, uint64_t, Array) override {}
  void OnBlock(ResultBlock) override {}
  void OnEnd(CallEnd end) override {
    std::lock_guard lock(mutex_);
    ++ends_;
    status_ = end.status;
    timings_ = end.timings;
    ended_.notify_all();
  }
  absl::Status Wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(ended_.wait_for(lock, 20s, [this] { return ends_ > 0; })) << "no OnEnd";
    return status_;
  }
  CallTimings timings() {
    std::lock_guard lock(mutex_);
    return timings_;
  }
  int ends() {
    std::lock_guard lock(mutex_);
    return ends_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  int ends_ = 0;
  absl::Status status_;
  CallTimings timings_;
};

class TestJob final : public Job {
 public:
  using Step = std::function<Next(TestJob&, absl::Status*)>;
  TestJob(std::shared_ptr<Scheduler> scheduler, std::string tenant,
          std::shared_ptr<ResultSink> sink, Step step)
      : Job(std::move(scheduler), std::move(tenant), std::move(sink), DeviceId{}),
        step_(std::move(step)) {}
  absl::StatusOr<ClaimedBytes> Claim(uint32_t, uint64_t, uint64_t) override {
    return absl::InvalidArgumentError("it has no operands");
  }
  bool complete() const override { return true; }
  using Job::Charge;
  using Job::Ended;
  using Job::Finish;
  using Job::token;

  Loader loader;
  Joint joint;
  std::function<void(std::span<Job* const>, const std::atomic<bool>*, const Ended&)> together;

 private:
  Joint JoinsAs() const override { return joint; }
  bool IsOneStep() const override { return true; }
  void RunTogether(WorkerSlot&, std::span<Job* const> batch, const std::atomic<bool>* stop,
                   const Ended& ended) override {
    together(batch, stop, ended);
  }
  Loader ToLoad() const override { return loader; }
  Next Run(WorkerSlot&, absl::Status* end) override { return step_(*this, end); }
  void Drop() override {}
  const Step step_;
};

class SchedulerTest : public ::testing::Test {
 protected:
  void Open(ExecutorOptions options) {
    cpu_.emplace(budget_, options.slots, options.threads_per_slot);
    scheduler_ = std::make_shared<Scheduler>(options, std::vector<Backend*>{&*cpu_});
    scheduler_->Open();
  }
  ~SchedulerTest() override {
    if (scheduler_ != nullptr) scheduler_->Close();
  }
  std::shared_ptr<TestJob> Make(std::shared_ptr<Recorder> recorder, TestJob::Step step,
                                uint64_t timeout_ns = 0, std::string tenant = "t") {
    auto job = std::make_shared<TestJob>(scheduler_, std::move(tenant), std::move(recorder),
                                         std::move(step));
    EXPECT_TRUE(job->Start(timeout_ns).ok());
    return job;
  }
  static Job::Next End(TestJob&, absl::Status*) { return Job::Next::kEnded; }

  Budget budget_{1 << 30, 1 << 30};
  std::optional<CpuBackend> cpu_;
  std::shared_ptr<Scheduler> scheduler_;
};

/// Lets a worker slot be occupied until it is opened.
class Gate {
 public:
  void Open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void Pass() {
    std::unique_lock lock(mutex_);
    waiting_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
  }
  void AwaitWaiting() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return waiting_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false, waiting_ = false;
};

TEST_F(SchedulerTest, RunsJobsAndEndsEachOnce) {
  Open({.slots = 2});
  std::vector<std::shared_ptr<Recorder>> recorders;
  for (int i = 0; i < 100; ++i) {
    recorders.push_back(std::make_shared<Recorder>());
    auto steps = std::make_shared<int>(i % 5);
    Make(recorders.back(), [steps](TestJob&, absl::Status*) {
      return (*steps)-- > 0 ? Job::Next::kAgain : Job::Next::kEnded;
    })->Submit();
  }
  for (auto& recorder : recorders) EXPECT_TRUE(recorder->Wait().ok());
  EXPECT_EQ(scheduler_->in_flight(), 0);
  EXPECT_EQ(scheduler_->queue_depth(DeviceId{}), 0);
  for (auto& recorder : recorders) EXPECT_EQ(recorder->ends(), 1);
}

/// Of a job that waited while something else had the only worker slot.
class WaitTest : public SchedulerTest {
 protected:
  WaitTest() { Open({.slots = 1}); }
  /// Queues one of tenant "t", and lets go of the slot when it has waited.
  CallTimings WaitBehind(Gate& gate, uint64_t timeout_ns = 0, bool here = false) {
    gate.AwaitWaiting();
    const auto waiting = std::make_shared<Recorder>();
    const std::shared_ptr<TestJob> job = Make(waiting, End, timeout_ns);
    here ? job->SubmitHere() : job->Submit();
    if (timeout_ns == 0) {
      std::this_thread::sleep_for(5ms);
      gate.Open();
    }
    EXPECT_EQ(waiting->Wait().ok(), timeout_ns == 0);
    gate.Open();
    if (timeout_ns == 0) {
      EXPECT_GE(waiting->timings().queue_ns, 5'000'000u);
    }
    return waiting->timings();
  }
  /// A job of `tenant` that has the worker slot until the gate opens.
  void Occupy(const std::string& tenant, Gate& gate) {
    Make(
        occupier_,
        [&gate](TestJob&, absl::Status*) {
          gate.Pass();
          return Job::Next::kEnded;
        },
        0, tenant)
        ->Submit();
  }

  const std::shared_ptr<Recorder> occupier_ = std::make_shared<Recorder>();
};

/// At least the 5 ms for which it is certain that somebody had the slot, but for rounding.
void ExpectAlmostAll(uint64_t part, uint64_t whole) {
  EXPECT_GE(part, 4'999'000u);
  EXPECT_LE(part, whole);
}

TEST_F(WaitTest, ForOthersIsTold) {
  Gate gate;
  Occupy("other", gate);
  const CallTimings wait = WaitBehind(gate);
  ExpectAlmostAll(wait.queue_others_ns, wait.queue_ns);
  EXPECT_EQ(wait.queue_trials_ns, 0u);
  EXPECT_TRUE(occupier_->Wait().ok());
  const SlotWaits waits = scheduler_->slot_waits(DeviceId{});
  EXPECT_NEAR(waits.for_others, 1e-9 * wait.queue_others_ns, 1e-9);
  EXPECT_EQ(waits.for_trials, 0);
}

TEST_F(WaitTest, ForItsTenantsOwnIsTheRest) {
  Gate gate;
  Occupy("t", gate);
  const CallTimings wait = WaitBehind(gate);
  EXPECT_LT(wait.queue_others_ns, 1'000u) << "but for rounding";
  EXPECT_EQ(wait.queue_trials_ns, 0u);
  EXPECT_TRUE(occupier_->Wait().ok());
}

TEST_F(WaitTest, ForATrialIsTold) {
  Gate gate;
  std::thread trial([&] {
    EXPECT_TRUE(scheduler_
                    ->RunIdle(
                        DeviceId{},
                        [&](WorkerSlot&) {
                          gate.Pass();
                          return true;
                        },
                        nullptr)
                    .ok());
  });
  const CallTimings wait = WaitBehind(gate);
  trial.join();
  ExpectAlmostAll(wait.queue_trials_ns, wait.queue_ns);
  EXPECT_EQ(wait.queue_others_ns, 0u);
  EXPECT_GT(scheduler_->slot_waits(DeviceId{}).for_trials, 0);
}

/// As requests come through a ring.
TEST_F(WaitTest, OfOneThatMightHaveRunInItsCallersThreadIsTold) {
  Gate gate;
  Occupy("other", gate);
  const CallTimings wait = WaitBehind(gate, 0, /*here=*/true);
  ExpectAlmostAll(wait.queue_others_ns, wait.queue_ns);
  EXPECT_TRUE(occupier_->Wait().ok());
}

TEST(SlotTime, IsSharedByWhatWasGivenMeanwhile) {
  const std::chrono::steady_clock::time_point now = std::chrono::steady_clock::now();
  const SlotTime before{.at = now, .trials = 1, .own = 5, .others = 2};
  WaitedBehind behind = Between(before, {now + 100ns, 1.5, 5.25, 2.25});
  EXPECT_EQ(behind.trials, 50u);
  EXPECT_EQ(behind.others, 25u);
  behind = Between(before, {now + 100ns, 1, 5, 2});
  EXPECT_EQ(behind.trials + behind.others, 0u) << "nobody had them";
  behind = Between(before, {now + 10s, 1.25, 5, 3});
  EXPECT_EQ(behind.trials, 250'000'000u) << "the rest of the wait nobody had them";
  EXPECT_EQ(behind.others, 1'000'000'000u);
  // What was counted of others is taken back.
  behind = Between(before, {now + 100ns, 1, 5.1, 1.5});
  EXPECT_EQ(behind.others, 0u);
  behind = Between(before, {now + 100ns, 1, 4, 2.1});
  EXPECT_EQ(behind.others, 100u) << "never more than the wait";
}

TEST_F(WaitTest, OfOneWhoseDeadlinePassedIsItsQueues) {
  Gate gate;
  Occupy("other", gate);
  const CallTimings wait = WaitBehind(gate, 500'000'000);
  EXPECT_GT(wait.queue_others_ns, 0u);
  EXPECT_LE(wait.queue_others_ns, wait.queue_ns);
  EXPECT_TRUE(occupier_->Wait().ok());
}

TEST_F(SchedulerTest, WhatWasReadIsHeldUntilTheJobEnds) {
  Open({.slots = 1});
  const auto recorder = std::make_shared<Recorder>();
  std::weak_ptr<const int> read;
  auto job = Make(recorder, [&, steps = 3](TestJob&, absl::Status*) mutable {
    EXPECT_FALSE(read.expired());
    return --steps > 0 ? Job::Next::kAgain : Job::Next::kEnded;
  });
  job->loader = [&](const std::atomic<bool>*) -> Job::Held {
    const auto array = std::make_shared<const int>(1);
    read = array;
    return {array};
  };
  job->Submit();
  EXPECT_TRUE(recorder->Wait().ok());
  EXPECT_TRUE(read.expired());
}

TEST_F(SchedulerTest, AJobThatIsCancelledWhileItIsReadForEndsAtOnce) {
  Open({.slots = 1});
  const auto recorder = std::make_shared<Recorder>();
  const auto held = std::make_shared<const int>(1);
  Gate reading;
  auto job = Make(recorder, [](TestJob&, absl::Status*) {
    ADD_FAILURE() << "it ran";
    return Job::Next::kEnded;
  });
  job->loader = [&](const std::atomic<bool>* stop) -> Job::Held {
    reading.Pass();
    EXPECT_TRUE(*stop);
    return {held};
  };
  job->Submit();
  reading.AwaitWaiting();
  job->Cancel();
  EXPECT_TRUE(absl::IsCancelled(recorder->Wait()));
  reading.Open();
  scheduler_->Close();
  EXPECT_EQ(held.use_count(), 1) << "what it read is nobody's";
}

TEST_F(SchedulerTest, ReceivingQueuedAndPausedJobsEndOnCancelAndDeadline) {
  Open({.slots = 1, .block_credit_bytes = 10});
  Gate gate;
  auto paused_recorder = std::make_shared<Recorder>();
  Gate paused;
  paused.Open();
  auto paused_job = Make(paused_recorder, [&](TestJob& self, absl::Status*) {
    EXPECT_TRUE(self.Charge(100));
    paused.Pass();
    return Job::Next::kPaused;
  });
  paused_job->Submit();
  paused.AwaitWaiting();
  auto busy_recorder = std::make_shared<Recorder>();
  Make(busy_recorder, [&](TestJob&, absl::Status*) {
    gate.Pass();
    return Job::Next::kEnded;
  })->Submit();
  gate.AwaitWaiting();

  auto receiving = std::make_shared<Recorder>(), queued = std::make_shared<Recorder>();
  auto late_receiving = std::make_shared<Recorder>(), late_queued = std::make_shared<Recorder>();
  auto a = Make(receiving, End);
  auto b = Make(queued, End);
  auto c = Make(late_receiving, End, /*timeout_ns=*/20'000'000);
  auto d = Make(late_queued, End, /*timeout_ns=*/20'000'000);
  b->Submit();
  d->Submit();
  a->Cancel();
  b->Cancel();
  paused_job->Cancel();
  EXPECT_EQ(receiving->Wait().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(queued->Wait().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(paused_recorder->Wait().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(late_receiving->Wait().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(late_queued->Wait().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(scheduler_->queue_depth(DeviceId{}), 0);
  a->Submit();  // too late: nothing happens
  gate.Open();
  EXPECT_TRUE(busy_recorder->Wait().ok());
  EXPECT_EQ(scheduler_->in_flight(), 0);
  for (const auto& recorder : {receiving, queued, paused_recorder, late_receiving, late_queued}) {
    EXPECT_EQ(recorder->ends(), 1);
  }
}

TEST_F(SchedulerTest, ARunningJobSeesTheTokenAndTheReasonStays) {
  Open({.slots = 1});
  auto recorder = std::make_shared<Recorder>();
  auto job = Make(
      recorder,
      [](TestJob& self, absl::Status* end) {
        while (!self.token().stopped()) std::this_thread::sleep_for(1ms);
        *end = absl::CancelledError("the kernel's own words");
        return Job::Next::kEnded;
      },
      /*timeout_ns=*/10'000'000);
  job->Submit();
  EXPECT_EQ(recorder->Wait().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(SchedulerTest, DeadlinesAreForgottenWithTheirJobs) {
  Open({.slots = 1});
  constexpr uint64_t kHour = 3600ull * 1'000'000'000;
  for (int i = 0; i < 100; ++i) {
    auto recorder = std::make_shared<Recorder>();
    Make(recorder, End, kHour + i % 3)->Submit();
    EXPECT_TRUE(recorder->Wait().ok());
  }
  EXPECT_EQ(scheduler_->deadlines(), 0u);
  // One that comes behind later ones still comes in time.
  auto late = std::make_shared<Recorder>(), soon = std::make_shared<Recorder>();
  auto a = Make(late, End, kHour);
  auto b = Make(soon, End, /*timeout_ns=*/20'000'000);
  EXPECT_EQ(soon->Wait().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(scheduler_->deadlines(), 1u);
  a->Cancel();
  EXPECT_EQ(late->Wait().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(scheduler_->deadlines(), 0u);
}

TEST_F(SchedulerTest, APausedJobGoesOnWhenItsBytesAreReleased) {
  Open({.slots = 1, .block_credit_bytes = 100});
  auto recorder = std::make_shared<Recorder>();
  std::atomic<int> steps{0};
  auto job = Make(recorder, [&](TestJob& self, absl::Status*) {
    if (++steps == 20) return Job::Next::kEnded;
    return self.Charge(60) ? Job::Next::kPaused : Job::Next::kAgain;
  });
  job->Submit();
  for (int released = 0; recorder->ends() == 0; ++released) {
    ASSERT_LE(steps - released, 3) << "it ran ahead of its credit";
    if (released < steps) {
      job->Release(60);
    } else {
      --released;
    }
    std::this_thread::sleep_for(100us);
  }
  EXPECT_TRUE(recorder->Wait().ok());
  EXPECT_EQ(steps, 20);
}

TEST_F(SchedulerTest, AFullQueueIsRefusedAtOnce) {
  Open({.slots = 1, .max_queued = 2});
  Gate gate;
  auto busy = std::make_shared<Recorder>();
  Make(busy, [&](TestJob&, absl::Status*) {
    gate.Pass();
    return Job::Next::kEnded;
  })->Submit();
  gate.AwaitWaiting();
  std::vector<std::shared_ptr<Recorder>> recorders;
  std::vector<std::shared_ptr<TestJob>> jobs;
  for (int i = 0; i < 3; ++i) {
    recorders.push_back(std::make_shared<Recorder>());
    jobs.push_back(Make(recorders.back(), End));
    jobs.back()->Submit();
  }
  EXPECT_EQ(recorders[2]->Wait().code(), absl::StatusCode::kResourceExhausted);
  gate.Open();
  EXPECT_TRUE(recorders[0]->Wait().ok());
  EXPECT_TRUE(recorders[1]->Wait().ok());
}

TEST_F(SchedulerTest, TenantsTakeTurns) {
  Open({.slots = 1});
  Gate gate;
  auto busy = std::make_shared<Recorder>();
  Make(busy, [&](TestJob&, absl::Status*) {
    gate.Pass();
    return Job::Next::kEnded;
  })->Submit();
  gate.AwaitWaiting();
  std::mutex mutex;
  std::string order;
  std::vector<std::shared_ptr<Recorder>> recorders;
  const auto submit = [&](const std::string& tenant) {
    recorders.push_back(std::make_shared<Recorder>());
    Make(
        recorders.back(),
        [&, tenant](TestJob&, absl::Status*) {
          std::lock_guard lock(mutex);
          order += tenant;
          return Job::Next::kEnded;
        },
        0, tenant)
        ->Submit();
  };
  for (int i = 0; i < 4; ++i) submit("a");
  for (int i = 0; i < 2; ++i) submit("b");
  gate.Open();
  for (auto& recorder : recorders) EXPECT_TRUE(recorder->Wait().ok());
  // How long they took decides the rest.
  EXPECT_NE(order[0], order[1]) << order;
  EXPECT_EQ(std::ranges::count(order, 'a'), 4) << order;
}

TEST_F(SchedulerTest, IdleWorkWaitsForCallsAndStops) {
  Open({.slots = 1, .threads_per_slot = 2});
  int threads = 0;
  EXPECT_TRUE(
      scheduler_
          ->RunIdle(
              DeviceId{}, [&](WorkerSlot& slot) { return (threads = slot.threads) > 0; }, nullptr)
          .ok());
  EXPECT_EQ(threads, 2);
  Gate gate;
  auto busy = std::make_shared<Recorder>();
  Make(busy, [&](TestJob&, absl::Status*) {
    gate.Pass();
    return Job::Next::kEnded;
  })->Submit();
  gate.AwaitWaiting();
  std::atomic<bool> stop{true};
  bool ran = false;
  EXPECT_EQ(scheduler_
                ->RunIdle(
                    DeviceId{}, [&](WorkerSlot&) { return ran = true; }, &stop)
                .code(),
            absl::StatusCode::kCancelled);
  EXPECT_FALSE(ran);
  gate.Open();
  EXPECT_TRUE(busy->Wait().ok());  // the gate is ours until then
}

TEST_F(SchedulerTest, IdleWorkGetsATurnBesideACallThatDoesNotEnd) {
  Open({.slots = 1});
  std::atomic<bool> ran = false;
  const auto give_up = std::chrono::steady_clock::now() + 30s;
  auto busy = std::make_shared<Recorder>();
  Make(busy, [&](TestJob&, absl::Status* end) {
    if (ran) return Job::Next::kEnded;
    if (std::chrono::steady_clock::now() < give_up) return Job::Next::kAgain;
    *end = absl::InternalError("it never got a turn");
    return Job::Next::kEnded;
  })->Submit();
  EXPECT_TRUE(scheduler_
                  ->RunIdle(
                      DeviceId{}, [&](WorkerSlot&) { return ran = true; }, nullptr)
                  .ok());
  EXPECT_TRUE(busy->Wait().ok());
}

TEST_F(SchedulerTest, CallsGoBetweenThePiecesOfIdleWork) {
  Open({.slots = 1});
  std::string order;  // one worker slot's
  std::vector<std::shared_ptr<Recorder>> recorders;
  const absl::Status ran = scheduler_->RunIdle(
      DeviceId{},
      [&](WorkerSlot&) {
        order += "p";
        if (recorders.size() == 3) return true;
        recorders.push_back(std::make_shared<Recorder>());
        Make(recorders.back(), [&](TestJob&, absl::Status*) {
          order += "c";
          return Job::Next::kEnded;
        })->Submit();
        EXPECT_TRUE(scheduler_->wanted(DeviceId{})->load());
        return false;
      },
      nullptr);
  EXPECT_TRUE(ran.ok()) << ran;
  for (const auto& recorder : recorders) EXPECT_TRUE(recorder->Wait().ok());
  EXPECT_EQ(order, "pcpcpcp");
}

TEST_F(SchedulerTest, IdleWorkStopsBetweenItsPieces) {
  Open({.slots = 1});
  std::atomic<bool> stop = false;
  int pieces = 0;
  Gate gate;
  auto busy = std::make_shared<Recorder>();
  const absl::Status ran = scheduler_->RunIdle(
      DeviceId{},
      [&](WorkerSlot&) {
        ++pieces;
        // What waits has the worker slot next, so that this has not.
        Make(busy, [&](TestJob&, absl::Status*) {
          gate.Pass();
          return Job::Next::kEnded;
        })->Submit();
        stop = true;
        return false;
      },
      &stop);
  EXPECT_EQ(ran.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(pieces, 1);
  gate.Open();
  EXPECT_TRUE(busy->Wait().ok());
}

TEST_F(SchedulerTest, IdleWorkWaitsUntilItsTimeIsUp) {
  Open({.slots = 1});
  Gate gate;
  auto busy = std::make_shared<Recorder>();
  Make(busy, [&](TestJob&, absl::Status*) {
    gate.Pass();
    return Job::Next::kEnded;
  })->Submit();
  gate.AwaitWaiting();
  bool idle_ran = false;
  const auto now = std::chrono::steady_clock::now();
  for (const auto until : {now, now + 300ms}) {  // before and after its turn was due
    EXPECT_EQ(scheduler_
                  ->RunIdle(
                      DeviceId{}, [&](WorkerSlot&) { return idle_ran = true; }, nullptr, until)
                  .code(),
              absl::StatusCode::kDeadlineExceeded);
  }
  EXPECT_FALSE(idle_ran);
  // Nobody stands back for what has given up.
  auto next = std::make_shared<Recorder>();
  Make(next, End)->Submit();
  gate.Open();
  EXPECT_TRUE(busy->Wait().ok());
  EXPECT_TRUE(next->Wait().ok());
}

/// Jobs that may join each other; what ran is written down, as "2a" for two of key "a" at once.
class BatchTest : public SchedulerTest {
 protected:
  struct Begun {
    std::shared_ptr<Recorder> recorder;
    std::shared_ptr<TestJob> job;
  };

  Begun Begin(const std::string& key, int64_t width = 1, const std::string& tenant = "t",
              TestJob::Loader loader = nullptr) {
    Begun begun{std::make_shared<Recorder>(), nullptr};
    begun.job = std::make_shared<TestJob>(scheduler_, tenant, begun.recorder,
                                          [this, key](TestJob&, absl::Status*) {
                                            Write("1" + key);
                                            return Job::Next::kEnded;
                                          });
    begun.job->joint = {key, width, /*most=*/4};
    begun.job->loader = std::move(loader);
    begun.job->together = [this, key](std::span<Job* const> batch, const std::atomic<bool>* stop,
                                      const TestJob::Ended& ended) {
      Write(std::to_string(batch.size()) + key);
      if (together_) return together_(batch, stop, ended);
      for (size_t i = 0; i < batch.size(); ++i) ended(i, absl::OkStatus());
    };
    EXPECT_TRUE(begun.job->Start(/*timeout_ns=*/0).ok());
    return begun;
  }
  Begun Submit(const std::string& key, int64_t width = 1, const std::string& tenant = "t",
               TestJob::Loader loader = nullptr) {
    Begun begun = Begin(key, width, tenant, std::move(loader));
    begun.job->Submit();
    return begun;
  }
  /// Takes the only worker slot until the gate opens.
  void TakeSlot() {
    auto step = [this](TestJob&, absl::Status*) {
      gate_.Pass();
      return Job::Next::kEnded;
    };
    Make(std::make_shared<Recorder>(), step)->Submit();
    gate_.AwaitWaiting();
  }
  void Write(const std::string& what) {
    std::lock_guard lock(mutex_);
    ran_ += (ran_.empty() ? "" : " ") + what;
  }
  std::string ran() {
    std::lock_guard lock(mutex_);
    return ran_;
  }

  Gate gate_;
  decltype(TestJob::together) together_;

 private:
  std::mutex mutex_;
  std::string ran_;
};

TEST_F(BatchTest, JobsThatWaitRunAsOneInOneTurn) {
  Open({.slots = 1, .batch_wait = 1us});
  TakeSlot();
  std::vector<Begun> all = {Submit("a"), Submit("b"),         Submit("a"), Submit("a", 1, "u"),
                            Submit(""),  Submit("a", 2, "t"), Submit("a"), Submit("b")};
  gate_.Open();
  for (const Begun& begun : all) EXPECT_TRUE(begun.recorder->Wait().ok());
  for (const Begun& begun : all) EXPECT_EQ(begun.recorder->ends(), 1);
  // Turn by turn with "u"; the last "a" finds no room.
  EXPECT_EQ(ran(), "1a 3a 2b 1 1a");
  EXPECT_EQ(scheduler_->queue_depth(DeviceId{}), 0);
  EXPECT_EQ(scheduler_->in_flight(DeviceId{}), 0);
}

TEST_F(BatchTest, NothingIsJoinedUnlessAskedFor) {
  Open({.slots = 1});
  TakeSlot();
  const std::vector<Begun> all = {Submit("a"), Submit("a")};
  gate_.Open();
  for (const Begun& begun : all) EXPECT_TRUE(begun.recorder->Wait().ok());
  EXPECT_EQ(ran(), "1a 1a");
}

TEST_F(BatchTest, ASlotWaitsForOneThatComes) {
  Open({.slots = 1, .batch_wait = 1h});
  const Begun coming = Begin("a");
  const Begun first = Submit("a"), second = Submit("a");
  coming.job->Submit();
  for (const Begun& begun : {coming, first, second}) EXPECT_TRUE(begun.recorder->Wait().ok());
  EXPECT_EQ(ran(), "3a");
}

TEST_F(BatchTest, ASlotWaitsForNothingInVain) {
  Open({.slots = 1, .batch_wait = 1h});
  // Alone.
  EXPECT_TRUE(Submit("a").recorder->Wait().ok());
  // Others that come cannot join it.
  const Begun other = Begin("b"), unjoined = Begin("");
  EXPECT_TRUE(Submit("a").recorder->Wait().ok());
  // The one that was coming does not come any more.
  const Begun coming = Begin("a");
  const Begun left = Submit("a");
  coming.job->Cancel();
  EXPECT_TRUE(absl::IsCancelled(coming.recorder->Wait()));
  EXPECT_TRUE(left.recorder->Wait().ok());
  // Something else waits for the worker slot.
  const Begun late = Begin("a");
  const Begun stands_back = Submit("a");
  other.job->Submit();
  EXPECT_TRUE(other.recorder->Wait().ok());
  EXPECT_TRUE(stands_back.recorder->Wait().ok());
  // There is room for no more.
  EXPECT_TRUE(Submit("a", 4).recorder->Wait().ok());
  late.job->Cancel();
  unjoined.job->Cancel();
}

TEST_F(BatchTest, TheWaitEnds) {
  Open({.slots = 1, .batch_wait = 1us});
  const Begun never = Begin("a");
  EXPECT_TRUE(Submit("a").recorder->Wait().ok());
  EXPECT_EQ(never.recorder->ends(), 0);
  never.job->Cancel();
}

TEST_F(BatchTest, ClosingEndsTheWait) {
  Open({.slots = 1, .batch_wait = 1h});
  const Begun never = Begin("a"), waits = Submit("a");
  scheduler_->Close();
  EXPECT_TRUE(absl::IsUnavailable(waits.recorder->Wait()));
  EXPECT_TRUE(absl::IsUnavailable(never.recorder->Wait()));
}

TEST_F(BatchTest, ABatchGoesOnUntilNobodyWantsIt) {
  Open({.slots = 1, .batch_wait = 1us});
  Gate running;
  together_ = [&](std::span<Job* const>, const std::atomic<bool>* stop, const TestJob::Ended&) {
    running.Pass();
    EXPECT_FALSE(*stop) << "one of them is wanted";
    Write("on");
    while (!*stop) std::this_thread::sleep_for(1ms);
  };
  TakeSlot();
  const std::vector<Begun> all = {Submit("a"), Submit("a"), Submit("a")};
  gate_.Open();
  running.AwaitWaiting();
  all[0].job->Cancel();
  all[2].job->Cancel();
  // Those who stop are looked at in order.
  const Begun after = Begin("");
  after.job->Cancel();
  EXPECT_TRUE(absl::IsCancelled(after.recorder->Wait()));
  running.Open();
  while (ran() != "3a on") std::this_thread::sleep_for(1ms);
  all[1].job->Cancel();
  for (const Begun& begun : all) EXPECT_TRUE(absl::IsCancelled(begun.recorder->Wait()));
  EXPECT_EQ(ran(), "3a on");
}

TEST_F(BatchTest, WhatABatchLeavesRunsByItself) {
  Open({.slots = 1, .batch_wait = 1us});
  together_ = [](std::span<Job* const>, const std::atomic<bool>*, const TestJob::Ended& ended) {
    ended(1, absl::DataLossError("of this one alone"));
  };
  TakeSlot();
  const std::vector<Begun> all = {Submit("a"), Submit("a"), Submit("a"), Submit("b", 1, "u"),
                                  Submit("", 1, "u")};
  gate_.Open();
  EXPECT_TRUE(absl::IsDataLoss(all[1].recorder->Wait()));
  for (const size_t i : {0, 2, 3, 4}) EXPECT_TRUE(all[i].recorder->Wait().ok());
  // "t" has had the worker slot for long.
  EXPECT_EQ(ran(), "1b 1 3a 1a 1a");
}

TEST_F(BatchTest, WhatIsReadForOrWasCancelledIsNotInABatch) {
  Open({.slots = 1, .batch_wait = 1us});
  TakeSlot();
  const Begun first = Submit("a"), cancelled = Submit("a"),
              read = Submit("a", 1, "t", [](const std::atomic<bool>*) { return Job::Held(); }),
              last = Submit("a");
  cancelled.job->Cancel();
  EXPECT_TRUE(absl::IsCancelled(cancelled.recorder->Wait()));
  gate_.Open();
  for (const Begun& begun : {first, read, last}) EXPECT_TRUE(begun.recorder->Wait().ok());
  EXPECT_EQ(ran(), "2a 1a");
}

TEST(Turns, TakeATwentiethOfTheTime) {
  Turns turns;
  const Turns::Time start(1h);
  EXPECT_EQ(turns.DueAt(start), start + Turns::kPatience);
  turns.Took(start, start + 10ms);
  EXPECT_EQ(turns.DueAt(start), start + 200ms);
  // One that was asked for later waits for an idle worker slot first.
  EXPECT_EQ(turns.DueAt(start + 1s), start + 1s + Turns::kPatience);
  // Whoever is always waiting gets one part of twenty.
  Turns::Time now = start;
  std::chrono::nanoseconds taken{0};
  for (int i = 0; i < 100; ++i) {
    const Turns::Time begin = turns.DueAt(start);
    now = begin + std::chrono::milliseconds(1 + i % 7);
    taken += now - begin;
    turns.Took(begin, now);
  }
  EXPECT_LE(taken * Turns::kParts, turns.DueAt(start) - start);
}

TEST_F(SchedulerTest, ClosingEndsEverythingWithUnavailable) {
  Open({.slots = 1});
  std::vector<std::shared_ptr<Recorder>> recorders;
  std::vector<std::shared_ptr<TestJob>> jobs;
  for (int i = 0; i < 10; ++i) {
    recorders.push_back(std::make_shared<Recorder>());
    jobs.push_back(Make(recorders.back(), [](TestJob& self, absl::Status* end) {
      while (!self.token().stopped()) std::this_thread::sleep_for(1ms);
      *end = absl::CancelledError("");
      return Job::Next::kEnded;
    }));
    if (i % 2 == 0) jobs.back()->Submit();
  }
  scheduler_->Close();
  for (auto& recorder : recorders) {
    EXPECT_EQ(recorder->Wait().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(recorder->ends(), 1);
  }
  auto late = std::make_shared<TestJob>(scheduler_, "t", std::make_shared<Recorder>(), End);
  EXPECT_EQ(late->Start(0).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(scheduler_->in_flight(), 0);
}

}  // namespace
}  // namespace sparsed::engine
