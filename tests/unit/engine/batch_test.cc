// SpMM calls that run as one: each gets what it would have got alone, and nobody's end is
// another's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/execution/executor.h"
#include "kernels/half.h"
#include "kernels/reference/reference.h"
#include "tests/unit/engine/calls.h"
#include "tests/unit/engine/modules.h"

namespace sparsed::engine {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// How many requests were in each batch, and what kernels did.
class Batches final : public Observer {
 public:
  void OnBatch(std::string_view device, int64_t requests) override {
    EXPECT_EQ(device, "cpu");
    std::lock_guard lock(mutex_);
    sizes_.push_back(requests);
  }
  void OnKernelRun(const KernelRun& run) override {
    std::lock_guard lock(mutex_);
    ++runs_;
    flops_ += run.flops;
  }
  std::vector<int64_t> sizes() {
    std::lock_guard lock(mutex_);
    return sizes_;
  }
  int64_t runs() {
    std::lock_guard lock(mutex_);
    return runs_;
  }
  double flops() {
    std::lock_guard lock(mutex_);
    return flops_;
  }

 private:
  std::mutex mutex_;
  std::vector<int64_t> sizes_;
  int64_t runs_ = 0;
  double flops_ = 0;
};

/// Has the executor's only worker slot, so that calls wait, until it is let go.
class SlotHolder {
 public:
  explicit SlotHolder(Executor& executor)
      : thread_([&executor, this] {
          EXPECT_TRUE(executor
                          .RunIdle(
                              DeviceId{}, [this](WorkerSlot&) { Hold(); }, nullptr)
                          .ok());
        }) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return held_; });
  }
  ~SlotHolder() { LetGo(); }
  void LetGo() {
    {
      std::lock_guard lock(mutex_);
      over_ = true;
      changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Hold() {
    std::unique_lock lock(mutex_);
    held_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return over_; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false, over_ = false;
  std::thread thread_;
};

struct Begun {
  std::shared_ptr<Call> call;
  std::shared_ptr<Result> result;
};

/// One worker slot, which joins what waits for it.
struct Service {
  explicit Service(std::chrono::microseconds wait = 1us) {
    modules.catalog.on_published = [](auto&&...) {};
    modules.catalog.on_pattern_gone = [](const std::shared_ptr<Pattern>&) {};
    executor = std::make_unique<Executor>(
        ExecutorOptions{.slots = 1, .threads_per_slot = 2, .batch_wait = wait}, modules.catalog,
        modules.dense, modules.budget, batches);
  }

  /// A K-column product with an operand of ones times `scale`, begun and fed.
  Begun Begin(const std::string& matrix, int64_t rows, int64_t k, float scale = 1,
              const std::function<void(SpmmSpec&)>& adjust = {}) {
    SpmmSpec spec;
    spec.tenant = "t";
    spec.matrix = matrix;
    spec.b.shape = DenseShape{rows, k, 0, ElementType::kF32};
    if (adjust) adjust(spec);
    Begun begun{nullptr, std::make_shared<Result>()};
    absl::StatusOr<std::shared_ptr<Call>> call = executor->Begin(spec, begun.result);
    EXPECT_TRUE(call.ok()) << call.status();
    if (!call.ok()) return begun;
    begun.call = *call;
    if (spec.b.held.empty()) {
      EXPECT_TRUE(FeedAndCommit(**call, 0, std::vector<float>(rows * k, scale)).ok());
    }
    return begun;
  }
  Begun Submit(const std::string& matrix, int64_t rows, int64_t k, float scale = 1,
               const std::function<void(SpmmSpec&)>& adjust = {}) {
    Begun begun = Begin(matrix, rows, k, scale, adjust);
    begun.call->Submit();
    return begun;
  }

  Modules modules;
  Batches batches;
  std::unique_ptr<Executor> executor;
};

/// n x n, ones on the diagonal: C is B.
test::Pattern Diagonal(int64_t n) { return test::Band(n, 0); }
absl::StatusOr<MatrixLease> SendOnes(Service& service, const std::string& name, int64_t n,
                                     const std::string& tenant = "t") {
  const test::Pattern s = Diagonal(n);
  UploadHeader header = HeaderOf(name, s);
  header.tenant = tenant;
  return Send(service.modules.catalog, header, s.row_offsets, s.column_indices,
              std::vector<float>(n, 1));
}
std::vector<float> All(int64_t n, int64_t k, float value) {
  return std::vector<float>(n * k, value);
}

/// Calls of all kinds on one matrix of T, many of them at once: results are exact, as numbers are
/// small integers.
template <typename T>
class Products {
 public:
  Products(const test::Pattern& s, uint64_t seed) : s_(s), random_(seed) {
    values_ = test::SmallIntegers<T>(s.nnz(), 3);
    UploadHeader header = HeaderOf("s", s);
    header.type = ElementTypeOf<T>();
    EXPECT_TRUE(
        Send(service_.modules.catalog, header, s.row_offsets, s.column_indices, values_).ok());
  }

  void Run() {
    std::vector<Asked> all;
    {
      const SlotHolder holder(*service_.executor);
      for (int i = 0; i < 24; ++i) all.push_back(Ask("d" + std::to_string(i)));
      for (Asked& asked : all) asked.begun.call->Submit();
    }
    int64_t joined = 0;
    for (Asked& asked : all) {
      const absl::Status status = asked.begun.result->Wait();
      ASSERT_TRUE(status.ok()) << status;
      joined += asked.begun.result->end().batch > 1 ? 1 : 0;
      Check(asked);
    }
    const std::vector<int64_t> sizes = service_.batches.sizes();
    int64_t in_batches = 0;
    for (const int64_t size : sizes) in_batches += size;
    EXPECT_EQ(in_batches, joined);
    EXPECT_GE(joined, 12) << "hardly any was joined";
    EXPECT_EQ(service_.batches.runs(), 24 - joined + std::ssize(sizes));
    EXPECT_EQ(service_.batches.flops(), flops_);
  }

 private:
  struct Asked {
    Begun begun;
    SpmmSpec spec;
    std::string held;  ///< where the result goes; empty: into the stream
    DenseShape shape;
    std::vector<double> expected;
  };

  int64_t Below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random_); }

  void Hold(const std::string& name, const DenseShape& shape, const std::vector<T>& elements) {
    auto put = service_.modules.dense.BeginPut({"t", name, shape, elements.empty(), false});
    ASSERT_TRUE(put.ok()) << put.status();
    if (!elements.empty()) {
      ASSERT_TRUE(Feed(**put, 0, elements).ok());
    }
    ASSERT_TRUE((*put)->Finish().ok());
  }

  /// `name`: of what it holds, nobody else's.
  Asked Ask(const std::string& name) {
    constexpr ElementType kType = ElementTypeOf<T>();
    constexpr int64_t kWidths[] = {1, 2, 3, 7, 8, 16, 21};
    Asked asked;
    SpmmSpec& spec = asked.spec;
    spec.tenant = "t";
    spec.matrix = "s";
    spec.transpose = Below(2) == 0;
    const int64_t in = spec.transpose ? s_.rows : s_.cols, out = spec.transpose ? s_.cols : s_.rows;
    const int64_t k = kWidths[Below(std::size(kWidths))], ldb = k + Below(3), ldc = k + Below(3);
    const auto b = test::SmallIntegers<T>((in - 1) * ldb + k, 1 + Below(6));
    const DenseShape b_shape{in, k, ldb, kType};
    asked.shape = {out, k, ldc, kType};
    const auto c0 = test::SmallIntegers<T>(asked.shape.elements(), 1 + Below(6));
    if (Below(2) == 0) {
      Hold(name + "b", b_shape, b);
      spec.b.held = name + "b";
    } else {
      spec.b.shape = b_shape;
    }
    if (Below(2) == 0) {
      spec.alpha = 2;
      spec.beta = -1;
      spec.accumulate.emplace();
      spec.accumulate->shape = asked.shape;
      spec.accumulate->stream_array = 1;
    }
    if (Below(2) == 0) {
      asked.held = spec.result.held = name + "c";
      Hold(asked.held, asked.shape, {});
    } else {
      spec.result_leading_dimension = ldc;
    }
    asked.expected.assign(asked.shape.elements(), 0);
    if (spec.beta != 0) asked.expected = Numbers(c0);
    // The reference has no gaps in C.
    std::vector<double> packed(out * k);
    for (int64_t i = 0; i < out * k; ++i) packed[i] = asked.expected[i / k * ldc + i % k];
    reference::Spmm(s_.view(), Numbers(values_).data(), spec.transpose, Numbers(b).data(), ldb, k,
                    spec.alpha, spec.beta, packed.data());
    asked.expected = packed;
    flops_ += 2.0 * static_cast<double>(s_.nnz() * k);
    asked.begun.result = std::make_shared<Result>();
    auto call = service_.executor->Begin(spec, asked.begun.result);
    EXPECT_TRUE(call.ok()) << call.status();
    asked.begun.call = *call;
    const bool streams = spec.b.held.empty();
    EXPECT_TRUE(!streams || FeedAndCommit(**call, 0, b).ok());
    EXPECT_TRUE(spec.beta == 0 || FeedAndCommit(**call, 1, c0).ok());
    return asked;
  }

  void Check(const Asked& asked) {
    std::vector<T> got;
    if (asked.held.empty()) {
      const Result& result = *asked.begun.result;
      got = result.Elements<T>();
    } else {
      got = Elements<T>(service_.modules.dense.Find("t", asked.held).value()->elements->Get());
    }
    ASSERT_EQ(std::ssize(got), asked.shape.elements());
    const int64_t k = asked.shape.cols, ld = asked.shape.leading_dimension;
    const std::vector<double> numbers = Numbers(got);
    for (int64_t i = 0; i < std::ssize(asked.expected); ++i) {
      ASSERT_EQ(numbers[i / k * ld + i % k], asked.expected[i]) << "element " << i;
    }
  }

  static std::vector<double> Numbers(const std::vector<T>& of) { return test::Widened(of); }

  const test::Pattern s_;
  Service service_;
  std::vector<T> values_;
  std::mt19937_64 random_;
  double flops_ = 0;
};

