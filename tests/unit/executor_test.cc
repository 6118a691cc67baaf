// Calls from their start to their end, over a catalog in memory, against kernels/reference.
#include "engine/execution/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <condition_variable>
#include <cstring>
#include <future>
#include <limits>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <thread>
#include <type_traits>
#include <utility>

#include "engine/catalog/catalog.h"
#include "engine/catalog/dense_catalog.h"
#include "engine/execution/derived_patterns.h"
#include "engine/planning/candidates.h"
#include "engine/store/store.h"
#include "kernels/pipeline.h"
#include "kernels/reference/reference.h"
#include "tests/generate.h"

namespace sparsed::engine {
namespace {

using ::testing::HasSubstr;

/// Collects what a call sends; releases blocks at once unless told to hold them.
class Collector final : public ResultSink {
 public:
  void OnBegin(CallBegin begin) override {
    std::lock_guard lock(mutex_);
    begins.push_back(std::move(begin));
  }
  void OnArray(uint32_t, uint64_t, Array array) override {
    std::lock_guard lock(mutex_);
    result = std::move(array);
  }
  void OnBlock(ResultBlock block) override {
    std::lock_guard lock(mutex_);
    block_bytes += block.row_offsets.bytes() + block.column_indices.bytes() + block.values.bytes();
    blocks.push_back(std::move(block));
    changed_.notify_all();
  }
  void OnEnd(CallEnd e) override {
    std::lock_guard lock(mutex_);
    ++ends;
    end = std::move(e);
    changed_.notify_all();
  }
  /// For the first block.
  bool WaitForBytes() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [this] {
      return block_bytes > 0 || ends > 0;
    }) && block_bytes > 0;
  }
  bool Wait(std::chrono::seconds most = std::chrono::seconds(30)) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, most, [this] { return ends > 0; });
  }
  int64_t bytes() {
    std::lock_guard lock(mutex_);
    return block_bytes;
  }

  std::vector<CallBegin> begins;
  Array result;
  std::vector<ResultBlock> blocks;
  int64_t block_bytes = 0;
  CallEnd end;
  int ends = 0;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

struct GeneratedMatrix : test::Pattern {
  std::vector<double> values;
};

GeneratedMatrix UniformMatrix(int64_t rows, int64_t cols, int64_t row_nnz, uint64_t seed) {
  GeneratedMatrix s{test::Uniform(rows, cols, row_nnz, seed), {}};
  s.values = test::RandomValues(s.nnz(), seed);
  return s;
}

class ExecutorTest : public ::testing::Test {
 protected:
  static constexpr int64_t kMemory = int64_t{1} << 30;

  void Upload(const std::string& name, const GeneratedMatrix& s, bool sort = false) {
    UploadHeader header;
    header.tenant = "t";
    header.name = name;
    header.rows = s.rows;
    header.cols = s.cols;
    header.nnz = s.nnz();
    header.sort = sort;
    auto upload = catalog_.BeginUpload(header);
    ASSERT_TRUE(upload.ok()) << upload.status();
    std::vector<float> values(s.values.begin(), s.values.end());
    Feed(**upload, Upload::kRowOffsets, s.row_offsets);
    Feed(**upload, Upload::kColumnIndices, s.column_indices);
    Feed(**upload, Upload::kValues, values);
    auto matrix = (*upload)->Finish(1);
    ASSERT_TRUE(matrix.ok()) << matrix.status();
  }

  template <typename Receiver, typename T>
  static void Feed(Receiver& to, uint32_t array, const std::vector<T>& data) {
    auto claimed = to.Claim(array, 0, data.size() * sizeof(T));
    ASSERT_TRUE(claimed.ok()) << claimed.status();
    const size_t size = data.size() * sizeof(T);
    if constexpr (std::is_base_of_v<Call, Receiver>) {
      if (size > 0) std::memcpy(claimed->data(), data.data(), size);
      ASSERT_TRUE(claimed->Commit().ok());
    } else if (size > 0) {
      std::memcpy(*claimed, data.data(), size);
    }
  }

  std::vector<float> Random(int64_t count) {
    std::vector<float> data(count);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (float& x : data) x = uniform(random_);
    return data;
  }

  static std::vector<double> Wide(const std::vector<float>& data) {
    return {data.begin(), data.end()};
  }

  void Hold(const std::string& name, DenseShape shape, const std::vector<float>& data) {
    auto put = dense_.BeginPut({"t", name, shape, data.empty(), false});
    ASSERT_TRUE(put.ok()) << put.status();
    if (!data.empty()) Feed(**put, 0, data);
    ASSERT_TRUE((*put)->Finish().ok());
  }

  /// Values as the server has them: rounded to f32.
  static std::vector<double> Values(const GeneratedMatrix& s) {
    return Wide(std::vector<float>(s.values.begin(), s.values.end()));
  }

  static void ExpectNear(const std::vector<double>& expected, const std::vector<double>& magnitude,
                         const float* got, int64_t cols, int64_t ld) {
    for (size_t i = 0; i < expected.size(); ++i) {
      const float value = got[i / cols * ld + i % cols];
      ASSERT_NEAR(value, expected[i], 1e-5 * (magnitude[i] + 1e-30)) << "element " << i;
    }
  }

  void SetUp() override {
    catalog_.on_published = [](auto&&...) {};
    catalog_.on_pattern_gone = [](const std::shared_ptr<Pattern>&) {};
    executor_ = std::make_unique<Executor>(ExecutorOptions{.slots = 1, .threads_per_slot = 2},
                                           catalog_, dense_, budget_, observer_);
  }

  /// What kernels did.
  class Runs final : public Observer {
   public:
    void OnKernelRun(const KernelRun& run) override {
      std::lock_guard lock(mutex_);
      flops_ += run.flops;
    }
    double flops() {
      std::lock_guard lock(mutex_);
      return flops_;
    }

   private:
    std::mutex mutex_;
    double flops_ = 0;
  };

  std::mt19937 random_{42};
  std::unique_ptr<Store> store_ = MakeInMemoryStore();
  Budget budget_{kMemory, kMemory};
  Catalog catalog_{*store_, budget_};
  DenseCatalog dense_{*store_, budget_};
  Runs observer_;
  std::unique_ptr<Executor> executor_;
};

