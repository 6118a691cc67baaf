// Jobs made for the purpose, to look at what worker slots do with them.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "engine/execution/scheduler.h"
#include "kernels/device_id.h"

namespace sparsed::engine {

/// Of a job: what it ended with.
class End final : public ResultSink {
 public:
  void OnBegin(CallBegin) override {}
  void OnArray(uint32_t, uint64_t, Array) override {}
  void OnBlock(ResultBlock) override {}
  void OnEnd(CallEnd end) override {
    const std::lock_guard lock(mutex_);
    status_ = end.status;
    ended_.notify_all();
  }
  absl::Status Wait() {
    std::unique_lock lock(mutex_);
    const auto ended = [this] { return status_.has_value(); };
    EXPECT_TRUE(ended_.wait_for(lock, std::chrono::seconds(30), ended)) << "no OnEnd";
    return status_.value_or(absl::UnknownError("no OnEnd"));
  }
  bool ended() {
    const std::lock_guard lock(mutex_);
    return status_.has_value();
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  std::optional<absl::Status> status_;
};

/// Does a function on its worker slot, at each turn, and is predicted to cost what it is told.
class Work final : public Job {
 public:
  using Step = std::function<Next(Work&, WorkerSlot&)>;
  Work(std::shared_ptr<Scheduler> scheduler, std::string tenant, DeviceId device, Step step)
      : Work(std::move(scheduler), std::move(tenant), device, std::make_shared<End>(),
             std::move(step)) {}
  absl::StatusOr<ClaimedBytes> Claim(uint32_t, uint64_t, uint64_t) override {
    return absl::InvalidArgumentError("it has no operands");
  }
  bool complete() const override { return true; }
  using Job::AddBusy;
  using Job::Cost;
  using Job::GivesWay;
  using Job::wanted;

  Cost cost;
  const std::shared_ptr<End> end;

 private:
  Work(std::shared_ptr<Scheduler> scheduler, std::string tenant, DeviceId device,
       std::shared_ptr<End> of_it, Step step)
      : Job(std::move(scheduler), std::move(tenant), of_it, device),
        end(std::move(of_it)),
        step_(std::move(step)) {}
  Cost Predict() const override { return cost; }
  bool IsOneStep() const override { return true; }
  Next Run(WorkerSlot& slot, absl::Status*) override { return step_(*this, slot); }
  void Drop() override {}
  const Step step_;
};

}  // namespace sparsed::engine
