// Tenants on a worker slot: who goes next, who gives way, and what is refused.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/execution/cpu_backend.h"
#include "engine/execution/scheduler.h"
#include "tests/unit/engine/slot_work.h"

namespace sparsed::engine {
namespace {

using namespace std::chrono_literals;

class FairSlotsTest : public testing::Test {
 protected:
  FairSlotsTest() {
    scheduler_ =
        std::make_shared<Scheduler>(ExecutorOptions{.slots = 1}, std::vector<Backend*>{&cpu_});
    scheduler_->Open();
  }
  ~FairSlotsTest() override { scheduler_->Close(); }

  std::shared_ptr<Work> Make(const std::string& tenant, Work::Step step, Work::Cost cost = {},
                             int priority = 0, std::chrono::nanoseconds timeout = 0ns) {
    auto work = std::make_shared<Work>(scheduler_, tenant, DeviceId{}, std::move(step));
    work->cost = cost;
    work->priority = priority;
    EXPECT_TRUE(work->Start(timeout.count()).ok());
    return work;
  }
  Work::Step Writes(const std::string& what) {
    return [this, what](Work&, WorkerSlot&) {
      Write(what);
      return Job::Next::kEnded;
    };
  }
  void Write(const std::string& what) {
    const std::lock_guard lock(mutex_);
    written_ += what;
  }
  std::string written() {
    const std::lock_guard lock(mutex_);
    return written_;
  }
  /// Has the only worker slot until it is let go.
  std::shared_ptr<Work> TakeSlot(const std::string& tenant) {
    auto work = Make(tenant, [this](Work&, WorkerSlot&) {
      taken_ = true;
      while (!let_go_) std::this_thread::sleep_for(1ms);
      return Job::Next::kEnded;
    });
    work->Submit();
    while (!taken_) std::this_thread::sleep_for(1ms);
    return work;
  }