TEST_F(ExecutorTest, SpmmStreamedWithAlphaBetaAndGaps) {
  const GeneratedMatrix s = UniformMatrix(60, 45, 5, 1);
  Upload("S", s);
  for (const bool transpose : {false, true}) {
    const int64_t k = 7, in = transpose ? 60 : 45, out = transpose ? 45 : 60, ldb = 9, ldc = 8;
    const auto b = Random(in * ldb - 2), c0 = Random(out * k);
    SpmmSpec spec;
    spec.tenant = "t";
    spec.matrix = "S";
    spec.transpose = transpose;
    spec.alpha = 1.5;
    spec.beta = -0.5;
    spec.b.shape = DenseShape{in, k, ldb, ElementType::kF32};
    spec.b.stream_array = 3;
    spec.accumulate.emplace();
    spec.accumulate->shape = DenseShape{out, k, 0, ElementType::kF32};
    spec.accumulate->stream_array = 1;
    spec.result_leading_dimension = ldc;
    auto sink = std::make_shared<Collector>();
    auto call = executor_->Begin(spec, sink);
    ASSERT_TRUE(call.ok()) << call.status();
    Feed(**call, 3, b);
    EXPECT_FALSE((*call)->complete());
    Feed(**call, 1, c0);
    ASSERT_TRUE((*call)->complete());
    (*call)->Submit();
    ASSERT_TRUE(sink->Wait());
    ASSERT_TRUE(sink->end.status.ok()) << sink->end.status;
    ASSERT_EQ(sink->begins.size(), 1u);
    EXPECT_EQ(sink->begins[0].rows, out);
    EXPECT_EQ(sink->begins[0].arrays.at(0).length, (out - 1) * ldc + k);
    std::vector<double> expected = Wide(c0), magnitude(out * k);
    reference::Spmm(s.view(), Values(s).data(), transpose, Wide(b).data(), ldb, k, 1.5, -0.5,
                    expected.data(), magnitude.data());
    const auto got = std::as_const(sink->result).As<float>();
    ExpectNear(expected, magnitude, got.data(), k, ldc);
    for (int64_t row = 0; row + 1 < out; ++row)
      EXPECT_EQ(got[row * ldc + k], 0) << "a gap leaks old memory";
  }
}

TEST_F(ExecutorTest, ManyThreadsFeedACall) {
  const GeneratedMatrix s = UniformMatrix(600, 400, 5, 1);
  Upload("S", s);
  constexpr int64_t kWidth = 101;
  const auto b = Random(400 * kWidth);
  const auto* const bytes = reinterpret_cast<const std::byte*>(b.data());
  const size_t size = b.size() * sizeof(float);
  SpmmSpec spec;
  spec.tenant = "t";
  spec.matrix = "S";
  spec.b.shape = DenseShape{400, kWidth, kWidth, ElementType::kF32};
  auto sink = std::make_shared<Collector>();
  auto call = executor_->Begin(spec, sink);
  ASSERT_TRUE(call.ok()) << call.status();
  constexpr size_t kThreads = 4, kChunk = 1003;
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      // Two are out at once, and the later one is committed first.
      std::optional<ClaimedBytes> before;
      for (size_t at = thread * kChunk; at < size; at += kThreads * kChunk) {
        const size_t part = std::min(kChunk, size - at);
        absl::StatusOr<ClaimedBytes> to = (*call)->Claim(0, at, part);
        ASSERT_TRUE(to.ok()) << to.status();
        EXPECT_FALSE((*call)->Claim(0, at, 1).ok()) << "it was claimed already";
        EXPECT_FALSE((*call)->complete());
        EXPECT_GT((*call)->counted(), 0u);
        std::memcpy(to->data(), bytes + at, part);
        if (before.has_value()) {
          EXPECT_TRUE(to->Commit().ok());
          EXPECT_TRUE(before->Commit().ok());
          before.reset();
        } else {
          before = *std::move(to);
        }
      }
      EXPECT_TRUE(!before.has_value() || before->Commit().ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE((*call)->complete());
  (*call)->Submit();
  ASSERT_TRUE(sink->Wait());
  ASSERT_TRUE(sink->end.status.ok()) << sink->end.status;
  std::vector<double> expected(600 * kWidth), magnitude(600 * kWidth);
  reference::Spmm(s.view(), Values(s).data(), false, Wide(b).data(), kWidth, kWidth, 1, 0,
                  expected.data(), magnitude.data());
  ExpectNear(expected, magnitude, std::as_const(sink->result).As<float>().data(), kWidth, kWidth);
}

TEST_F(ExecutorTest, WhatIsClaimedAndNotCommittedHasNotCome) {
  Upload("S", UniformMatrix(60, 45, 5, 1));
  SpmmSpec spec;
  spec.tenant = "t";
  spec.matrix = "S";
  spec.b.shape = DenseShape{45, 1, 1, ElementType::kF32};
  auto sink = std::make_shared<Collector>();
  auto call = executor_->Begin(spec, sink);
  ASSERT_TRUE(call.ok()) << call.status();
  {
    absl::StatusOr<ClaimedBytes> all = (*call)->Claim(0, 0, 45 * sizeof(float));
    ASSERT_TRUE(all.ok()) << all.status();
  }
  EXPECT_FALSE((*call)->complete());
  (*call)->Fail(absl::InvalidArgumentError("told to"));
  ASSERT_TRUE(sink->Wait());
  EXPECT_EQ(sink->end.status.message(), "told to");
}

TEST_F(ExecutorTest, SpmmBetweenHeldMatricesMovesNothing) {
  const GeneratedMatrix s = UniformMatrix(50, 50, 4, 2);
  Upload("S", s);
  const auto x0 = Random(50 * 3);
  Hold("x", {50, 3, 3, ElementType::kF32}, x0);
  std::vector<double> expected = Wide(x0);
  SpmmSpec spec;
  spec.tenant = "t";
  spec.matrix = "S";
  spec.beta = 1;
  spec.b.held = "x";
  spec.accumulate.emplace();
  spec.accumulate->held = "x";
  spec.result.held = "x";
  for (int iteration = 0; iteration < 3; ++iteration) {
    auto sink = std::make_shared<Collector>();
    auto call = executor_->Begin(spec, sink);
    ASSERT_TRUE(call.ok()) << call.status();
    ASSERT_TRUE((*call)->complete());
    (*call)->Submit();
    ASSERT_TRUE(sink->Wait());
    ASSERT_TRUE(sink->end.status.ok()) << sink->end.status;
    EXPECT_TRUE(sink->begins.at(0).arrays.empty());
    EXPECT_EQ(sink->result.length, 0);
    const std::vector<double> old = expected;
    reference::Spmm(s.view(), Values(s).data(), false, old.data(), 3, 3, 1, 1, expected.data());
  }
  const auto x = dense_.Find("t", "x");
  ASSERT_TRUE(x.ok());
  EXPECT_GE((*x)->version, 4u);
  const auto elements = (*x)->elements->Get();
  ASSERT_TRUE(elements.ok());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(std::as_const(*elements).As<float>()[i], expected[i],
                1e-4 * (std::abs(expected[i]) + 1));
  }
}