TEST(Batch, ResultsAreThoseOfEachAlone) {
  const std::vector<test::Pattern> patterns = {
      test::Uniform(70, 33, 5, 1), test::FromCoordinates(5, 9, {{1, 8}, {3, 0}, {3, 8}}),
      test::FromCoordinates(1, 1, {{0, 0}}), test::FromCoordinates(40, 3, {}), Diagonal(17)};
  for (size_t i = 0; i < patterns.size(); ++i) {
    SCOPED_TRACE(i);
    Products<float>(patterns[i], i).Run();
    Products<double>(patterns[i], i + 100).Run();
    Products<Float16>(patterns[i], i + 200).Run();
    Products<BFloat16>(patterns[i], i + 300).Run();
  }
}

TEST(Batch, IsOffByDefault) {
  EXPECT_EQ(ExecutorOptions().batch_wait, 0us);
  Service service(0us);
  ASSERT_TRUE(SendOnes(service, "m", 20).ok());
  std::vector<Begun> all;
  {
    const SlotHolder holder(*service.executor);
    for (int i = 0; i < 4; ++i) all.push_back(service.Submit("m", 20, 3));
  }
  for (const Begun& begun : all) {
    EXPECT_TRUE(begun.result->Wait().ok());
    EXPECT_EQ(begun.result->end().batch, 1);
  }
  EXPECT_THAT(service.batches.sizes(), IsEmpty());
}