  Budget budget_{1 << 30, 1 << 30};
  CpuBackend cpu_{budget_, 1, 1};
  std::shared_ptr<Scheduler> scheduler_;
  std::mutex mutex_;
  std::string written_;
  std::atomic<bool> taken_ = false, let_go_ = false;
};

TEST_F(FairSlotsTest, WhoHadTheSlotForLongWaitsForTheOthers) {
  const auto first = TakeSlot("long");
  std::vector<std::shared_ptr<Work>> all;
  for (int i = 0; i < 3; ++i) all.push_back(Make("long", Writes("l")));
  for (int i = 0; i < 3; ++i) all.push_back(Make("short", Writes("s")));
  for (const auto& work : all) work->Submit();
  std::this_thread::sleep_for(20ms);  // all of which "long" has to answer for
  let_go_ = true;
  for (const auto& work : all) EXPECT_TRUE(work->end->Wait().ok());
  EXPECT_EQ(written(), "ssslll");
  EXPECT_TRUE(first->end->Wait().ok());
}

TEST_F(FairSlotsTest, ThePriorityCountsWithinATenant) {
  const auto first = TakeSlot("t");
  std::vector<std::shared_ptr<Work>> all;
  for (const int priority : {0, 2, 1, 2}) {
    all.push_back(Make("t", Writes(std::to_string(priority)), {}, priority));
  }
  for (const auto& work : all) work->Submit();
  let_go_ = true;
  for (const auto& work : all) EXPECT_TRUE(work->end->Wait().ok());
  EXPECT_EQ(written(), "2210");
}

TEST_F(FairSlotsTest, ALongOneGivesWayToAnotherTenantAndToShortOnesOfItsOwn) {
  for (const char* const tenant : {"other", "t"}) {
    std::atomic<bool> runs = false;
    const auto huge = Make("t",
                           [&](Work& self, WorkerSlot&) {
                             runs = true;
                             const auto give_up = std::chrono::steady_clock::now() + 20s;
                             while (std::chrono::steady_clock::now() < give_up) {
                               if (*self.wanted() && self.GivesWay()) return Job::Next::kAgain;
                               if (written().ends_with("!")) return Job::Next::kEnded;
                             }
                             ADD_FAILURE() << "nobody was let before it";
                             return Job::Next::kEnded;
                           },
                           {.is_long = true});
    huge->Submit();
    while (!runs) std::this_thread::sleep_for(1ms);
    const auto tiny = Make(tenant, Writes("!"));
    tiny->Submit();
    EXPECT_TRUE(tiny->end->Wait().ok());
    EXPECT_TRUE(huge->end->Wait().ok());
    written_.clear();
  }
}

TEST_F(FairSlotsTest, LongOnesOfATenantEndInTheirOrder) {
  const auto first = TakeSlot("t");
  std::vector<std::shared_ptr<Work>> all;
  for (const char* const name : {"a", "b"}) {
    all.push_back(Make("t",
                       [&, name, left = 3](Work&, WorkerSlot&) mutable {
                         Write(name);
                         return --left > 0 ? Job::Next::kAgain : Job::Next::kEnded;
                       },
                       {.is_long = true}));
  }
  for (const auto& work : all) work->Submit();
  let_go_ = true;
  for (const auto& work : all) EXPECT_TRUE(work->end->Wait().ok());
  EXPECT_EQ(written(), "aaabbb");
}

TEST_F(FairSlotsTest, WhatCannotEndInTimeIsRefusedAtOnce) {
  const auto first = TakeSlot("t");
  const Work::Cost minute = {.next_seconds = 60, .rest_seconds = 60};
  const auto queued = Make("t", Writes("q"), minute);
  queued->Submit();
  const auto late = Make("t", Writes("late"), {.rest_seconds = 1}, 0, 20s);
  late->Submit();
  const absl::Status refused = late->end->Wait();
  EXPECT_EQ(refused.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(refused.message().find("it would end in"), std::string::npos) << refused;
  // Another tenant's share is not behind that; nor is what has the time, or goes first.
  const auto of_other = Make("other", Writes("o"), {.rest_seconds = 1}, 0, 20s);
  const auto patient = Make("t", Writes("p"), {.rest_seconds = 1}, 0, 1h);
  const auto urgent = Make("t", Writes("u"), {.rest_seconds = 1}, 1, 20s);
  // Without a measurement nobody knows.
  const auto unknown = Make("third", Writes("n"), {.next_seconds = 3600}, 0, 20s);
  for (const auto& work : {of_other, patient, urgent, unknown}) work->Submit();
  let_go_ = true;
  for (const auto& work : {of_other, patient, urgent, unknown, queued, first}) {
    EXPECT_TRUE(work->end->Wait().ok());
  }
  EXPECT_EQ(written().find("late"), std::string::npos);
}

TEST_F(FairSlotsTest, AnIdleDeviceTriesWhatItExpectsToBeTooLong) {
  const auto work = Make("t", Writes("it ran"), {.next_seconds = 60, .rest_seconds = 60}, 0, 20s);
  work->Submit();
  EXPECT_TRUE(work->end->Wait().ok());
}

TEST_F(FairSlotsTest, TenantsSecondsAreCounted) {
  const auto work = Make("t", [](Work&, WorkerSlot&) {
    std::this_thread::sleep_for(5ms);
    return Job::Next::kEnded;
  });
  work->Submit();
  EXPECT_TRUE(work->end->Wait().ok());
  scheduler_->Charge(DeviceId{}, "u", 7);
  scheduler_->Close();
  const TenantSeconds seconds = scheduler_->tenant_seconds(DeviceId{});
  EXPECT_GE(seconds.named().at("t").seconds, 0.005);
  EXPECT_EQ(seconds.named().at("u").seconds, 7);
}

TEST(TenantSecondsTest, ThoseWhoUseMostHaveNamesAndNothingIsLost) {
  TenantSeconds seconds;
  const auto all = [&] {
    double sum = seconds.others();
    for (const auto& [name, use] : seconds.named()) sum += use.seconds;
    return sum;
  };
  double given = 0, others = 0;
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 3000; ++i) {
      const double use = i < 2990 ? 0.001 : 1;  // those who came last use most
      seconds.Add("tenant " + std::to_string(i), use);
      given += use;
      EXPECT_GE(seconds.others(), others);
      others = seconds.others();
    }
  }
  EXPECT_NEAR(all(), given, 1e-6 * given);
  EXPECT_EQ(seconds.named().size(), TenantSeconds::kMostNames);
  for (int i = 2990; i < 3000; ++i) {
    EXPECT_TRUE(seconds.named().contains("tenant " + std::to_string(i))) << i;
  }
}

}  // namespace
}  // namespace sparsed::engine
