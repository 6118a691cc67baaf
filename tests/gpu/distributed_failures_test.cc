// What becomes of a request that two cards compute when one of them fails, on the stand-in.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/execution/backend.h"
#include "tests/gpu/several_devices.h"
#include "tests/gpu/stand_in.h"

namespace sparsed::engine {
namespace {

using cuda::stand_in::Fail;
using cuda::stand_in::Heal;
using cuda::stand_in::Step;

class DistributedFailures : public SeveralDevices {
 protected:
  void TearDown() override { Heal(); }
  using SeveralDevices::Multiply;
  absl::Status Multiply() {
    SpmmSpec spec;
    spec.tenant = "t";
    spec.matrix = "s";
    spec.b.held = "x";
    spec.result.held = "y";
    result_ = std::make_shared<Result>();
    auto call = engine_->executor().Begin(spec, result_);
    if (!call.ok()) return call.status();
    (*call)->Submit();
    return result_->Wait();
  }
  HeldDenseLease Find(const std::string& name) { return engine_->dense().Find("t", name).value(); }

  /// Of so many that a product has, one after the other: the result stays as it was.
  void ExpectThatEachKernelEndsIt(int kernels) {
    for (int first = 0; first < kernels; ++first) {
      Fail(Step::kKernel, first, 1, absl::InternalError("told to"));
      const absl::Status ended = Multiply();
      EXPECT_TRUE(absl::IsInternal(ended)) << ended;
      EXPECT_FALSE(result_->began);
      EXPECT_EQ(Find("y")->version, 1U);
      Heal();
    }
  }