TEST(Batch, OnlyWhatIsAlikeIsJoined) {
  Service service;
  ASSERT_TRUE(SendOnes(service, "m", 20).ok());
  ASSERT_TRUE(SendOnes(service, "same", 20).ok());  // the pattern, too
  ASSERT_TRUE(SendOnes(service, "m", 20, "u").ok());
  const auto alone = [&](const std::function<void(SpmmSpec&)>& adjust) {
    return service.Submit("m", 20, 4, 2, adjust);
  };
  std::vector<Begun> joined, apart;
  std::optional<Begun> newer;
  {
    const SlotHolder holder(*service.executor);
    joined = {service.Submit("m", 20, 4), service.Submit("m", 20, 4)};
    apart = {service.Submit("same", 20, 4), alone([](SpmmSpec& spec) { spec.tenant = "u"; }),
             alone([](SpmmSpec& spec) { spec.transpose = true; }),
             alone([](SpmmSpec& spec) { spec.alpha = 3; }),
             alone([](SpmmSpec& spec) { spec.allow_tf32 = true; }),
             // Wide ones gain nothing.
             service.Submit("m", 20, 129)};
    // Those that come with their own values.
    apart.push_back(service.Begin("m", 20, 4, 2, [](SpmmSpec& spec) {
      spec.values = OperandSpec{DenseShape{20, 1, 1, ElementType::kF32}, "", 7};
    }));
    ASSERT_TRUE(FeedAndCommit(*apart.back().call, 7, std::vector<float>(20, 1)).ok());
    apart.back().call->Submit();
    // Values that were replaced meanwhile.
    UpdateHeader header;
    header.tenant = "t";
    header.name = "m";
    auto update = service.modules.catalog.BeginUpdate(header);
    ASSERT_TRUE(update.ok()) << update.status();
    ASSERT_TRUE(Feed(**update, 0, std::vector<float>(20, 5)).ok());
    ASSERT_TRUE((*update)->Finish(1).ok());
    newer = service.Submit("m", 20, 4);
  }
  for (const Begun& begun : joined) {
    EXPECT_TRUE(begun.result->Wait().ok());
    EXPECT_EQ(begun.result->Elements<float>(), All(20, 4, 1));
    EXPECT_EQ(begun.result->end().version, 1);
    EXPECT_EQ(begun.result->end().batch, 2);
    EXPECT_GT(begun.result->end().timings.kernel_ns, 0u);
    EXPECT_GT(begun.result->end().timings.queue_ns, 0u);
  }
  for (const Begun& begun : apart) {
    EXPECT_TRUE(begun.result->Wait().ok());
    EXPECT_EQ(begun.result->end().batch, 1);
  }
  EXPECT_TRUE(newer->result->Wait().ok());
  EXPECT_EQ(newer->result->Elements<float>(), All(20, 4, 5));
  EXPECT_EQ(newer->result->end().version, 2);
  EXPECT_THAT(service.batches.sizes(), ElementsAre(2));
}