TEST_F(ExecutorTest, AHeldMatrixThatIsSmallerThanItsShapeIsNotRead) {
  const GeneratedMatrix s = UniformMatrix(50, 50, 4, 2);
  Upload("S", s);
  Hold("x", {50, 3, 5, ElementType::kF32}, {});
  {
    auto write = dense_.BeginWrite("t", "x");
    ASSERT_TRUE(write.ok()) << write.status();
    // As a failure inside the server might leave it: without the gaps between the rows.
    const Array wrong = AllocateArray(HeapMemory(), "dense", ElementType::kF32, 50 * 3).value();
    ASSERT_TRUE(write->Publish(std::make_shared<LazyArray>(wrong)).ok());
  }
  SpmmSpec spec;
  spec.tenant = "t";
  spec.matrix = "S";
  spec.b.held = "x";
  auto sink = std::make_shared<Collector>();
  auto call = executor_->Begin(spec, sink);
  ASSERT_TRUE(call.ok()) << call.status();
  (*call)->Submit();
  ASSERT_TRUE(sink->Wait());
  EXPECT_EQ(sink->end.status.code(), absl::StatusCode::kInternal) << sink->end.status;
  EXPECT_THAT(std::string(sink->end.status.message()),
              HasSubstr("150 f32 elements was to be 50 x 3 f32 with a leading dimension of 5"));
}