  std::shared_ptr<Result> result_;
};

TEST_F(DistributedFailures, OfOnePartEndTheWholeAndLeaveTheResultAsItWas) {
  const std::vector<float> x = Random(1);
  Hold("x", x, Distribution::kColumns);
  Hold("y", {});
  ExpectThatEachKernelEndsIt(2);
  ASSERT_TRUE(Multiply().ok());
  ExpectNear(Elements<float>(Find("y")->elements->Get()), Product({x.begin(), x.end()}));
  EXPECT_EQ(engine_->executor().in_flight(), 0);
}

TEST_F(DistributedFailures, OfRoomLeaveAPartToTheProcessor) {
  const std::vector<float> x = Random(2);
  Hold("x", x, Distribution::kColumns);
  Hold("y", {});
  Fail(Step::kKernel, 0, 1, absl::ResourceExhaustedError("told to"));
  ASSERT_TRUE(Multiply().ok());
  Heal();
  ASSERT_EQ(Find("y")->blocks.size(), 2U);
  ExpectNear(Elements<float>(Find("y")->elements->Get()), Product({x.begin(), x.end()}));
}

TEST_F(DistributedFailures, OfRowsEndTheWholeToo) {
  const std::vector<float> x = Random(4);
  Hold("x", x, Distribution::kRows);
  Hold("y", {});
  // Each of two cards has a kernel for its own rows and one for those that it fetches.
  ExpectThatEachKernelEndsIt(4);
  for (const Step step : {Step::kHold, Step::kCreateEvent}) {
    Fail(step, 0, 1, absl::InternalError("told to"));
    const absl::Status ended = Multiply();
    EXPECT_TRUE(absl::IsInternal(ended)) << ended;
    Heal();
  }
  ASSERT_TRUE(Multiply().ok());
  ExpectNear(Elements<float>(Find("y")->elements->Get()), Product({x.begin(), x.end()}));
  // Without room on a card its part is the processor's.
  Fail(Step::kKernel, 0, 1, absl::ResourceExhaustedError("told to"));
  ASSERT_TRUE(Multiply().ok());
  Heal();
  ASSERT_EQ(Find("y")->blocks.size(), 2U);
  ExpectNear(Elements<float>(Find("y")->elements->Get()), Product({x.begin(), x.end()}));
  // Its block is in host memory, and others fetch from there.
  Hold("z", {});
  Multiply("y", "z");
  ExpectNear(Elements<float>(Find("z")->elements->Get()), Product(Product({x.begin(), x.end()})));
  EXPECT_EQ(engine_->executor().in_flight(), 0);
}

TEST_F(DistributedFailures, OfAnotherGpuAreNotThisOnes) {
  const std::vector<float> x = Random(6);
  Hold("x", x, Distribution::kRows);
  Hold("y", {});
  engine_->gpus()[1]->budget().Close(absl::UnavailableError("told to"));
  Multiply().IgnoreError();
  EXPECT_TRUE(engine_->executor().backend(engine_->gpus()[0]->id()).status().ok())
      << "the block that it could not fetch was another's";
  ASSERT_TRUE(Multiply().ok());
  ExpectNear(Elements<float>(Find("y")->elements->Get()), Product({x.begin(), x.end()}));
}

class CardsApart : public DistributedFailures {
 protected:
  void SetUp() override {
    cuda::stand_in::LetPeersRead(false);
    DistributedFailures::SetUp();
  }
  void TearDown() override {
    cuda::stand_in::LetPeersRead(true);
    DistributedFailures::TearDown();
  }
};

TEST_F(CardsApart, CopyBlocksWhole) {
  const std::vector<float> x = Random(5);
  Hold("x", x, Distribution::kRows);
  Hold("y", {});
  ASSERT_TRUE(Multiply().ok());
  int64_t read = 0;
  for (const auto& gpu : engine_->gpus()) {
    read += gpu->bytes_from_peers();
    for (const HeldDenseLease& held : {Find("x")}) {
      for (const DenseBlock& block : held->blocks) {
        EXPECT_EQ(gpu->residency().PresenceOf(block.elements), Residency::Presence::kCopy);
      }
    }
  }
  EXPECT_LE(read, static_cast<int64_t>(x.size() * sizeof(float))) << "each block once";
  ExpectNear(Elements<float>(Find("y")->elements->Get()), Product({x.begin(), x.end()}));
}

TEST_F(DistributedFailures, OfACopyBetweenCardsGoThroughTheHost) {
  const std::vector<float> x = Random(3);
  Hold("x", x);
  Hold("y", {});
  ASSERT_TRUE(Multiply().ok());
  const HeldDenseLease y = Find("y");
  const std::string computed = observer_.last();
  for (const auto& gpu : engine_->gpus()) {
    if (gpu->name() == computed) continue;
    Fail(Step::kCopy, 0, 1, absl::InternalError("told to"));
    const auto there = gpu->residency().Place(y->elements);
    ASSERT_TRUE(there.ok()) << there.status();
    EXPECT_EQ(cuda::stand_in::Failed(Step::kCopy), 1);
    EXPECT_TRUE(y->elements->resident());
  }
}

TEST_F(DistributedFailures, OfAllStepsAtOnceLeaveThemToOneAfterTheOther) {
  const std::vector<float> x = Random(5);
  Hold("x", x, Distribution::kRows);
  Hold("y", {});
  ChainSpec spec;
  spec.tenant = "t";
  spec.operands.resize(1);
  spec.operands[0].held = "x";
  for (size_t i = 0; i < 3; ++i) {
    SpmmStep step;
    step.matrix = "s";
    step.b = i;
    spec.steps.emplace_back(step);
  }
  spec.results.resize(1);
  spec.results[0].value = 3;
  spec.results[0].place.held = "y";
  const auto run = [&] {
    const auto sink = std::make_shared<Result>();
    auto call = engine_->executor().Begin(spec, sink);
    if (!call.ok()) return call.status();
    (*call)->Submit();
    return sink->Wait();
  };
  ASSERT_TRUE(run().ok());
  std::vector<double> expected(x.begin(), x.end());
  for (int i = 0; i < 3; ++i) expected = Product(expected);
  const std::vector<float> old(kRows * kK);
  for (const int kernel : {0, 3, 7, 11}) {
    Hold("y", old);
    Fail(Step::kKernel, kernel, 1, absl::InternalError("told to"));
    const absl::Status ended = run();
    EXPECT_TRUE(absl::IsInternal(ended)) << ended;
    Heal();
    EXPECT_EQ(Elements<float>(Find("y")->elements->Get()), old);
    // Without room the steps are computed one after the other.
    Fail(Step::kKernel, kernel, 1, absl::ResourceExhaustedError("told to"));
    const absl::Status apart = run();
    EXPECT_TRUE(apart.ok()) << apart;
    EXPECT_EQ(cuda::stand_in::Failed(Step::kKernel), 1);
    Heal();
    ExpectNear(Elements<float>(Find("y")->elements->Get()), expected);
  }
  EXPECT_EQ(engine_->executor().in_flight(), 0);
}

}  // namespace
}  // namespace sparsed::engine