TEST(Batch, IsOfABoundedWidth) {
  Service service;
  ASSERT_TRUE(SendOnes(service, "m", 20).ok());
  std::vector<Begun> all;
  {
    const SlotHolder holder(*service.executor);
    for (int i = 0; i < 5; ++i) all.push_back(service.Submit("m", 20, 100, static_cast<float>(i)));
  }
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(all[i].result->Wait().ok());
    EXPECT_EQ(all[i].result->Elements<float>(), All(20, 100, static_cast<float>(i)));
  }
  EXPECT_THAT(service.batches.sizes(), ElementsAre(2, 2));
}

TEST(Batch, ASlotWaitsForOperandsThatAreOnTheirWay) {
  Service service(std::chrono::hours(1));
  ASSERT_TRUE(SendOnes(service, "m", 20).ok());
  std::vector<Begun> all;
  for (int i = 0; i < 6; ++i) all.push_back(service.Begin("m", 20, 3));
  for (const Begun& begun : all) begun.call->Submit();
  for (const Begun& begun : all) EXPECT_TRUE(begun.result->Wait().ok());
  EXPECT_THAT(service.batches.sizes(), ElementsAre(6));
  // And for nothing when it is alone.
  EXPECT_TRUE(service.Submit("m", 20, 3).result->Wait().ok());
}

TEST(Batch, OneThatIsCancelledOrLateLeavesTheOthersAlone) {
  Service service;
  ASSERT_TRUE(SendOnes(service, "m", 20).ok());
  std::vector<Begun> all;
  {
    const SlotHolder holder(*service.executor);
    for (int i = 0; i < 6; ++i) {
      all.push_back(service.Submit("m", 20, 3, static_cast<float>(i), [&](SpmmSpec& spec) {
        if (i == 3) spec.timeout_ns = 1'000'000;
      }));
    }
    all[0].call->Cancel();
    EXPECT_TRUE(absl::IsDeadlineExceeded(all[3].result->Wait()));
  }
  EXPECT_TRUE(absl::IsCancelled(all[0].result->Wait()));
  for (const int i : {1, 2, 4, 5}) {
    EXPECT_TRUE(all[i].result->Wait().ok());
    EXPECT_EQ(all[i].result->Elements<float>(), All(20, 3, static_cast<float>(i)));
  }
  EXPECT_THAT(service.batches.sizes(), ElementsAre(4));
}

