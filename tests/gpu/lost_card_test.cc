// What becomes of preparations when the card that they try kernels on is lost: on the stand-in,
// which has two.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "kernels/reference/reference.h"
#include "tests/gpu/stand_in.h"
#include "tests/unit/engine/calls.h"
#include "tests/unit/engine/modules.h"

namespace sparsed::engine {
namespace {

using cuda::stand_in::Fail;
using cuda::stand_in::Failed;
using cuda::stand_in::Heal;
using cuda::stand_in::Step;

constexpr int64_t kK = 16;

class LostCard : public ::testing::Test {
 protected:
  void SetUp() override {
    EngineOptions options;
    options.host_memory_bytes = options.preparation_memory_bytes = int64_t{256} << 20;
    options.gpu = DeviceOptions{.memory_bytes = int64_t{520} << 20};
    options.gpu_ordinals = {0, 1};
    options.preparation.trial_budget_ms = 1;
    engine_ = Engine::Open(options, observer_).value();
    ASSERT_EQ(engine_->gpus().size(), 2U);
  }
  void TearDown() override {
    Heal();
    engine_.reset();
  }

  static std::set<ProblemSignature> Signatures() {
    std::set<ProblemSignature> signatures;
    for (const Operation operation : {Operation::kSpmm, Operation::kSddmm, Operation::kSpgemm}) {
      signatures.insert(SignatureOf({operation, false, ElementType::kF32, kK, DeviceKind::kCuda}));
    }
    return signatures;
  }

  MatrixLease Upload(const std::string& name, const test::Pattern& pattern) {
    UploadHeader header = HeaderOf(name, pattern);
    const std::set<ProblemSignature> signatures = Signatures();
    header.expected = {signatures.begin(), signatures.end()};
    return Send(engine_->catalog(), header, pattern.row_offsets, pattern.column_indices,
                FloatsOf(pattern))
        .value();
  }

  bool Prepared() {
    return Eventually([&] { return engine_->preparation().pending() == 0; });
  }

  int serving() const {
    return static_cast<int>(
        std::ranges::count_if(engine_->gpus(), [](const auto& gpu) { return gpu->status().ok(); }));
  }

  absl::Status Multiply(const std::string& name, const test::Pattern& pattern) {
    std::vector<float> b;
    for (const double x : test::RandomValues(pattern.cols * kK, 5)) {
      b.push_back(static_cast<float>(x));
    }
    SpmmSpec spec;
    spec.tenant = std::string("t");
    spec.matrix = name;
    spec.b.shape = DenseShape{pattern.cols, kK, kK, ElementType::kF32};
    const auto result = std::make_shared<Result>();
    auto call = engine_->executor().Begin(spec, result);
    if (!call.ok()) return call.status();
    if (absl::Status s = FeedAndCommit(**call, 0, b); !s.ok()) return s;
    (*call)->Submit();
    if (absl::Status s = result->Wait(); !s.ok()) return s;
    const std::vector<float> floats = FloatsOf(pattern);
    const std::vector<double> values(floats.begin(), floats.end()), wide(b.begin(), b.end());
    std::vector<double> expected(pattern.rows * kK), magnitudes(expected.size());
    reference::Spmm(pattern.view(), values.data(), false, wide.data(), kK, kK, 1, 0,
                    expected.data(), magnitudes.data());
    ExpectSums<float>(result->Elements<float>(), expected, magnitudes, pattern.cols);
    return absl::OkStatus();
  }

  /// Nothing of the preparations is left.
  void ExpectNothingLeft() {
    EXPECT_TRUE(Eventually([&] { return engine_->executor().in_flight() == 0; }));
    EXPECT_EQ(engine_->budget().used(MemoryUse::kPreparation), 0);
    for (const auto& gpu : engine_->gpus()) {
      EXPECT_EQ(gpu->budget().used(MemoryUse::kPreparation), 0) << gpu->name();
    }
  }

  Observer observer_;
  const test::Pattern first_ = test::Uniform(300, 200, 6, 12),
                      second_ = test::Uniform(250, 250, 5, 3);
  std::unique_ptr<Engine> engine_;
};

class LostCardAt : public LostCard, public ::testing::WithParamInterface<std::pair<Step, int>> {};

TEST_P(LostCardAt, SignaturesAreTriedOnTheOther) {
  const auto [step, number] = GetParam();
  Fail(step, number, 1, absl::UnavailableError("told to"));
  const MatrixLease first = Upload("first", first_), second = Upload("second", second_);
  ASSERT_TRUE(Prepared());
  const int failed = Failed(step);
  Heal();
  EXPECT_EQ(failed, 1) << "the preparations came so far";
  EXPECT_EQ(serving(), 1);
  for (const MatrixLease& matrix : {first, second}) {
    Pattern& pattern = *matrix->pattern();
    const PreparationStatus status = pattern.progress().status();
    EXPECT_EQ(status.state, PreparationState::kReady) << matrix->name() << ": " << status.detail;
    for (const ProblemSignature& c : Signatures()) {
      EXPECT_TRUE(pattern.plans().Find(c).decided()) << matrix->name() << ", " << ToString(c);
    }
  }
  ExpectNothingLeft();
  EXPECT_TRUE(Multiply("first", first_).ok());
  EXPECT_TRUE(Multiply("second", second_).ok());
}

constexpr std::pair<Step, int> kWhere[] = {
    {Step::kAllocate, 0},    {Step::kAllocate, 3},    {Step::kCopy, 0},     {Step::kCopy, 5},
    {Step::kSynchronize, 0}, {Step::kSynchronize, 3}, {Step::kRecord, 1},   {Step::kElapsed, 0},
    {Step::kKernel, 0},      {Step::kKernel, 7},      {Step::kKernelEnd, 2}};
INSTANTIATE_TEST_SUITE_P(Steps, LostCardAt, ::testing::ValuesIn(kWhere));

TEST_F(LostCard, WithoutAnotherThePreparationFailsAndSaysWhy) {
  Fail(Step::kKernel, 0, 1'000'000, absl::UnavailableError("told to"));
  const MatrixLease first = Upload("first", first_), second = Upload("second", second_);
  ASSERT_TRUE(Prepared());
  Heal();
  EXPECT_EQ(serving(), 0);
  for (const MatrixLease& matrix : {first, second}) {
    const PreparationStatus status = matrix->pattern()->progress().status();
    EXPECT_EQ(status.state, PreparationState::kFailed) << matrix->name();
    EXPECT_NE(status.detail.find(" is lost"), std::string::npos) << status.detail;
  }
  ExpectNothingLeft();
  EXPECT_TRUE(absl::IsUnavailable(Multiply("first", first_)));
}

}  // namespace
}  // namespace sparsed::engine
