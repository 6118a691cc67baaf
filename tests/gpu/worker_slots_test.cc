// Worker slots of a GPU: short jobs go before long ones, long ones never have all slots, and what
// runs at once shares the GPU's time. On the stand-in, with jobs made for the purpose.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/execution/gpu_backend.h"
#include "engine/execution/scheduler.h"
#include "tests/unit/engine/slot_work.h"

namespace sparsed::engine {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

class GpuWorkerSlots : public ::testing::Test {
 protected:
  static constexpr int kSlots = 4;
  static constexpr Work::Cost kShort = {.next_seconds = 1e-4};
  static constexpr Work::Cost kLong = {.next_seconds = 1, .is_long = true};

  void SetUp() override {
    device_ = Device::Open(0, {.memory_bytes = int64_t{520} << 20, .slots = kSlots}).value();
    backend_.emplace(*device_);
    scheduler_ = std::make_shared<Scheduler>(ExecutorOptions(), std::vector<Backend*>{&*backend_});
    scheduler_->Open();
  }
  void TearDown() override {
    let_go_ = true;
    scheduler_->Close();
    scheduler_.reset();
    backend_.reset();
  }

  std::shared_ptr<Work> Begin(const std::string& tenant, Work::Cost cost, Work::Step step) {
    auto work = std::make_shared<Work>(scheduler_, tenant, device_->id(), std::move(step));
    work->cost = cost;
    EXPECT_TRUE(work->Start(0).ok());
    return work;
  }
  std::shared_ptr<Work> Submit(const std::string& tenant, Work::Cost cost, Work::Step step) {
    auto work = Begin(tenant, cost, std::move(step));
    work->Submit();
    return work;
  }
  /// Runs until it is let go.
  std::shared_ptr<Work> SubmitLong(const std::string& tenant) {
    return Submit(tenant, kLong, [this](Work&, WorkerSlot& slot) {
      EXPECT_FALSE(slot.express);
      ++long_running_;
      EXPECT_TRUE(WaitFor([this] { return let_go_.load(); }));
      --long_running_;
      return Job::Next::kEnded;
    });
  }
  template <typename Condition>
  static bool WaitFor(Condition condition) {
    const auto give_up = Clock::now() + 30s;
    while (!condition() && Clock::now() < give_up) std::this_thread::sleep_for(100us);
    return condition();
  }
  double SecondsOf(const std::string& tenant) {
    const TenantSeconds seconds = scheduler_->tenant_seconds(device_->id());
    for (const auto& [name, use] : seconds.named()) {
      if (name == tenant) return use.seconds;
    }
    return 0;
  }