/// Cancelled by its sink as the batch's first result is handed back, when all is computed.
class Cancels final : public ResultSink {
 public:
  explicit Cancels(std::function<void()> then) : then_(std::move(then)) {}
  void OnBegin(CallBegin) override { then_(); }
  void OnArray(uint32_t, uint64_t, Array) override {}
  void OnBlock(ResultBlock) override {}
  void OnEnd(CallEnd) override {}

 private:
  const std::function<void()> then_;
};

TEST(Batch, ACancellationWhileResultsGoOutIsOfThatOneAlone) {
  Service service;
  ASSERT_TRUE(SendOnes(service, "m", 20).ok());
  Begun second, third;
  {
    const SlotHolder holder(*service.executor);
    SpmmSpec spec;
    spec.tenant = "t";
    spec.matrix = "m";
    spec.b.shape = DenseShape{20, 3, 0, ElementType::kF32};
    auto first =
        service.executor->Begin(spec, std::make_shared<Cancels>([&] { second.call->Cancel(); }));
    ASSERT_TRUE(first.ok()) << first.status();
    ASSERT_TRUE(FeedAndCommit(**first, 0, All(20, 3, 1)).ok());
    second = service.Begin("m", 20, 3, 2);
    third = service.Begin("m", 20, 3, 3);
    (*first)->Submit();
    second.call->Submit();
    third.call->Submit();
  }
  second.result->Wait().IgnoreError();  // done already, or cancelled
  EXPECT_TRUE(third.result->Wait().ok());
  EXPECT_EQ(third.result->Elements<float>(), All(20, 3, 3));
  EXPECT_THAT(service.batches.sizes(), ElementsAre(3));
}

TEST(Batch, WithoutMemoryForItEachRunsByItself) {
  Service service;
  ASSERT_TRUE(SendOnes(service, "m", 1000).ok());
  std::vector<Begun> all;
  {
    const SlotHolder holder(*service.executor);
    for (int i = 0; i < 4; ++i) all.push_back(service.Submit("m", 1000, 30, static_cast<float>(i)));
    // For one result, and not for all of them side by side.
    service.modules.budget.SetRefuse(
        [](size_t bytes, MemoryUse) { return bytes > 2 * 1000 * 30 * sizeof(float); });
  }
  for (int i = 0; i < 4; ++i) {
    const absl::Status status = all[i].result->Wait();
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(all[i].result->Elements<float>(), All(1000, 30, static_cast<float>(i)));
    EXPECT_EQ(all[i].result->end().batch, 1);
  }
  EXPECT_THAT(service.batches.sizes(), IsEmpty());
}

TEST(Batch, RunsByThePlanOfItsWholeWidth) {
  Service service;
  const auto matrix = SendOnes(service, "m", 20);
  ASSERT_TRUE(matrix.ok());
  std::atomic<int64_t> asked_for = 0;
  service.executor->on_unknown_signature = [&](const MatrixLease&, const Problem& problem) {
    asked_for = problem.k;
  };
  ActivePlan wide;
  wide.plan.signature = SignatureOf({Operation::kSpmm, false, ElementType::kF32, 64});
  wide.plan.pipeline = kCsr;
  wide.plan.kernel = "cpu.csr.row_balanced";
  (*matrix)->pattern()->plans().Replace(std::make_shared<const ActivePlan>(wide));
  const auto run = [&](int count) {
    std::vector<Begun> all;
    {
      const SlotHolder holder(*service.executor);
      for (int i = 0; i < count; ++i) all.push_back(service.Submit("m", 20, 16));
    }
    for (const Begun& begun : all) EXPECT_TRUE(begun.result->Wait().ok());
    return all.front().result->plan;
  };
  EXPECT_EQ(run(4), "csr / cpu.csr.row_balanced");
  EXPECT_EQ(asked_for, 0) << "there is a plan for 64 columns";
  run(8);
  EXPECT_EQ(asked_for, 128) << "it is tried for what it is used for";
}

}  // namespace
}  // namespace sparsed::engine