TEST_F(ExecutorTest, WhatATenantsRequestsAndMatricesTakeIsCharged) {
  const auto owned = [&] { return budget_.owned()["t"]; };
  Upload("S", UniformMatrix(500, 500, 4, 2));
  Hold("x", {500, 30, 30, ElementType::kF32}, {});
  const int64_t kept = owned();
  EXPECT_GT(kept, 0);
  EXPECT_EQ(kept, budget_.used());
  for (const std::string into : {"", "x"}) {
    SpmmSpec spec;
    spec.tenant = "t";
    spec.matrix = "S";
    spec.b.shape = DenseShape{500, 30, 30, ElementType::kF32};
    spec.result.held = into;
    auto sink = std::make_shared<Collector>();
    auto call = executor_->Begin(spec, sink);
    ASSERT_TRUE(call.ok()) << call.status();
    Feed(**call, 0, Random(500 * 30));
    EXPECT_GE(owned(), kept + 500 * 30 * 4);
    EXPECT_LE(budget_.used() - owned(), 1000) << "but for the worker slot's workspace";
    (*call)->Submit();
    call->reset();
    ASSERT_TRUE(sink->Wait());
    ASSERT_TRUE(sink->end.status.ok()) << sink->end.status;
    // The result that the client has not read yet, or what took the place of a held one.
    EXPECT_EQ(sink->result.bytes(), into.empty() ? 500 * 30 * 4 : 0);
    const auto is = [&](int64_t bytes) {
      for (int i = 0; i < 3000 && owned() != bytes; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      return owned() == bytes;
    };
    EXPECT_TRUE(is(kept + static_cast<int64_t>(sink->result.bytes()))) << owned();
    sink->result = Array();
    EXPECT_TRUE(is(kept)) << owned();
  }
}

TEST_F(ExecutorTest, ACallRunsByThePlanThatItBeganWith) {
  const GeneratedMatrix s = UniformMatrix(50, 50, 4, 2);
  Upload("S", s);
  Pattern& pattern = *catalog_.Find("t", "S").value()->pattern();
  const auto serve_by = [&](const std::string& pipeline, const std::string& kernel) {
    ActivePlan active;
    active.plan.signature = SignatureOf({Operation::kSpmm, false, ElementType::kF32, 3});
    active.plan.pipeline = pipeline;
    active.plan.kernel = kernel;
    if (pipeline != kCsr) {
      BuildContext context;
      context.memory = &HeapMemory();
      BuiltLayout built = BuildLayout(ParsePipeline(pipeline).value(), s.view(), context).value();
      pattern.AddLayout(std::make_shared<const Layout>(std::move(built.layout)), 0);
      active.layout = pattern.FindLayout(pipeline);
    }
    pattern.plans().Replace(std::make_shared<const ActivePlan>(active));
  };
  SpmmSpec spec;
  spec.tenant = "t";
  spec.matrix = "S";
  spec.b.shape = DenseShape{50, 3, 3, ElementType::kF32};
  const auto begin = [&](const std::shared_ptr<Collector>& sink) {
    auto call = executor_->Begin(spec, sink);
    EXPECT_TRUE(call.ok()) << call.status();
    return *call;
  };
  const std::vector<float> b = Random(50 * 3);
  const auto finish = [&](Call& call, Collector& sink) {
    Feed(call, 0, b);
    call.Submit();
    EXPECT_TRUE(sink.Wait());
    EXPECT_TRUE(sink.end.status.ok()) << sink.end.status;
    std::vector<double> expected(b.size()), magnitude(b.size());
    reference::Spmm(s.view(), Values(s).data(), false, Wide(b).data(), 3, 3, 1, 0, expected.data(),
                    magnitude.data());
    ExpectNear(expected, magnitude, std::as_const(sink.result).As<float>().data(), 3, 3);
    return sink.begins.at(0).plan;
  };
  serve_by("dcsr", "cpu.dcsr.row_balanced");
  auto first = std::make_shared<Collector>(), second = std::make_shared<Collector>();
  const auto by_dcsr = begin(first);
  serve_by("csr", "cpu.csr.row_balanced");
  // The request alone holds it now.
  pattern.DropLayout("dcsr");
  EXPECT_EQ(finish(*begin(second), *second), "csr / cpu.csr.row_balanced");
  EXPECT_EQ(finish(*by_dcsr, *first), "dcsr / cpu.dcsr.row_balanced");
}

TEST_F(ExecutorTest, ValuesMayComeWithTheRequest) {
  constexpr int64_t kSize = 60, kK = 5;
  GeneratedMatrix s = UniformMatrix(kSize, kSize, 6, 3);
  Upload("canonical", s);
  // The same with each row the other way round, which is the caller's order then.
  const auto mirrored = [&](std::vector<double> values) {
    for (int64_t row = 0; row < kSize; ++row) {
      std::reverse(values.begin() + s.row_offsets[row], values.begin() + s.row_offsets[row + 1]);
    }
    return values;
  };
  GeneratedMatrix descending = s;
  for (int64_t row = 0; row < kSize; ++row) {
    std::reverse(descending.column_indices.begin() + s.row_offsets[row],
                 descending.column_indices.begin() + s.row_offsets[row + 1]);
  }
  Upload("descending", descending, /*sort=*/true);
  const Problem problem{Operation::kSpmm, false, ElementType::kF32, kK};
  BuildContext context;
  context.memory = &HeapMemory();
  BuiltLayout built =
      BuildLayout(ParsePipeline("lsh_cluster(force)").value(), s.view(), context).value();
  ASSERT_NE(built.layout.Find(kValueSource), nullptr);
  ActivePlan active;
  active.plan.signature = SignatureOf(problem);
  active.plan.pipeline = built.layout.pipeline;
  active.plan.kernel = KernelsFor(problem, built.layout).front();
  Pattern& pattern = *catalog_.Find("t", "canonical").value()->pattern();
  ASSERT_EQ(&pattern, catalog_.Find("t", "descending").value()->pattern().get());
  pattern.AddLayout(std::make_shared<const Layout>(std::move(built.layout)), 0);
  active.layout = pattern.FindLayout(active.plan.pipeline);
  pattern.plans().Replace(std::make_shared<const ActivePlan>(active));

  const std::vector<float> values = Random(s.nnz()), a = Random(kSize * kK), b = Random(kSize * kK);
  Hold("w", {s.nnz(), 1, 1, ElementType::kF32}, values);
  const auto operand = [](int64_t rows, int64_t cols, uint32_t array) {
    return OperandSpec{DenseShape{rows, cols, cols, ElementType::kF32}, "", array};
  };
  for (const std::string matrix : {"canonical", "descending"}) {
    const std::vector<double> canonical =
        matrix == "canonical" ? Wide(values) : mirrored(Wide(values));
    for (const bool held : {false, true}) {
      for (const bool transpose : {false, true}) {
        SCOPED_TRACE(testing::Message() << matrix << (held ? ", held" : "") << transpose);
        SpmmSpec spec;
        spec.tenant = "t";
        spec.matrix = matrix;
        spec.transpose = transpose;
        spec.b = operand(kSize, kK, 0);
        spec.values = held ? OperandSpec{{}, "w", 0} : operand(s.nnz(), 1, 7);
        auto sink = std::make_shared<Collector>();
        auto call = executor_->Begin(spec, sink);
        ASSERT_TRUE(call.ok()) << call.status();
        Feed(**call, 0, b);
        EXPECT_EQ((*call)->complete(), held);
        if (!held) Feed(**call, 7, values);
        (*call)->Submit();
        ASSERT_TRUE(sink->Wait());
        ASSERT_TRUE(sink->end.status.ok()) << sink->end.status;
        if (!transpose) {
          EXPECT_THAT(sink->begins.at(0).plan, HasSubstr("lsh_cluster"));
        }
        std::vector<double> expected(kSize * kK), magnitude(kSize * kK);
        reference::Spmm(s.view(), canonical.data(), transpose, Wide(b).data(), kK, kK, 1, 0,
                        expected.data(), magnitude.data());
        ExpectNear(expected, magnitude, std::as_const(sink->result).As<float>().data(), kK, kK);
      }
      SddmmSpec spec;
      spec.tenant = "t";
      spec.matrix = matrix;
      spec.a = operand(kSize, kK, 0);
      spec.b = operand(kSize, kK, 1);
      spec.values = held ? OperandSpec{{}, "w", 0} : operand(s.nnz(), 1, 2);
      auto sink = std::make_shared<Collector>();
      auto call = executor_->Begin(spec, sink);
      ASSERT_TRUE(call.ok()) << call.status();
      Feed(**call, 0, a);
      Feed(**call, 1, b);
      if (!held) Feed(**call, 2, values);
      (*call)->Submit();
      ASSERT_TRUE(sink->Wait());
      ASSERT_TRUE(sink->end.status.ok()) << sink->end.status;
      std::vector<double> expected(s.nnz()), magnitude(s.nnz());
      reference::Sddmm(s.view(), canonical.data(), Wide(a).data(), kK, Wide(b).data(), kK, kK,
                       expected.data(), magnitude.data());
      if (matrix == "descending") {
        expected = mirrored(expected);
        magnitude = mirrored(magnitude);
      }
      ExpectNear(expected, magnitude, std::as_const(sink->result).As<float>().data(), 1, 1);
    }
  }

  SpmmSpec wrong;
  wrong.tenant = "t";
  wrong.matrix = "canonical";
  wrong.b = operand(kSize, kK, 0);
  const auto refusal = [&](const OperandSpec& of) {
    wrong.values = of;
    const absl::Status status = executor_->Begin(wrong, std::make_shared<Collector>()).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refusal(operand(s.nnz() - 1, 1, 1)), HasSubstr("operand values is "));
  EXPECT_THAT(refusal(operand(s.nnz(), 2, 1)), HasSubstr("operand values is "));
  EXPECT_THAT(refusal(operand(s.nnz(), 1, 0)), HasSubstr("announced as array 0"));
  OperandSpec apart = operand(s.nnz(), 1, 1);
  apart.shape->leading_dimension = 2;
  EXPECT_THAT(refusal(apart), HasSubstr("one value after the other"));
  OperandSpec doubles = operand(s.nnz(), 1, 1);
  doubles.shape->type = ElementType::kF64;
  EXPECT_THAT(refusal(doubles), HasSubstr("f64"));
  SddmmSpec unscaled;
  unscaled.tenant = "t";
  unscaled.matrix = "canonical";
  unscaled.unscaled = true;
  unscaled.a = operand(kSize, kK, 0);
  unscaled.b = operand(kSize, kK, 1);
  unscaled.values = operand(s.nnz(), 1, 2);
  EXPECT_TRUE(
      absl::IsInvalidArgument(executor_->Begin(unscaled, std::make_shared<Collector>()).status()));
}

TEST_F(ExecutorTest, SddmmScaledAndNot) {
  const GeneratedMatrix s = UniformMatrix(30, 40, 6, 3);
  Upload("S", s);
  const auto a = Random(30 * 5), b = Random(40 * 5);
  for (const bool unscaled : {false, true}) {
    SddmmSpec spec;
    spec.tenant = "t";
    spec.matrix = "S";
    spec.unscaled = unscaled;
    spec.a.shape = DenseShape{30, 5, 5, ElementType::kF32};
    spec.b.shape = DenseShape{40, 5, 5, ElementType::kF32};
    spec.b.stream_array = 1;
    auto sink = std::make_shared<Collector>();
    auto call = executor_->Begin(spec, sink);
    ASSERT_TRUE(call.ok()) << call.status();
    Feed(**call, 0, a);
    Feed(**call, 1, b);
    (*call)->Submit();
    ASSERT_TRUE(sink->Wait());
    ASSERT_TRUE(sink->end.status.ok()) << sink->end.status;
    std::vector<double> expected(s.column_indices.size()), magnitude(s.column_indices.size());
    const auto values = Values(s);
    reference::Sddmm(s.view(), unscaled ? nullptr : values.data(), Wide(a).data(), 5,
                     Wide(b).data(), 5, 5, expected.data(), magnitude.data());
    ExpectNear(expected, magnitude, std::as_const(sink->result).As<float>().data(), 1, 1);
  }
}

TEST_F(ExecutorTest, SddmmSpeaksTheCallersOrder) {
  // One row, columns descending: the caller's order is not the canonical one.
  GeneratedMatrix s;
  s.rows = 1;
  s.cols = 4;
  s.row_offsets = {0, 3};
  s.column_indices = {3, 1, 0};
  s.values = {1, 10, 100};
  Upload("S", s, /*sort=*/true);
  SddmmSpec spec;
  spec.tenant = "t";
  spec.matrix = "S";
  spec.a.shape = DenseShape{1, 1, 1, ElementType::kF32};
  spec.b.shape = DenseShape{4, 1, 1, ElementType::kF32};
  spec.b.stream_array = 1;
  auto sink = std::make_shared<Collector>();
  auto call = executor_->Begin(spec, sink);
  ASSERT_TRUE(call.ok()) << call.status();
  Feed(**call, 0, std::vector<float>{2});
  Feed(**call, 1, std::vector<float>{1, 2, 3, 4});
  (*call)->Submit();
  ASSERT_TRUE(sink->Wait());
  const auto got = std::as_const(sink->result).As<float>();
  EXPECT_THAT(std::vector<float>(got.begin(), got.end()), ::testing::ElementsAre(8, 40, 200));
}

TEST_F(ExecutorTest, ProductsOf16BitTypes) {
  const GeneratedMatrix s = UniformMatrix(20, 30, 4, 3);
  const auto check = [&]<typename T>(T) {
    const ElementType type = ElementTypeOf<T>();
    const std::string name(Name(type));
    const std::vector<T> values = test::SmallIntegers<T>(s.nnz(), 3);
    UploadHeader header;
    header.tenant = "t";
    header.name = name;
    header.rows = s.rows;
    header.cols = s.cols;
    header.nnz = s.nnz();
    header.type = type;
    auto upload = catalog_.BeginUpload(header);
    ASSERT_TRUE(upload.ok()) << upload.status();
    Feed(**upload, Upload::kRowOffsets, s.row_offsets);
    Feed(**upload, Upload::kColumnIndices, s.column_indices);
    Feed(**upload, Upload::kValues, values);
    ASSERT_TRUE((*upload)->Finish(1).ok());
    const auto wide_values = test::Widened(values);

    for (const bool transpose : {false, true}) {
      const int64_t k = 5, in = transpose ? 20 : 30, out = transpose ? 30 : 20;
      const std::vector<T> b = test::SmallIntegers<T>(in * k, 5),
                           c0 = test::SmallIntegers<T>(out * k, 2);
      auto put = dense_.BeginPut({"t", name, {out, k, k, type}, false, false});
      ASSERT_TRUE(put.ok()) << put.status();
      Feed(**put, 0, c0);
      ASSERT_TRUE((*put)->Finish().ok());
      SpmmSpec spec;
      spec.tenant = "t";
      spec.matrix = name;
      spec.transpose = transpose;
      spec.alpha = 2;
      spec.beta = -1;
      spec.allow_tf32 = true;  // makes no difference
      spec.b.shape = DenseShape{in, k, k, type};
      spec.accumulate.emplace();
      spec.accumulate->held = name;
      auto sink = std::make_shared<Collector>();
      auto call = executor_->Begin(spec, sink);
      ASSERT_TRUE(call.ok()) << call.status();
      Feed(**call, 0, b);
      (*call)->Submit();
      ASSERT_TRUE(sink->Wait());
      ASSERT_TRUE(sink->end.status.ok()) << sink->end.status;
      EXPECT_EQ(sink->result.type, type);
      std::vector<double> expected = test::Widened(c0);
      reference::Spmm(s.view(), wide_values.data(), transpose, test::Widened(b).data(), k, k, 2, -1,
                      expected.data());
      EXPECT_EQ(test::Widened(std::as_const(sink->result).As<T>()), expected);

      // What the other operand is must agree.
      spec.b.shape->type = ElementType::kF32;
      const auto refused = executor_->Begin(spec, std::make_shared<Collector>());
      EXPECT_THAT(std::string(refused.status().message()),
                  HasSubstr("operand B is f32, but matrix '" + name + "' is " + name));
    }
  };
  check(Float16());
  check(BFloat16());
}

TEST_F(ExecutorTest, SddmmOf16BitsSpeaksTheCallersOrder) {
  UploadHeader header;
  header.tenant = "t";
  header.name = "S";
  header.rows = 1;
  header.cols = 4;
  header.nnz = 3;
  header.type = ElementType::kF16;
  header.sort = true;
  auto upload = catalog_.BeginUpload(header);
  ASSERT_TRUE(upload.ok()) << upload.status();
  using Halves = std::vector<Float16>;
  Feed(**upload, Upload::kRowOffsets, std::vector<int64_t>{0, 3});
  Feed(**upload, Upload::kColumnIndices, std::vector<int32_t>{3, 1, 0});
  Feed(**upload, Upload::kValues, Halves{Float16(1), Float16(10), Float16(100)});
  ASSERT_TRUE((*upload)->Finish(1).ok());
  SddmmSpec spec;
  spec.tenant = "t";
  spec.matrix = "S";
  spec.a.shape = DenseShape{1, 1, 1, ElementType::kF16};
  spec.b.shape = DenseShape{4, 1, 1, ElementType::kF16};
  spec.b.stream_array = 1;
  auto sink = std::make_shared<Collector>();
  auto call = executor_->Begin(spec, sink);
  ASSERT_TRUE(call.ok()) << call.status();
  Feed(**call, 0, Halves{Float16(2)});
  Feed(**call, 1, Halves{Float16(1), Float16(2), Float16(3), Float16(4)});
  (*call)->Submit();
  ASSERT_TRUE(sink->Wait());
  EXPECT_THAT(test::Widened(std::as_const(sink->result).As<Float16>()),
              ::testing::ElementsAre(8, 40, 200));
}

TEST_F(ExecutorTest, SpgemmOf16BitTypesIsRefused) {
  UploadHeader header;
  header.tenant = "t";
  header.name = "S";
  header.type = ElementType::kBF16;
  auto upload = catalog_.BeginUpload(header);
  ASSERT_TRUE(upload.ok()) << upload.status();
  Feed(**upload, Upload::kRowOffsets, std::vector<int64_t>{0});
  ASSERT_TRUE((*upload)->Finish(1).ok());
  const auto product = executor_->Begin(SpgemmSpec{"t", "S", "S"}, std::make_shared<Collector>());
  EXPECT_TRUE(absl::IsUnimplemented(product.status())) << product.status();
  EXPECT_THAT(std::string(product.status().message()), HasSubstr("'S' is bf16"));
}

TEST_F(ExecutorTest, SpgemmStreamedCountedAndKept) {
  const GeneratedMatrix s = UniformMatrix(200, 150, 8, 4), t = UniformMatrix(150, 180, 8, 5);
  Upload("S", s);
  Upload("T", t);
  const auto expected = reference::Spgemm(s.view(), Values(s).data(), t.view(), Values(t).data());
  for (const bool count_first : {false, true}) {
    auto sink = std::make_shared<Collector>();
    SpgemmSpec spec{"t", "S", "T"};
    spec.count_first = count_first;
    auto call = executor_->Begin(spec, sink);
    ASSERT_TRUE(call.ok()) << call.status();
    (*call)->Submit();
    ASSERT_TRUE(sink->Wait());
    ASSERT_TRUE(sink->end.status.ok()) << sink->end.status;
    EXPECT_EQ(sink->end.nnz, static_cast<int64_t>(expected.column_indices.size()));
    EXPECT_EQ(sink->begins.at(0).nnz, count_first ? sink->end.nnz : -1);
    int64_t row = 0, position = 0;
    for (const ResultBlock& block : sink->blocks) {
      ASSERT_EQ(block.rows.begin, row);
      ASSERT_EQ(block.nnz_begin, position);
      for (const int64_t end : std::as_const(block.row_offsets).As<int64_t>()) {
        ASSERT_EQ(end, expected.row_offsets[++row]);
      }
      for (int64_t i = 0; i < block.column_indices.length; ++i, ++position) {
        ASSERT_EQ(std::as_const(block.column_indices).As<int32_t>()[i],
                  expected.column_indices[position]);
        ASSERT_NEAR(std::as_const(block.values).As<float>()[i], expected.values[position],
                    1e-5 * expected.magnitudes[position]);
      }
    }
    EXPECT_EQ(row, 200);
  }
  auto sink = std::make_shared<Collector>();
  SpgemmSpec keep{"t", "S", "T", "C"};
  auto call = executor_->Begin(keep, sink);
  ASSERT_TRUE(call.ok());
  (*call)->Submit();
  ASSERT_TRUE(sink->Wait());
  ASSERT_TRUE(sink->end.status.ok()) << sink->end.status;
  EXPECT_TRUE(sink->blocks.empty());
  const auto c = catalog_.Find("t", "C");
  ASSERT_TRUE(c.ok());
  EXPECT_EQ((*c)->pattern()->nnz(), sink->end.nnz);
  EXPECT_EQ(executor_->Begin(keep, sink).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(ExecutorTest, SpgemmRunsOnThePlanOfThePair) {
  GeneratedMatrix band{test::Band(300, 3), {}};
  band.values = test::RandomValues(band.nnz(), 9);
  Upload("band", band);
  Upload("random", UniformMatrix(300, 300, 2, 10));
  int unknown = 0;
  executor_->on_unknown_pair = [&](const PatternProduct& product, const Problem&) {
    EXPECT_EQ(product.left, catalog_.Find("t", "band").value()->pattern());
    ++unknown;
  };
  const auto kernel_of = [&](const std::string& right, int64_t* nnz, bool transposed = false) {
    auto sink = std::make_shared<Collector>();
    SpgemmSpec spec{"t", "band", right};
    spec.transpose_right = transposed;
    auto call = executor_->Begin(spec, sink);
    EXPECT_TRUE(call.ok()) << call.status();
    (*call)->Submit();
    EXPECT_TRUE(sink->Wait());
    EXPECT_TRUE(sink->end.status.ok()) << sink->end.status;
    *nnz = sink->end.nnz;
    return sink->begins.at(0).plan;
  };
  int64_t nnz = 0, nnz_by_plan = 0;
  EXPECT_EQ(kernel_of("band", &nnz), "csr * csr / cpu.csr.row_groups");
  EXPECT_EQ(unknown, 1);
  Pattern& pattern = *catalog_.Find("t", "band").value()->pattern();
  const auto plan_for = [&](const std::string& right, bool transposed = false) {
    ActivePlan active;
    active.plan.signature = SignatureOf({Operation::kSpgemm, false, ElementType::kF32, 0});
    active.plan.pipeline = "dia";
    active.plan.kernel = "cpu.dia.diagonals";
    active.plan.pair = {catalog_.Find("t", right).value()->pattern()->hash(), false, transposed};
    pattern.plans().Replace(std::make_shared<const ActivePlan>(active));
  };
  const auto give_layout = [&](const std::string& pipeline) {
    BuildContext context;
    context.memory = &HeapMemory();
    auto built = BuildLayout(*ParsePipeline(pipeline), band.view(), context);
    ASSERT_TRUE(built.ok() && !built->skipped);
    pattern.AddLayout(std::make_shared<const Layout>(std::move(built->layout)), 0);
  };
  plan_for("band");
  EXPECT_EQ(kernel_of("band", &nnz_by_plan), "csr * csr / cpu.csr.row_groups")
      << "it has no diagonals";
  EXPECT_EQ(unknown, 2) << "they are asked for";
  unknown = 1;
  give_layout("dia");
  EXPECT_EQ(kernel_of("band", &nnz_by_plan), "csr * dia / cpu.dia.diagonals");
  EXPECT_EQ(nnz_by_plan, nnz);
  EXPECT_EQ(unknown, 1);
  EXPECT_EQ(kernel_of("band", &nnz, /*transposed=*/true), "csr * transpose / cpu.csr.row_groups")
      << "plans are for one way of taking the matrices";
  EXPECT_EQ(unknown, 2);
  plan_for("band", /*transposed=*/true);
  give_layout("transpose > dia");
  EXPECT_EQ(kernel_of("band", &nnz_by_plan, /*transposed=*/true),
            "csr * transpose > dia / cpu.dia.diagonals");
  EXPECT_EQ(nnz_by_plan, nnz);
  EXPECT_EQ(unknown, 2);
  plan_for("random");
  EXPECT_EQ(kernel_of("random", &nnz), "csr * csr / cpu.csr.row_groups") << "too many diagonals";
  EXPECT_EQ(unknown, 3);
}

/// A band with a plan for its square by diagonals, whose layout is to be given.
class PlannedProductTest : public ExecutorTest {
 protected:
  void SetUp() override {
    ExecutorTest::SetUp();
    band_.values = test::RandomValues(band_.nnz(), 9);
    Upload("band", band_);
    executor_->on_unknown_pair = [this](const PatternProduct&, const Problem&) { ++unknown_; };
    ActivePlan active;
    active.plan.signature = SignatureOf({Operation::kSpgemm, false, ElementType::kF32, 0});
    active.plan.pipeline = "dia";
    active.plan.kernel = "cpu.dia.diagonals";
    active.plan.pair = {pattern().hash()};
    pattern().plans().Replace(std::make_shared<const ActivePlan>(active));
  }
  Pattern& pattern() { return *catalog_.Find("t", "band").value()->pattern(); }
  Layout Diagonals() {
    BuildContext context;
    context.memory = &budget_.Source(MemoryUse::kLayouts);
    auto built = BuildLayout(*ParsePipeline("dia"), band_.view(), context);
    EXPECT_TRUE(built.ok() && !built->skipped);
    return std::move(built->layout);
  }
  /// Gives the band a layout that `read` brings from the disk.
  std::shared_ptr<LazyLayout> Give(const Layout& description, LazyLayout::Loader read) {
    const std::string pipeline = description.pipeline;
    pattern().AddLayout(description, {std::move(read), [] { return true; }, budget_.evictions()},
                        0);
    return pattern().FindLayout(pipeline);
  }
  std::string PlanOfSquare() {
    auto sink = std::make_shared<Collector>();
    auto call = executor_->Begin(SpgemmSpec{"t", "band", "band"}, sink);
    EXPECT_TRUE(call.ok()) << call.status();
    (*call)->Submit();
    EXPECT_TRUE(sink->Wait());
    EXPECT_TRUE(sink->end.status.ok()) << sink->end.status;
    return sink->begins.at(0).plan;
  }

  GeneratedMatrix band_{test::Band(300, 3), {}};
  std::atomic<int> unknown_ = 0;
};

TEST_F(PlannedProductTest, DoesNotReadALayoutAgainThatFoundNoRoom) {
  std::atomic<int> reads = 0;
  const auto read = [&](LazyLayout::Stop) -> absl::StatusOr<std::shared_ptr<const Layout>> {
    ++reads;
    return absl::ResourceExhaustedError("no memory");
  };
  Give(Diagonals(), read);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(PlanOfSquare(), "csr * csr / cpu.csr.row_groups");
  EXPECT_EQ(reads, 1);
  EXPECT_EQ(unknown_, 0) << "it is there, only not for now";
}

TEST_F(PlannedProductTest, DoesNotPlaceALayoutAgainThatFoundNoRoom) {
  const auto layout = std::make_shared<const Layout>(Diagonals());
  ASSERT_NE(layout->value_slots, band_.nnz());
  pattern().AddLayout(layout, 0);
  std::atomic<int> refused = 0;
  budget_.SetRefuse([&](size_t bytes, MemoryUse) {
    const bool of_layout = bytes == sizeof(float) * static_cast<size_t>(layout->value_slots);
    refused += of_layout ? 1 : 0;
    return of_layout;
  });
  EXPECT_EQ(PlanOfSquare(), "csr * csr / cpu.csr.row_groups");
  const int refused_once = refused;
  EXPECT_GT(refused_once, 0);
  EXPECT_EQ(PlanOfSquare(), "csr * csr / cpu.csr.row_groups");
  EXPECT_EQ(refused, refused_once);
  EXPECT_EQ(unknown_, 0);
}

TEST_F(PlannedProductTest, ALayoutThatIsUsedIsEvictedLast) {
  const auto read = [&](LazyLayout::Stop) -> absl::StatusOr<std::shared_ptr<const Layout>> {
    return std::make_shared<const Layout>(Diagonals());
  };
  const auto used = Give(Diagonals(), read);
  Layout other = Diagonals();
  other.pipeline = "transpose > dia";
  const auto unused = Give(other, read);
  ASSERT_TRUE(used->Get().ok() && unused->Get().ok());
  EXPECT_EQ(PlanOfSquare(), "csr * dia / cpu.dia.diagonals");
  while (used->resident() && unused->resident()) ASSERT_TRUE(budget_.evictions()->EvictOne());
  EXPECT_TRUE(used->resident());
}

TEST_F(ExecutorTest, AStreamedSpgemmWaitsForItsReaderAndLetsOthersPass) {
  executor_ = std::make_unique<Executor>(
      ExecutorOptions{.slots = 1, .threads_per_slot = 2, .block_credit_bytes = 1 << 20}, catalog_,
      dense_, budget_, observer_);
  const GeneratedMatrix s = UniformMatrix(20000, 20000, 16, 6);
  Upload("S", s);
  auto slow = std::make_shared<Collector>();
  const int64_t owned = budget_.owned()["t"];
  auto call = executor_->Begin(SpgemmSpec{"t", "S", "S"}, slow);
  ASSERT_TRUE(call.ok());
  (*call)->Submit();
  ASSERT_TRUE(slow->WaitForBytes());
  EXPECT_GE(budget_.owned()["t"], owned + 20000 * 8) << "the rows' sizes";
  // The reader takes nothing: another request still gets its turn.
  auto sink = std::make_shared<Collector>();
  SpmmSpec spec;
  spec.tenant = "t";
  spec.matrix = "S";
  spec.b.shape = DenseShape{20000, 1, 1, ElementType::kF32};
  auto other = executor_->Begin(spec, sink);
  ASSERT_TRUE(other.ok());
  Feed(**other, 0, Random(20000));
  (*other)->Submit();
  ASSERT_TRUE(sink->Wait());
  EXPECT_TRUE(sink->end.status.ok());
  EXPECT_FALSE(slow->Wait(std::chrono::seconds(0)));
  int64_t released = 0;
  while (!slow->Wait(std::chrono::seconds(0))) {
    const int64_t bytes = slow->bytes();
    (*call)->Release(bytes - released);
    released = bytes;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(slow->end.status.ok()) << slow->end.status;
  EXPECT_GT(slow->blocks.size(), 2u);
}

TEST_F(ExecutorTest, CancelInTheMiddleOfALongProduct) {
  const GeneratedMatrix s = UniformMatrix(40000, 40000, 64, 7);
  Upload("S", s);
  const int64_t before = budget_.used();
  const double busy = executor_->busy_seconds(DeviceId{});
  auto sink = std::make_shared<Collector>();
  auto call = executor_->Begin(SpgemmSpec{"t", "S", "S"}, sink);
  ASSERT_TRUE(call.ok());
  (*call)->Submit();
  ASSERT_TRUE(sink->WaitForBytes());
  (*call)->Cancel();
  ASSERT_TRUE(sink->Wait());
  EXPECT_EQ(sink->end.status.code(), absl::StatusCode::kCancelled);
  EXPECT_GT(executor_->busy_seconds(DeviceId{}), busy) << "work that was in vain counts";
  EXPECT_GT(observer_.flops(), 0) << "the rows that were computed count";
  EXPECT_LT(observer_.flops(), 2.0 * 40000 * 64 * 64) << "and no others";
  call->reset();
  sink.reset();
  EXPECT_EQ(executor_->in_flight(), 0);
  EXPECT_LE(budget_.used(), before + (64 << 20)) << "only the worker slot's workspace may stay";
}

TEST_F(ExecutorTest, PhasesAddUp) {
  executor_ = std::make_unique<Executor>(
      ExecutorOptions{.slots = 1, .threads_per_slot = 2, .block_credit_bytes = 1 << 20}, catalog_,
      dense_, budget_, observer_);
  const GeneratedMatrix s = UniformMatrix(20000, 20000, 16, 6);
  Upload("S", s);
  auto sink = std::make_shared<Collector>();
  auto call = executor_->Begin(SpgemmSpec{"t", "S", "S"}, sink);
  ASSERT_TRUE(call.ok());
  const auto begin = std::chrono::steady_clock::now();
  (*call)->Submit();
  ASSERT_TRUE(sink->WaitForBytes());
  // Its reader takes nothing for a while: that is nobody's work.
  constexpr auto kPause = std::chrono::milliseconds(300);
  std::this_thread::sleep_for(kPause);
  for (int64_t released = 0; !sink->Wait(std::chrono::seconds(0));) {
    const int64_t bytes = sink->bytes();
    (*call)->Release(bytes - released);
    released = bytes;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const auto total = std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
  const CallTimings& t = sink->end.timings;
  EXPECT_GT(t.setup_ns, 0u);
  EXPECT_LE(t.queue_ns + t.setup_ns + t.kernel_ns, static_cast<uint64_t>(total));
}

TEST_F(ExecutorTest, AnnouncedOperandsTakeNoMemory) {
  const GeneratedMatrix s = UniformMatrix(10, 1000, 3, 8);
  Upload("S", s);
  const int64_t before = budget_.used();
  SpmmSpec spec;
  spec.tenant = "t";
  spec.matrix = "S";
  constexpr int64_t kWidth = 200000;  // 800 MB
  spec.b.shape = DenseShape{1000, kWidth, kWidth, ElementType::kF32};
  std::vector<std::shared_ptr<Call>> calls;
  for (int i = 0; i < 10; ++i) {
    auto call = executor_->Begin(spec, std::make_shared<Collector>());
    ASSERT_TRUE(call.ok()) << call.status();
    calls.push_back(*std::move(call));
  }
  EXPECT_EQ(budget_.used(), before);
  EXPECT_EQ(calls[0]->announced(), 1000u * kWidth * 4);
  ASSERT_TRUE(calls[0]->Claim(0, 1 << 29, 1).ok());
  EXPECT_EQ(calls[0]->counted(), 1000u * kWidth * 4);
  EXPECT_GE(budget_.used(), before + 1000 * kWidth * 4);
  EXPECT_FALSE(calls[1]->Claim(0, 0, 1).ok()) << "there is room for one of them";
  EXPECT_THAT(calls[0]->Missing(), HasSubstr("operand B has 1 of 800000000 bytes"));
  for (const auto& call : calls) call->Cancel();
}

/// What hears of a call's end, and keeps how much memory requests had then.
class MemoryAtEnd final : public ResultSink {
 public:
  explicit MemoryAtEnd(Budget& budget) : budget_(budget) {}
  void OnBegin(CallBegin) override {}
  void OnArray(uint32_t, uint64_t, Array) override {}
  void OnBlock(ResultBlock) override {}
  void OnEnd(CallEnd end) override {
    ended.set_value({std::move(end.status), budget_.used(MemoryUse::kRequests)});
  }
  std::promise<std::pair<absl::Status, int64_t>> ended;

 private:
  Budget& budget_;
};

TEST_F(ExecutorTest, OperandsAreGoneWhenTheEndIsTold) {
  const GeneratedMatrix s = UniformMatrix(10, 1000, 3, 8);
  Upload("S", s);
  SpmmSpec spec;
  spec.tenant = "t";
  spec.matrix = "S";
  spec.b.shape = DenseShape{1000, 1000, 1000, ElementType::kF32};
  constexpr int64_t kOperand = 4'000'000;
  auto sink = std::make_shared<MemoryAtEnd>(budget_);
  auto call = executor_->Begin(spec, sink);
  ASSERT_TRUE(call.ok()) << call.status();
  Feed(**call, 0, Random(1000 * 1000));
  EXPECT_GE(budget_.used(MemoryUse::kRequests), kOperand);
  (*call)->Submit();
  const auto [status, used] = sink->ended.get_future().get();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_LT(used, kOperand);
}

TEST_F(ExecutorTest, BadRequestsAreRefusedAtTheDoor) {
  const GeneratedMatrix s = UniformMatrix(10, 20, 3, 8);
  Upload("S", s);
  Hold("h", {20, 2, 2, ElementType::kF32}, {});
  SpmmSpec good;
  good.tenant = "t";
  good.matrix = "S";
  good.b.shape = DenseShape{20, 4, 4, ElementType::kF32};
  const auto expect = [&](SpmmSpec spec, absl::StatusCode code, const char* sentence) {
    const auto call = executor_->Begin(spec, std::make_shared<Collector>());
    EXPECT_EQ(call.status().code(), code) << call.status();
    EXPECT_THAT(std::string(call.status().message()), HasSubstr(sentence));
  };
  using Code = absl::StatusCode;
  SpmmSpec bad = good;
  bad.matrix = "nobody";
  expect(bad, Code::kNotFound, "nobody");
  bad = good;
  bad.tenant = "other";
  expect(bad, Code::kNotFound, "S");
  bad = good;
  bad.b.shape->rows = 19;
  expect(bad, Code::kInvalidArgument, "operand B is 19 x 4, expected 20 x K");
  bad = good;
  bad.b.shape->cols = 0;
  expect(bad, Code::kInvalidArgument, "operand B");
  bad = good;
  bad.b.shape->leading_dimension = 3;
  expect(bad, Code::kInvalidArgument, "operand B");
  bad = good;
  bad.b.shape->type = ElementType::kF64;
  expect(bad, Code::kInvalidArgument, "operand B is f64, but matrix 'S' is f32");
  bad = good;
  bad.b.shape->cols = std::numeric_limits<int64_t>::max() / 2;
  bad.b.shape->leading_dimension = 0;
  expect(bad, Code::kInvalidArgument, "operand B");
  bad = good;
  bad.b.shape->cols = int64_t{1} << 32;
  bad.b.shape->leading_dimension = 0;
  expect(bad, Code::kResourceExhausted, "bytes of host memory");
  bad = good;
  bad.beta = 1;
  expect(bad, Code::kInvalidArgument, "no operand to accumulate");
  bad.accumulate.emplace();
  bad.accumulate->shape = DenseShape{10, 4, 4, ElementType::kF32};
  expect(bad, Code::kInvalidArgument, "two operands");
  bad = good;
  bad.b = {};
  expect(bad, Code::kInvalidArgument, "needs a shape");
  bad.b.held = "nothing";
  expect(bad, Code::kNotFound, "nothing");
  bad.b.held = "h";
  bad.b.shape = DenseShape{20, 3, 3, ElementType::kF32};
  expect(bad, Code::kInvalidArgument, "buffer 'h' is 20 x 2");
  bad = good;
  bad.result.held = "h";
  expect(bad, Code::kInvalidArgument, "the result is 10 x 4");
  bad = good;
  bad.result_leading_dimension = 2;
  expect(bad, Code::kInvalidArgument, "the result");
  EXPECT_EQ(executor_->in_flight(), 0);
  const auto product = executor_->Begin(SpgemmSpec{"t", "S", "S"}, std::make_shared<Collector>());
  EXPECT_THAT(std::string(product.status().message()), HasSubstr("columns of the left"));
}

TEST_F(ExecutorTest, OneWriterAtATime) {
  const GeneratedMatrix s = UniformMatrix(10, 10, 3, 9);
  Upload("S", s);
  Hold("out", {10, 1, 1, ElementType::kF32}, {});
  SpmmSpec spec;
  spec.tenant = "t";
  spec.matrix = "S";
  spec.b.shape = DenseShape{10, 1, 1, ElementType::kF32};
  spec.result.held = "out";
  auto sink = std::make_shared<Collector>();
  auto first = executor_->Begin(spec, sink);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(executor_->Begin(spec, sink).status().code(), absl::StatusCode::kAborted);
  (*first)->Cancel();
  ASSERT_TRUE(sink->Wait());
  auto again = executor_->Begin(spec, std::make_shared<Collector>());
  ASSERT_TRUE(again.ok()) << again.status();
  (*again)->Cancel();
}

}  // namespace
}  // namespace sparsed::engine
