// What becomes of requests when the device fails somewhere: on the stand-in, which fails where it
// is told to. A right result or an error, and the server goes on.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/execution/gpu_backend.h"
#include "engine/execution/scheduler.h"
#include "engine/preparation/pattern_job.h"
#include "kernels/pipeline.h"
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

/// An engine with the stand-in and one matrix, 500 x 400.
class FailuresTest : public ::testing::Test {
 protected:
  static constexpr int64_t kRows = 500, kCols = 400, kK = 40;

  void SetUp() override { Open(EngineOptions()); }
  void TearDown() override {
    Heal();
    engine_.reset();
  }

  void Open(EngineOptions options) {
    options.host_memory_bytes = options.preparation_memory_bytes = int64_t{256} << 20;
    // The least that the start's measurement is content with.
    options.gpu = DeviceOptions{.memory_bytes = int64_t{520} << 20};
    options.preparation.enabled = false;
    engine_.reset();
    engine_ = Engine::Open(options, observer_).value();
    UploadHeader header = HeaderOf("s", pattern_);
    header.sort = true;  // columns are sent in descending order: the caller's
    ASSERT_TRUE(Send(engine_->catalog(), header, pattern_.row_offsets,
                     Mirrored(pattern_.column_indices), values_)
                    .ok());
  }

  Device& device() { return *engine_->gpus().front(); }

  void EvictAll() {
    while (device().residency().Evict(int64_t{1} << 40, /*at_once=*/false)) {
    }
  }