  std::unique_ptr<Device> device_;
  std::optional<GpuBackend> backend_;
  std::shared_ptr<Scheduler> scheduler_;
  std::atomic<bool> let_go_ = false;
  std::atomic<int> long_running_ = 0;
};

TEST_F(GpuWorkerSlots, AShortOnePassesLongOnesWhichNeverHaveAllSlots) {
  std::vector<std::shared_ptr<Work>> all;
  for (int i = 0; i < 3 * kSlots; ++i) all.push_back(SubmitLong("huge"));
  ASSERT_TRUE(WaitFor([this] { return long_running_ == kSlots - 1; }));
  for (const char* const tenant : {"tiny", "huge"}) {
    const auto tiny = Submit(tenant, kShort, [](Work&, WorkerSlot& slot) {
      EXPECT_TRUE(slot.express);
      return Job::Next::kEnded;
    });
    EXPECT_TRUE(tiny->end->Wait().ok()) << tenant;
  }
  EXPECT_EQ(long_running_, kSlots - 1);
  const SlotWaits waits = scheduler_->slot_waits(device_->id());
  EXPECT_EQ(waits.beside, 2);
  EXPECT_EQ(waits.turns[0], 2);
  EXPECT_EQ(waits.turns[1], kSlots - 1);
  let_go_ = true;
  for (const auto& work : all) EXPECT_TRUE(work->end->Wait().ok());
}

TEST_F(GpuWorkerSlots, AShortOneRunsInTheThreadThatHasNothingElseToDo) {
  std::thread::id ran;
  const auto runs_here = [&](const std::string& tenant, Work::Cost cost) {
    ran = {};
    const auto work = Begin(tenant, cost, [&](Work&, WorkerSlot& slot) {
      EXPECT_NE(slot.gpu, nullptr);
      ran = std::this_thread::get_id();
      return Job::Next::kEnded;
    });
    work->SubmitHere();
    const bool ended = work->end->ended();
    EXPECT_TRUE(work->end->Wait().ok());
    return ended && ran == std::this_thread::get_id();
  };
  // Until the worker slots' threads are there, nobody knows that they have nothing to do.
  ASSERT_TRUE(WaitFor([&] { return runs_here("t", kShort); }));
  const int64_t turns = scheduler_->slot_waits(device_->id()).turns[0];
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(runs_here("t", kShort)) << i;
  EXPECT_EQ(scheduler_->slot_waits(device_->id()).turns[0], turns + 100);
  EXPECT_GT(SecondsOf("t"), 0);
  // Others would wait for it, in the place of the thread that brings more of them.
  EXPECT_FALSE(runs_here("t", kLong));
  // Beside long ones there is the express slot, for who has had no more than they, and with that
  // taken nothing.
  const auto huge = SubmitLong("huge");
  ASSERT_TRUE(WaitFor([this] { return long_running_ == 1; }));
  EXPECT_TRUE(WaitFor([&] { return runs_here("u", kShort); }));
  std::atomic<bool> express = false, done = false;
  const auto first = Submit("v", kShort, [&](Work&, WorkerSlot&) {
    express = true;
    EXPECT_TRUE(WaitFor([&] { return done.load(); }));
    return Job::Next::kEnded;
  });
  ASSERT_TRUE(WaitFor([&] { return express.load(); }));
  const auto second = Begin("w", kShort, [](Work&, WorkerSlot&) { return Job::Next::kEnded; });
  second->SubmitHere();
  EXPECT_FALSE(second->end->ended());
  done = let_go_ = true;
  for (const auto& work : {first, second, huge}) EXPECT_TRUE(work->end->Wait().ok());
}

TEST_F(GpuWorkerSlots, ASlotIsOneThreadsAtATime) {
  // Whoever runs it, a worker slot runs one job at a time, and all that are asked for run.
  std::mutex mutex;
  std::set<const void*> busy;
  std::atomic<int> ran = 0;
  const Work::Step step = [&](Work&, WorkerSlot& slot) {
    {
      const std::lock_guard lock(mutex);
      EXPECT_TRUE(busy.insert(slot.gpu).second) << "two jobs in one worker slot";
    }
    std::this_thread::sleep_for(20us);
    const std::lock_guard lock(mutex);
    busy.erase(slot.gpu);
    ++ran;
    return Job::Next::kEnded;
  };
  constexpr int kThreads = 8, kOfEach = 300;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int j = 0; j < kOfEach; ++j) {
        const auto work = Begin("tenant " + std::to_string(i % 3), kShort, step);
        if (i % 2 == 0) {
          work->SubmitHere();
        } else {
          work->Submit();
        }
        EXPECT_TRUE(work->end->Wait().ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ran, kThreads * kOfEach);
}

TEST_F(GpuWorkerSlots, ClosingWaitsForWhatRunsInAnothersThread) {
  std::atomic<bool> runs = false, left = false;
  const auto work = Begin("t", kShort, [&](Work&, WorkerSlot&) {
    runs = true;
    EXPECT_TRUE(WaitFor([this] { return let_go_.load(); }));
    left = true;
    return Job::Next::kEnded;
  });
  std::thread submits([&] { work->SubmitHere(); });
  ASSERT_TRUE(WaitFor([&] { return runs.load(); }));
  std::thread lets_go([this] {
    std::this_thread::sleep_for(20ms);
    let_go_ = true;
  });
  scheduler_->Close();
  EXPECT_TRUE(left);
  submits.join();
  lets_go.join();
  EXPECT_TRUE(work->end->ended());
}

TEST_F(GpuWorkerSlots, ShortOnesHaveAllSlotsWhileNoLongOneRuns) {
  std::atomic<int> running = 0;
  std::vector<std::shared_ptr<Work>> all;
  for (int i = 0; i < kSlots; ++i) {
    all.push_back(Submit("t", kShort, [&](Work&, WorkerSlot&) {
      ++running;
      EXPECT_TRUE(WaitFor([&] { return running == kSlots; })) << "they do not run at once";
      return Job::Next::kEnded;
    }));
  }
  for (const auto& work : all) EXPECT_TRUE(work->end->Wait().ok());
}

TEST_F(GpuWorkerSlots, OtherSlotsLeaveShortOnesToTheExpressOneBesideALongOne) {
  const auto huge = SubmitLong("huge");
  ASSERT_TRUE(WaitFor([this] { return long_running_ == 1; }));
  std::atomic<int> running = 0, most = 0;
  std::vector<std::shared_ptr<Work>> all;
  for (int i = 0; i < 20; ++i) {
    all.push_back(Submit("tiny", kShort, [&](Work&, WorkerSlot& slot) {
      EXPECT_TRUE(slot.express);
      most = std::max(most.load(), ++running);
      std::this_thread::yield();
      --running;
      return Job::Next::kEnded;
    }));
  }
  for (const auto& work : all) EXPECT_TRUE(work->end->Wait().ok());
  EXPECT_EQ(most, 1);
  let_go_ = true;
  EXPECT_TRUE(huge->end->Wait().ok());
}

TEST_F(GpuWorkerSlots, WhoHadMoreThanALongOneWaitsForIt) {
  const auto huge = SubmitLong("huge");
  ASSERT_TRUE(WaitFor([this] { return long_running_ == 1; }));
  scheduler_->Charge(device_->id(), "greedy", 3600);
  const auto end = [](Work&, WorkerSlot&) { return Job::Next::kEnded; };
  const auto greedy = Submit("greedy", kShort, end);
  const auto modest = Submit("modest", kShort, end);
  EXPECT_TRUE(modest->end->Wait().ok());
  EXPECT_FALSE(greedy->end->ended());
  let_go_ = true;
  EXPECT_TRUE(huge->end->Wait().ok());
  EXPECT_TRUE(greedy->end->Wait().ok());
}

TEST_F(GpuWorkerSlots, ManyWithLongOnesHaveNoMoreThanTheirPartsBesideManyWithShortOnes) {
  constexpr int kEach = 4;
  std::atomic<bool> over = false;
  std::vector<std::shared_ptr<Work>> all;
  std::vector<std::string> tenants;
  const auto always = [&](const std::string& tenant, Work::Cost cost, Clock::duration takes) {
    tenants.push_back(tenant);
    // One that comes back is as good as another that waits.
    for (int i = 0; i < 2; ++i) {
      all.push_back(Submit(tenant, cost, [&over, takes](Work& self, WorkerSlot&) {
        std::this_thread::sleep_for(takes);
        // The host has its part of a turn, so that the time of the express slot's kernels alone
        // gives those with short ones no more than that worker slot's part.
        self.AddBusy(static_cast<uint64_t>(std::chrono::nanoseconds(takes).count()) / 5);
        return over ? Job::Next::kEnded : Job::Next::kAgain;
      }));
    }
  };
  for (int i = 0; i < kEach; ++i) {
    always("short " + std::to_string(i), kShort, 100us);
    always("long " + std::to_string(i), {.next_seconds = 0.003, .is_long = true}, 3ms);
  }
  const auto all_of = [&] {
    double sum = 0;
    for (const std::string& tenant : tenants) sum += SecondsOf(tenant);
    return sum;
  };
  ASSERT_TRUE(WaitFor([&] { return all_of() > 2; }));
  const double share = all_of() / (2 * kEach);
  for (const std::string& tenant : tenants) {
    EXPECT_GT(SecondsOf(tenant), 0.8 * share) << tenant;  // half of it, were they passed over
    EXPECT_LT(SecondsOf(tenant), 1.2 * share) << tenant;
  }
  over = true;
  for (const auto& work : all) EXPECT_TRUE(work->end->Wait().ok());
}

TEST_F(GpuWorkerSlots, WhatRunsAtOnceSharesTheTimeOfTheGpu) {
  const auto begun = Clock::now();
  std::vector<std::shared_ptr<Work>> all;
  for (const char* const tenant : {"a", "b", "c"}) all.push_back(SubmitLong(tenant));
  ASSERT_TRUE(WaitFor([this] { return long_running_ == 3; }));
  std::this_thread::sleep_for(30ms);  // which each of them had a third of
  let_go_ = true;
  for (const auto& work : all) EXPECT_TRUE(work->end->Wait().ok());
  const std::chrono::duration<double> all_of_it = Clock::now() - begun;
  const double used = SecondsOf("a") + SecondsOf("b") + SecondsOf("c");
  EXPECT_LE(used, all_of_it.count());
  EXPECT_GE(used, 0.030);
  EXPECT_GE(SecondsOf("a"), 0.010);
}

TEST_F(GpuWorkerSlots, AnExpressOneAnswersForTheTimeOfItsKernels) {
  const auto begun = Clock::now();
  const auto huge = SubmitLong("huge");
  ASSERT_TRUE(WaitFor([this] { return long_running_ == 1; }));
  std::atomic<double> kernel = 0;
  const auto tiny = Submit("tiny", kShort, [&](Work& self, WorkerSlot&) {
    const auto from = Clock::now();
    std::this_thread::sleep_for(20ms);
    const auto took = std::chrono::nanoseconds(Clock::now() - from).count();
    self.AddBusy(static_cast<uint64_t>(took));
    kernel = 1e-9 * static_cast<double>(took);
    return Job::Next::kEnded;
  });
  EXPECT_TRUE(tiny->end->Wait().ok());
  EXPECT_GE(SecondsOf("tiny"), kernel * 0.999) << "half of it would be the long one's";
  let_go_ = true;
  EXPECT_TRUE(huge->end->Wait().ok());
  const std::chrono::duration<double> all_of_it = Clock::now() - begun;
  EXPECT_LE(SecondsOf("tiny") + SecondsOf("huge"), all_of_it.count() * 1.001);
}

TEST_F(GpuWorkerSlots, WhatAnExpressOneHadIsNotTakenFromWhoCameAfterwards) {
  std::atomic<bool> comes = false, runs = false;
  const auto before = Submit("before", kLong, [&](Work&, WorkerSlot&) {
    comes = true;
    EXPECT_TRUE(WaitFor([&] { return runs.load(); }));
    return Job::Next::kEnded;
  });
  ASSERT_TRUE(WaitFor([&] { return comes.load(); }));
  const auto tiny = Submit("tiny", kShort, [](Work& self, WorkerSlot&) {
    std::this_thread::sleep_for(100ms);
    self.AddBusy(100'000'000);
    return Job::Next::kEnded;
  });
  EXPECT_TRUE(tiny->end->Wait().ok());
  const auto after = Submit("after", kLong, [&](Work&, WorkerSlot&) {
    runs = true;
    EXPECT_TRUE(WaitFor([this] { return let_go_.load(); }));
    return Job::Next::kEnded;
  });
  EXPECT_TRUE(before->end->Wait().ok());
  const auto alone = Clock::now();
  std::this_thread::sleep_for(60ms);
  const std::chrono::duration<double> had = Clock::now() - alone;
  let_go_ = true;
  EXPECT_TRUE(after->end->Wait().ok());
  EXPECT_GE(SecondsOf("after"), had.count() * 0.6) << "half of the short one's would be missing";
}

TEST_F(GpuWorkerSlots, AShortOneGoesBesideATrialThatHasTheGpuToItself) {
  std::atomic<bool> over = false;
  std::atomic<int> steps = 0;
  // Without it no trial would have to take a turn.
  const auto busy = Submit("busy", {}, [&](Work&, WorkerSlot&) {
    ++steps;
    std::this_thread::yield();
    return over ? Job::Next::kEnded : Job::Next::kAgain;
  });
  const absl::Status ran = scheduler_->RunIdle(
      device_->id(),
      [&](WorkerSlot& slot) {
        EXPECT_EQ(slot.gpu, &device_->trial_slot());
        const int before = steps;
        const auto tiny =
            Submit("tiny", kShort, [](Work&, WorkerSlot&) { return Job::Next::kEnded; });
        EXPECT_TRUE(tiny->end->Wait().ok()) << "it waits for the trial's end";
        EXPECT_EQ(steps, before) << "of others nobody knows what they take";
        return true;
      },
      nullptr, Clock::now() + 30s);
  EXPECT_TRUE(ran.ok()) << ran;
  over = true;
  EXPECT_TRUE(busy->end->Wait().ok());
}

TEST_F(GpuWorkerSlots, AShortOneDoesNotStandBackFromATrialThatWaitsForALongOne) {
  const auto huge = SubmitLong("huge");
  ASSERT_TRUE(WaitFor([this] { return long_running_ == 1; }));
  std::atomic<bool> tried = false;
  std::thread trial([&] {
    EXPECT_TRUE(scheduler_
                    ->RunIdle(
                        device_->id(), [&](WorkerSlot&) { return tried = true; }, nullptr,
                        Clock::now() + 60s)
                    .ok());
  });
  // It is due after a tenth of a second, and then again and again.
  const auto enough = Clock::now() + 400ms;
  while (Clock::now() < enough) {
    const auto tiny = Submit("tiny", kShort, [](Work&, WorkerSlot&) { return Job::Next::kEnded; });
    EXPECT_TRUE(tiny->end->Wait().ok());
  }
  EXPECT_FALSE(tried);
  let_go_ = true;
  EXPECT_TRUE(huge->end->Wait().ok());
  trial.join();
  EXPECT_TRUE(tried);
}

}  // namespace
}  // namespace sparsed::engine