  /// Leaves the device so many bytes, besides what is resident.
  Buffer LeaveOnDevice(int64_t bytes) {
    DeviceBudget& budget = device().budget();
    // The last request's memory goes after its end was told.
    EXPECT_TRUE(Eventually([&] { return budget.used(MemoryUse::kRequests) < 10'000; }))
        << budget.used(MemoryUse::kRequests);
    return budget.SpareSource(MemoryUse::kPreparation)
        .Allocate(budget.limit() - budget.used() - bytes)
        .value();
  }

  SpmmSpec Accumulate() const {
    SpmmSpec spec;
    spec.tenant = std::string("t");
    spec.matrix = std::string("s");
    spec.alpha = 0.5;
    spec.beta = -2;
    spec.b.shape = DenseShape{kCols, kK, kK, ElementType::kF32};
    spec.accumulate.emplace();
    spec.accumulate->shape = DenseShape{kRows, kK, kK, ElementType::kF32};
    spec.accumulate->stream_array = 1;
    return spec;
  }

  /// Without `data`, of zeros.
  void Hold(const std::string& name, DenseShape shape, const std::vector<float>& data) {
    auto put = engine_->dense().BeginPut({"t", name, shape, /*zeros=*/data.empty(), false});
    ASSERT_TRUE(put.ok() && Feed(**put, 0, data).ok() && (*put)->Finish().ok());
  }

  /// Sends both operands and waits for the end.
  absl::Status Run(const SpmmSpec& spec, const std::shared_ptr<Result>& result) {
    absl::StatusOr<std::shared_ptr<Call>> call = engine_->executor().Begin(spec, result);
    if (!call.ok()) return call.status();
    absl::Status fed = spec.b.held.empty() ? FeedAndCommit(**call, 0, b_) : absl::OkStatus();
    if (fed.ok() && spec.accumulate && spec.accumulate->held.empty()) {
      fed = FeedAndCommit(**call, 1, c_);
    }
    if (fed.ok()) {
      (*call)->Submit();
    } else {
      (*call)->Fail(fed);
    }
    return result->Wait();
  }

  std::vector<double> Expected() const {
    std::vector<double> expected(c_.begin(), c_.end());
    const std::vector<double> values = CanonicalValues();
    const std::vector<double> b(b_.begin(), b_.end());
    reference::Spmm(pattern_.view(), values.data(), false, b.data(), kK, kK, 0.5, -2,
                    expected.data());
    return expected;
  }

  std::vector<double> CanonicalValues() const {
    const std::vector<float> values = Mirrored(values_);
    return {values.begin(), values.end()};
  }

  static void ExpectNear(const std::vector<float>& got, const std::vector<double>& expected) {
    ASSERT_EQ(got.size(), expected.size());
    double worst = 0;
    for (size_t i = 0; i < got.size(); ++i) worst = std::max(worst, std::abs(got[i] - expected[i]));
    EXPECT_LE(worst, 1e-4);
  }

  /// Of one element a nonzero: each row the other way round.
  template <typename T>
  std::vector<T> Mirrored(std::vector<T> elements) const {
    for (int64_t row = 0; row < kRows; ++row) {
      std::reverse(elements.begin() + pattern_.row_offsets[row],
                   elements.begin() + pattern_.row_offsets[row + 1]);
    }
    return elements;
  }

  /// Told of every kernel that ran.
  class Listener final : public Observer {
   public:
    void OnKernelRun(const KernelRun& run) override {
      if (on_kernel) on_kernel(run);
    }
    std::function<void(const KernelRun&)> on_kernel;
  };

  Listener observer_;
  const test::Pattern pattern_ = test::Uniform(kRows, kCols, 6, 12);
  const std::vector<float> values_ = FloatsOf(pattern_);  ///< in the caller's order
  const std::vector<float> b_ = Floats(kCols * kK, 5), c_ = Floats(kRows * kK, 6);
  std::unique_ptr<Engine> engine_;

 private:
  static std::vector<float> Floats(int64_t count, uint64_t seed) {
    const std::vector<double> values = test::RandomValues(count, seed);
    return {values.begin(), values.end()};
  }
};

TEST_F(FailuresTest, WhereverTheDeviceFailsACIsScaledOnce) {
  const std::vector<double> expected = Expected();
  for (const bool tight : {false, true}) {
    // S, operands and result need some 250 KB, column blocks less.
    const Buffer hog = tight ? LeaveOnDevice(200'000) : Buffer();
    const auto healthy = std::make_shared<Result>();
    ASSERT_TRUE(Run(Accumulate(), healthy).ok());
    EXPECT_EQ(healthy->plan.find("blocks of") != std::string::npos, tight) << healthy->plan;
    ExpectNear(healthy->Elements<float>(), expected);
    for (const absl::Status& failure :
         {absl::ResourceExhaustedError("told to"), absl::UnimplementedError("told to"),
          absl::InternalError("told to")}) {
      for (const Step step : cuda::stand_in::kSteps) {
        // Until a request no longer comes as far; events are asked often.
        for (int first = 0; first < 40; ++first) {
          SCOPED_TRACE(testing::Message()
                       << failure << ", step " << static_cast<int>(step) << ", call " << first
                       << (tight ? ", in column blocks" : ""));
          Fail(step, first, 1, failure);
          const auto result = std::make_shared<Result>();
          const absl::Status status = Run(Accumulate(), result);
          const bool failed = Failed(step) > 0;
          Heal();
          if (status.ok()) {
            ExpectNear(result->Elements<float>(), expected);
          } else {
            EXPECT_EQ(status.code(), failure.code()) << status;
          }
          if (!failed) break;
        }
      }
    }
    EXPECT_TRUE(device().status().ok()) << device().status();
    const auto after = std::make_shared<Result>();
    EXPECT_TRUE(Run(Accumulate(), after).ok());
    ExpectNear(after->Elements<float>(), expected);
  }
}

TEST_F(FailuresTest, WithoutRoomOnTheGpuAProductThatAccumulatesStillRuns) {
  for (const Step step : {Step::kAllocate, Step::kKernel, Step::kKernelEnd}) {
    Fail(step, 0, 1'000'000, absl::ResourceExhaustedError("told to"));
    const auto result = std::make_shared<Result>();
    EXPECT_TRUE(Run(Accumulate(), result).ok());
    EXPECT_NE(result->plan.find("cpu."), std::string::npos) << result->plan;
    ExpectNear(result->Elements<float>(), Expected());
    Heal();
  }
}

TEST_F(FailuresTest, NothingIsComputedTwiceWhereAnSddmmFindsNoRoom) {
  const int64_t nnz = pattern_.nnz(), ld = 3;
  Hold("a", {kRows, kK, kK, ElementType::kF32}, c_);
  Hold("b", {kCols, kK, kK, ElementType::kF32}, b_);
  std::vector<double> expected(nnz);
  const std::vector<double> values = CanonicalValues();
  const std::vector<double> a(c_.begin(), c_.end()), b(b_.begin(), b_.end());
  reference::Sddmm(pattern_.view(), values.data(), a.data(), kK, b.data(), kK, kK, expected.data());
  expected = Mirrored(expected);
  SddmmSpec spec;
  spec.tenant = std::string("t");
  spec.matrix = std::string("s");
  spec.a.held = std::string("a");
  spec.b.held = std::string("b");
  spec.result.held = std::string("o");
  std::atomic<int> kernels = 0;
  observer_.on_kernel = [&](const KernelRun&) { ++kernels; };
  bool on_device = false;
  for (int first = 0; !on_device; ++first) {
    SCOPED_TRACE(testing::Message() << "allocation " << first);
    ASSERT_LT(first, 20);
    EvictAll();
    Hold(fmt::format("o{}", first), {nnz, 1, ld, ElementType::kF32}, {});
    spec.result.held = fmt::format("o{}", first);
    kernels = 0;
    Fail(Step::kAllocate, first, 1, absl::ResourceExhaustedError("told to"));
    const auto result = std::make_shared<Result>();
    auto call = engine_->executor().Begin(spec, result);
    ASSERT_TRUE(call.ok()) << call.status();
    (*call)->Submit();
    const absl::Status end = result->Wait();
    on_device = Failed(Step::kAllocate) == 0;
    Heal();
    ASSERT_TRUE(end.ok()) << end;
    EXPECT_EQ(kernels, 1) << "by " << result->plan;
    if (first == 0 || on_device) {
      EXPECT_EQ(result->plan.find(" / cuda.") != std::string::npos, on_device) << result->plan;
    }
    const HeldDenseLease held = engine_->dense().Find("t", spec.result.held).value();
    const Array elements = held->elements->Get().value();
    ASSERT_EQ(elements.length, held->shape.elements());
    for (int64_t i = 0; i < nnz; ++i) {
      ASSERT_NEAR(elements.As<float>()[i * ld], expected[i], 1e-4) << i;
    }
  }
}

TEST_F(FailuresTest, ALayoutWithoutRoomIsNotTriedByEachRequest) {
  const MatrixLease matrix = engine_->catalog().Find("t", "s").value();
  Pattern& pattern = *matrix->pattern();
  BuildContext context;
  context.memory = &HeapMemory();
  BuiltLayout built = BuildLayout(ParsePipeline("dcsr").value(), pattern_.view(), context).value();
  auto layout = std::make_shared<Layout>(std::move(built.layout));
  // Larger than what there will be on the device, which plain CSR is not.
  layout->arrays.push_back(
      AllocateArray(HeapMemory(), "large", ElementType::kF32, kCols * kK * 10).value());
  pattern.AddLayout(layout, 0);
  ActivePlan active;
  active.plan.signature =
      SignatureOf({Operation::kSpmm, false, ElementType::kF32, kK, DeviceKind::kCuda});
  active.plan.pipeline = layout->pipeline;
  active.plan.kernel = "cuda.dcsr.rows";
  active.layout = pattern.FindLayout(layout->pipeline);
  ASSERT_NE(active.layout, nullptr);
  pattern.plans().Replace(std::make_shared<const ActivePlan>(active));
  Hold("b", {kCols, kK, kK, ElementType::kF32}, b_);
  SpmmSpec spec = Accumulate();
  spec.b = OperandSpec{{}, "b", 0};
  const auto run = [&] {
    const auto result = std::make_shared<Result>();
    const absl::Status end = Run(spec, result);
    EXPECT_TRUE(end.ok()) << end;
    ExpectNear(result->Elements<float>(), Expected());
    return result->plan;
  };
  // Room for the operands and the result twice, of 64 and 80 KB, and plain CSR.
  Buffer hog = LeaveOnDevice(600'000);
  // Operands in the stream are on the device already: the first goes on without them there.
  EXPECT_EQ(run(), "csr / cuda.csr.rows, in blocks of 20 columns");
  const int64_t evictions = device().residency().evictions();
  EXPECT_EQ(run(), "csr / cuda.csr.rows");
  EXPECT_EQ(device().residency().evictions(), evictions) << "it was tried again";
  hog = Buffer();
  EXPECT_EQ(run(), "csr / cuda.csr.rows") << "it may be tried again after a while";
  // Who makes it anew is not held to that.
  pattern.DropLayout(layout->pipeline);
  pattern.AddLayout(layout, 0);
  active.layout = pattern.FindLayout(layout->pipeline);
  pattern.plans().Replace(std::make_shared<const ActivePlan>(active));
  EXPECT_EQ(run(), "dcsr / cuda.dcsr.rows");
  // Without such operands the same request falls back at once.
  pattern.DropLayout(layout->pipeline);
  pattern.AddLayout(std::make_shared<Layout>(*layout), 0);
  active.layout = pattern.FindLayout(layout->pipeline);
  pattern.plans().Replace(std::make_shared<const ActivePlan>(active));
  Hold("c", {kRows, kK, kK, ElementType::kF32}, c_);
  spec.accumulate = OperandSpec{{}, "c", 0};
  EvictAll();
  hog = LeaveOnDevice(600'000);
  EXPECT_EQ(run(), "csr / cuda.csr.rows");
}

TEST_F(FailuresTest, ValuesThatComeWithTheRequestAreOrderedOnTheDevice) {
  // "s" has an order of the caller's, "n" has not; their pattern is the same.
  ASSERT_TRUE(SendMatrix(engine_->catalog(), "n", pattern_).ok());
  Pattern& pattern = *engine_->catalog().Find("t", "n").value()->pattern();
  BuildContext context;
  context.memory = &HeapMemory();
  BuiltLayout built =
      BuildLayout(ParsePipeline("lsh_cluster(force)").value(), pattern_.view(), context).value();
  ASSERT_NE(built.layout.Find(kValueSource), nullptr);
  ActivePlan active;
  active.plan.signature =
      SignatureOf({Operation::kSpmm, false, ElementType::kF32, kK, DeviceKind::kCuda});
  active.plan.pipeline = built.layout.pipeline;
  active.plan.kernel = "cuda.csr.rows";
  const std::vector<float> values = FloatsOf(pattern_, 77);
  Hold("w", {pattern_.nnz(), 1, 1, ElementType::kF32}, values);
  const std::vector<double> b(b_.begin(), b_.end());
  for (const bool planned : {false, true}) {
    if (planned) {
      pattern.AddLayout(std::make_shared<const Layout>(built.layout), 0);
      active.layout = pattern.FindLayout(active.plan.pipeline);
      pattern.plans().Replace(std::make_shared<const ActivePlan>(active));
    }
    for (const std::string matrix : {"n", "s"}) {
      const std::vector<float> canonical = matrix == "n" ? values : Mirrored(values);
      const std::vector<double> wide(canonical.begin(), canonical.end());
      std::vector<double> expected(kRows * kK);
      reference::Spmm(pattern_.view(), wide.data(), false, b.data(), kK, kK, 1, 0, expected.data());
      for (const bool held : {false, true}) {
        // At first with all the room, then with enough for column blocks alone, then on the CPU.
        for (const int64_t room : {int64_t{1} << 28, int64_t{150'000}, int64_t{0}}) {
          SCOPED_TRACE(testing::Message() << matrix << ", held " << held << ", room " << room
                                          << ", planned " << planned);
          EvictAll();
          const Buffer hog = LeaveOnDevice(room);
          SpmmSpec spec;
          spec.tenant = std::string("t");
          spec.matrix = matrix;
          spec.b.shape = DenseShape{kCols, kK, kK, ElementType::kF32};
          spec.values.emplace();
          if (held) {
            spec.values->held = std::string("w");
          } else {
            spec.values->shape = DenseShape{pattern_.nnz(), 1, 1, ElementType::kF32};
            spec.values->stream_array = 1;
          }
          const auto result = std::make_shared<Result>();
          auto call = engine_->executor().Begin(spec, result);
          ASSERT_TRUE(call.ok()) << call.status();
          ASSERT_TRUE(FeedAndCommit(**call, 0, b_).ok());
          ASSERT_TRUE(held || FeedAndCommit(**call, 1, values).ok());
          (*call)->Submit();
          call->reset();
          const absl::Status end = result->Wait();
          ASSERT_TRUE(end.ok()) << end;
          EXPECT_EQ(result->plan.find(" / cuda.") != std::string::npos, room > 0) << result->plan;
          EXPECT_EQ(result->plan.find("blocks of") != std::string::npos, room == 150'000)
              << result->plan;
          ExpectNear(result->Elements<float>(), expected);
        }
      }
    }
  }
}

TEST_F(FailuresTest, ABlockIsNobodyElsesWhileItsCopyMayRun) {
  const Buffer to = device().budget().Source(MemoryUse::kRequests).Allocate(64).value();
  std::byte* const destination = Buffer(to).mutable_data();
  // What cannot be marked, or asked for, may still be on its way.
  for (const Step step : {Step::kCreateEvent, Step::kRecord, Step::kAskEvent}) {
    SCOPED_TRACE(static_cast<int>(step));
    Heal();
    ASSERT_TRUE(device().DrainPieces().ok());
    Fail(step, 0, 1'000'000, absl::InternalError("told to"));
    std::set<const std::byte*> seen;
    for (StagingBlock block = device().TakePieceBlock(64); block;
         block = device().TakePieceBlock(64)) {
      EXPECT_TRUE(seen.insert(block.data()).second) << "handed out again";
      device().SendPiece(destination, std::move(block), 64).IgnoreError();
      ASSERT_LT(seen.size(), 1000u);
    }
    EXPECT_GE(seen.size(), 15u);
    EXPECT_TRUE(device().status().ok()) << device().status();
    // A later event tells, or who waits.
    Heal();
    ASSERT_TRUE(device().DrainPieces().ok());
    EXPECT_TRUE(device().TakePieceBlock(64));
  }
}

TEST_F(FailuresTest, MemoryIsNobodyElsesWhileAPieceMayBeOnItsWay) {
  DeviceBudget& budget = device().budget();
  const auto used = [&] { return budget.used(MemoryUse::kRequests); };
  ASSERT_EQ(used(), 0);
  {
    const auto result = std::make_shared<Result>();
    auto call = engine_->executor().Begin(Accumulate(), result);
    ASSERT_TRUE(call.ok()) << call.status();
    // The operand's memory is taken with its first bytes, which takes the device.
    absl::StatusOr<ClaimedBytes> to = (*call)->Claim(0, 0, sizeof(float));
    ASSERT_TRUE(to.ok()) << to.status();
    std::memcpy(to->data(), b_.data(), sizeof(float));
    Fail(Step::kRecord, 0, 1'000'000, absl::InternalError("told to"));
    Fail(Step::kSynchronize, 0, 1'000'000, absl::InternalError("told to"));
    EXPECT_FALSE(to->Commit().ok());
    (*call)->Fail(absl::InternalError("told to"));
    EXPECT_FALSE(result->Wait().ok());
  }
  EXPECT_GT(used(), 0) << "its operand's memory is free while a copy into it may run";
  Heal();
  // Somebody looks now and then.
  EXPECT_TRUE(Eventually([&] { return used() == 0; }));
  EXPECT_TRUE(device().status().ok()) << device().status();
}

TEST_F(FailuresTest, ACopyThatFailsMidwayIsWaitedFor) {
  Hold("b", {kCols, kK, kK, ElementType::kF32}, b_);
  Hold("c", {kRows, kK, kK, ElementType::kF32}, c_);
  SpmmSpec spec = Accumulate();
  spec.b = OperandSpec{{}, "b", 0};
  spec.accumulate = OperandSpec{{}, "c", 0};
  const auto run = [&] {
    const auto result = std::make_shared<Result>();
    auto call = engine_->executor().Begin(spec, result);
    if (!call.ok()) return call.status();
    (*call)->Submit();
    return result->Wait();
  };
  ASSERT_TRUE(run().ok());
  // All is on the device: C's old value is copied first. Waits go well and are counted.
  Fail(Step::kSynchronize, 0, 1'000'000, absl::OkStatus());
  Fail(Step::kCopy, 0, 1, absl::InternalError("told to"));
  EXPECT_TRUE(absl::IsInternal(run()));
  EXPECT_EQ(Failed(Step::kSynchronize), 2) << "for the result's memory, and for the copy";
}

TEST_F(FailuresTest, ADeviceThatCannotBeWaitedForIsLost) {
  const Buffer to = device().budget().Source(MemoryUse::kRequests).Allocate(64).value();
  const Array some = AllocateArray(HeapMemory(), "some", ElementType::kF32, 16).value();
  Fail(Step::kSynchronize, 0, 1'000'000, absl::InternalError("told to"));
  const absl::Status copied = device().CopyIn(device().slots().front().stream,
                                              Buffer(to).mutable_data(), some.buffer.data(), 64);
  EXPECT_TRUE(absl::IsInternal(copied) || absl::IsUnavailable(copied)) << copied;
  Heal();
  EXPECT_TRUE(absl::IsUnavailable(device().status())) << device().status();
  // Nothing of it is used again, and nobody waits for it.
  EXPECT_FALSE(device().TakePieceBlock(64));
  EXPECT_TRUE(
      absl::IsUnavailable(device().budget().Source(MemoryUse::kRequests).Allocate(64).status()));
  EXPECT_TRUE(absl::IsUnavailable(device().ToHost(some, HeapMemory()).status()));
  EXPECT_TRUE(absl::IsUnavailable(Run(Accumulate(), std::make_shared<Result>())));
}

TEST_F(FailuresTest, AnErrorThatIsToldOnceDoesNotLoseTheDevice) {
  for (const Step step : {Step::kSynchronize, Step::kKernel, Step::kCopy}) {
    Fail(step, 0, 1, absl::InternalError("told to"));
    Run(Accumulate(), std::make_shared<Result>()).IgnoreError();
    EXPECT_EQ(Failed(step), 1);
    Heal();
    EXPECT_TRUE(device().status().ok()) << device().status();
    const auto result = std::make_shared<Result>();
    EXPECT_TRUE(Run(Accumulate(), result).ok());
    ExpectNear(result->Elements<float>(), Expected());
  }
}

TEST_F(FailuresTest, WhoFeedsACallNeverWaitsForTheDevice) {
  // Memory that must be evicted, more pieces than there are blocks, an end before all have come.
  ASSERT_TRUE(Run(Accumulate(), std::make_shared<Result>()).ok());
  const Buffer hog = LeaveOnDevice(kCols * kK * 4);
  const int64_t evictions = device().residency().evictions();
  for (const bool whole : {false, true}) {
    const auto result = std::make_shared<Result>();
    const cuda::stand_in::Waits before = cuda::stand_in::WaitsOfThisThread();
    auto call = engine_->executor().Begin(Accumulate(), result);
    ASSERT_TRUE(call.ok()) << call.status();
    const auto* bytes = reinterpret_cast<const std::byte*>(b_.data());
    cuda::stand_in::Waits waits;
    for (size_t at = 0; at < b_.size() * sizeof(float); at += 512) {
      const size_t size = std::min<size_t>(512, b_.size() * sizeof(float) - at);
      auto to = (*call)->Claim(0, at, size);
      ASSERT_TRUE(to.ok()) << to.status();
      if (at == 0) {  // its memory was taken now
        waits = cuda::stand_in::WaitsOfThisThread();
        EXPECT_EQ(waits.trims, before.trims);
      }
      std::memcpy(to->data(), bytes + at, size);
      ASSERT_TRUE(to->Commit().ok());
    }
    if (whole) {
      ASSERT_TRUE(FeedAndCommit(**call, 1, c_).ok());
      (*call)->Submit();
    } else {
      (*call)->Cancel();
    }
    const absl::Status end = result->Wait();
    call->reset();
    EXPECT_TRUE(cuda::stand_in::WaitsOfThisThread() == waits);
    EXPECT_EQ(end.ok(), whole) << end;
    if (whole) ExpectNear(result->Elements<float>(), Expected());
  }
  EXPECT_GT(device().residency().evictions(), evictions);
}

TEST_F(FailuresTest, SeveralPiecesAreOutAtOnce) {
  for (const bool whole : {true, false}) {
    const auto result = std::make_shared<Result>();
    auto call = engine_->executor().Begin(Accumulate(), result);
    ASSERT_TRUE(call.ok()) << call.status();
    const auto* bytes = reinterpret_cast<const std::byte*>(b_.data());
    const size_t size = b_.size() * sizeof(float), part = size / 7 + 1;
    std::vector<ClaimedBytes> claimed;
    for (size_t at = 0; at < size; at += part) {
      auto to = (*call)->Claim(0, at, std::min(part, size - at));
      ASSERT_TRUE(to.ok()) << to.status();
      claimed.push_back(*std::move(to));
    }
    // From the last to the first, as several threads might.
    for (size_t i = claimed.size(); i-- > 0;) {
      const size_t at = i * part;
      std::memcpy(claimed[i].data(), bytes + at, std::min(part, size - at));
      if (i == 0 && !whole) break;
      ASSERT_TRUE(claimed[i].Commit().ok());
    }
    ASSERT_TRUE(FeedAndCommit(**call, 1, c_).ok());
    EXPECT_EQ((*call)->complete(), whole);
    if (whole) {
      (*call)->Submit();
      ASSERT_TRUE(result->Wait().ok());
      ExpectNear(result->Elements<float>(), Expected());
    } else {
      (*call)->Cancel();
      EXPECT_FALSE(result->Wait().ok());
    }
  }
}

TEST_F(FailuresTest, PiecesThatWaitOnTheHostAreCounted) {
  std::vector<StagingBlock> taken;
  for (StagingBlock block = device().TakePieceBlock(1); block; block = device().TakePieceBlock(1)) {
    taken.push_back(std::move(block));
  }
  const auto result = std::make_shared<Result>();
  auto call = engine_->executor().Begin(Accumulate(), result);
  ASSERT_TRUE(call.ok()) << call.status();
  const auto* bytes = reinterpret_cast<const std::byte*>(b_.data());
  constexpr size_t kTiny = 1000;
  for (size_t at = 0; at < kTiny; ++at) {
    auto to = (*call)->Claim(0, at, 1);
    ASSERT_TRUE(to.ok()) << to.status();
    *to->data() = bytes[at];
    ASSERT_TRUE(to->Commit().ok());
    EXPECT_EQ((*call)->counted(), (at + 1) * 257);
  }
  const size_t rest = b_.size() * sizeof(float) - kTiny;
  auto to = (*call)->Claim(0, kTiny, rest);
  ASSERT_TRUE(to.ok()) << to.status();
  std::memcpy(to->data(), bytes + kTiny, rest);
  ASSERT_TRUE(to->Commit().ok());
  EXPECT_EQ((*call)->counted(), kTiny * 257 + rest + 256);
  ASSERT_TRUE(FeedAndCommit(**call, 1, c_).ok());
  (*call)->Submit();
  EXPECT_TRUE(result->Wait().ok());
  ExpectNear(result->Elements<float>(), Expected());
}

TEST_F(FailuresTest, MoreMemoryThanACardHasIsNoLimit) {
  EngineOptions options;
  options.gpu = DeviceOptions{.memory_bytes = int64_t{1} << 50};
  options.gpu_required = false;
  const absl::Status opened = Engine::Open(options, observer_).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(opened)) << opened;
  EXPECT_TRUE(opened.message().find("its memory limit of 1125899906842624 bytes is more than") !=
              opened.message().npos)
      << opened;
}

TEST_F(FailuresTest, ALostCardTakesOnlyItsOwnRequests) {
  EngineOptions options;
  options.gpu_ordinals = {0, 1};
  Open(options);
  ASSERT_EQ(engine_->gpus().size(), 2U);
  const DenseShape shape{kCols, kK, kK, ElementType::kF32};
  Hold("b", shape, b_);
  Hold("c", {kRows, kK, kK, ElementType::kF32}, {});
  SpmmSpec to_held;
  to_held.tenant = std::string("t");
  to_held.matrix = std::string("s");
  to_held.b.held = std::string("b");
  to_held.result.held = std::string("c");
  ASSERT_TRUE(Run(to_held, std::make_shared<Result>()).ok());
  const HeldDenseLease c = engine_->dense().Find("t", "c").value();
  const auto only_there = [&](const std::unique_ptr<Device>& gpu) {
    return gpu->residency().PresenceOf(c->elements) == Residency::Presence::kOnly;
  };
  const auto lost = std::ranges::find_if(engine_->gpus(), only_there);
  ASSERT_NE(lost, engine_->gpus().end());

  // It goes where c is, which fails for ever.
  Fail(Step::kKernel, 0, 1, absl::UnavailableError("an illegal memory access"));
  const absl::Status ended = Run(to_held, std::make_shared<Result>());
  EXPECT_TRUE(absl::IsUnavailable(ended)) << ended;
  Heal();
  EXPECT_FALSE((*lost)->status().ok());
  int unavailable = 0;
  for (const DeviceFacts& facts : engine_->devices()) unavailable += !facts.unavailable.empty();
  EXPECT_EQ(unavailable, 1);

  for (int i = 0; i < 5; ++i) {
    const auto result = std::make_shared<Result>();
    SpmmSpec streamed = Accumulate();
    const absl::Status served = Run(streamed, result);
    ASSERT_TRUE(served.ok()) << served;
    ExpectNear(result->Elements<float>(), Expected());
  }
  // What was on it alone is gone, and nobody else with it.
  SpmmSpec of_lost = Accumulate();
  of_lost.accumulate->held = std::string("c");
  of_lost.accumulate->shape.reset();
  const absl::Status gone = Run(of_lost, std::make_shared<Result>());
  EXPECT_TRUE(absl::IsDataLoss(gone)) << gone;
  EXPECT_TRUE(Run(to_held, std::make_shared<Result>()).ok()) << "it is written again";
  for (const auto& gpu : engine_->gpus()) EXPECT_EQ(gpu->status().ok(), gpu != *lost);
}

TEST_F(FailuresTest, PlansOfAnotherModelAreTriedAgain) {
  const TemporaryDirectory directory;
  EngineOptions options;
  options.data_dir = directory.path();
  options.host_memory_bytes = options.preparation_memory_bytes = int64_t{256} << 20;
  options.gpu = DeviceOptions{.memory_bytes = int64_t{520} << 20};
  const auto ready = [&] {
    const MatrixLease matrix = engine_->catalog().Find("t", "m").value();
    return matrix->pattern()->progress().status().state == PreparationState::kReady &&
           engine_->preparation().pending() == 0;
  };
  engine_.reset();
  engine_ = Engine::Open(options, observer_).value();
  const test::Pattern m = test::Uniform(3000, 3000, 8, 3);
  ASSERT_TRUE(SendMatrix(engine_->catalog(), "m", m).ok());
  ASSERT_TRUE(Eventually(ready));
  engine_.reset();
  {
    const auto store = OpenStore(PosixFileSystem(), directory.path()).value();
    std::vector<MeasurementRecord> measurements = store->Load().value().measurements;
    ASSERT_FALSE(measurements.empty());
    for (MeasurementRecord& record : measurements) {
      record.model = "another card";
      record.median_ms = 1e6;
    }
    ASSERT_TRUE(store->PutMeasurements(measurements).ok());
  }
  engine_ = Engine::Open(options, observer_).value();
  const MatrixLease matrix = engine_->catalog().Find("t", "m").value();
  // A busy machine may have what it chose tried once more.
  EXPECT_TRUE(Eventually([&] {
    return ready() &&
           std::ranges::none_of(matrix->pattern()->plans().List(),
                                [](const auto& active) { return active->plan.provisional; });
  }));
  const std::vector<Measurement> known = matrix->pattern()->trials().measurements();
  ASSERT_FALSE(known.empty());
  for (const Measurement& measurement : known) {
    EXPECT_EQ(measurement.model, engine_->executor().model(DeviceKind::kCuda));
    EXPECT_LT(measurement.median_ms, 1e6) << "measured here";
  }
  for (const auto& active : matrix->pattern()->plans().List()) {
    EXPECT_FALSE(active->plan.provisional) << active->plan.reason;
  }
}

TEST(RestoredMeasurements, OfAnotherModelAreLeftOut) {
  const auto pattern = std::make_shared<Pattern>("p", 1, 1, 1, nullptr);
  StoreContents contents;
  const auto add = [&](const char* signature, const char* kernel, const char* model) {
    MeasurementRecord record = {"p", signature, "csr", kernel, "cuda:0", 32, 1.5, 3, 1};
    record.model = model;
    contents.measurements.push_back(record);
  };
  add("spmm f32 k<=32 cuda", "a", "other");
  add("spmm f32 k<=64 cuda", "b", "here");
  add("spmm f32 k<=64 cuda", "c", "other");
  add("spmm f32 k<=128 cuda", "d", "");  // an older program's
  add("spgemm f32 cuda", "e", "other");
  const std::string here = "here";
  auto foreign = RestoreMeasurements(contents, {{"p", pattern}},
                                     [&](DeviceKind) -> const std::string& { return here; });
  std::set<std::string> signatures, kernels;
  for (const ProblemSignature& c : foreign["p"]) signatures.insert(ToString(c));
  for (const Measurement& m : pattern->trials().measurements()) kernels.insert(m.kernel);
  EXPECT_EQ(signatures, std::set<std::string>({"spmm f32 k<=32 cuda"}))
      << "nothing else is known of it; of a product nothing is asked before it is wanted";
  EXPECT_EQ(kernels, std::set<std::string>({"b", "d"}));
}

class DeviceJob final : public Job {
 public:
  using Step = std::function<Next()>;
  DeviceJob(std::shared_ptr<Scheduler> scheduler, std::shared_ptr<ResultSink> sink, Step step)
      : Job(std::move(scheduler), "t", std::move(sink), DeviceId{DeviceKind::kCuda, 0}),
        step_(std::move(step)) {}
  absl::StatusOr<ClaimedBytes> Claim(uint32_t, uint64_t, uint64_t) override {
    return absl::InvalidArgumentError("it has no operands");
  }
  bool complete() const override { return true; }

 private:
  Next Run(WorkerSlot&, absl::Status*) override { return step_(); }
  void Drop() override {}
  const Step step_;
};

TEST_F(FailuresTest, ATrialHasABusyDeviceToItself) {
  GpuBackend backend(device());
  const auto scheduler =
      std::make_shared<Scheduler>(ExecutorOptions(), std::vector<Backend*>{&backend});
  scheduler->Open();
  std::atomic<int> running = 0, turns = 0;
  constexpr int kTurns = 3;
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  std::vector<std::shared_ptr<Result>> results;
  for (int i = 0; i < 5; ++i) {
    results.push_back(std::make_shared<Result>());
    const auto job = std::make_shared<DeviceJob>(scheduler, results.back(), [&] {
      ++running;
      std::this_thread::yield();
      --running;
      const bool over = turns == kTurns || std::chrono::steady_clock::now() > give_up;
      return over ? Job::Next::kEnded : Job::Next::kAgain;
    });
    ASSERT_TRUE(job->Start(0).ok());
    job->Submit();
  }
  for (int i = 0; i < kTurns; ++i) {
    const absl::Status ran = scheduler->RunIdle(
        device().id(),
        [&](WorkerSlot& slot) {
          EXPECT_NE(slot.gpu, nullptr);
          EXPECT_EQ(running, 0);
          ++turns;
          return true;
        },
        nullptr, give_up);
    EXPECT_TRUE(ran.ok()) << ran;
  }
  turns = kTurns;
  for (const auto& result : results) EXPECT_TRUE(result->Wait().ok());
  scheduler->Close();
}

TEST_F(FailuresTest, ATrialLetsGoOfADeviceThatALongCallHolds) {
  GpuBackend backend(device());
  const auto scheduler =
      std::make_shared<Scheduler>(ExecutorOptions(), std::vector<Backend*>{&backend});
  scheduler->Open();
  std::atomic<int> steps = 0;
  std::atomic<bool> tried = false;
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const auto late = [&] { return std::chrono::steady_clock::now() > give_up; };
  const auto step = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  const auto run = [&](const std::shared_ptr<Result>& result, DeviceJob::Step of) {
    const auto job = std::make_shared<DeviceJob>(scheduler, result, std::move(of));
    ASSERT_TRUE(job->Start(0).ok());
    job->Submit();
  };
  const auto few = std::make_shared<Result>(), many = std::make_shared<Result>();
  run(few, [&] {
    while (steps < 1000 && !late()) step();  // far more than fit before the trial's turn
    return Job::Next::kEnded;
  });
  run(many, [&] {
    step();
    ++steps;
    return tried || late() ? Job::Next::kEnded : Job::Next::kAgain;
  });
  const absl::Status ran = scheduler->RunIdle(
      device().id(), [&](WorkerSlot&) { return tried = true; }, nullptr, give_up);
  EXPECT_TRUE(ran.ok()) << ran;
  EXPECT_TRUE(few->Wait().ok());
  EXPECT_TRUE(many->Wait().ok());
  EXPECT_FALSE(late());
  EXPECT_GE(steps, 1000);
  scheduler->Close();
}

}  // namespace
}  // namespace sparsed::engine
