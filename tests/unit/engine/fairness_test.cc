// Two tenants on one worker slot of the CPU: long products give way, and their results stay what
// they are.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/execution/executor.h"
#include "engine/preparation/trial.h"
#include "tests/unit/engine/calls.h"
#include "tests/unit/engine/modules.h"

namespace sparsed::engine {
namespace {

class FairnessTest : public testing::Test {
 protected:
  static constexpr int64_t kWide = 192;
  static constexpr int kTries = 20;

  FairnessTest() {
    modules_.catalog.on_published = [](auto&&...) {};
    modules_.catalog.on_pattern_gone = [](const std::shared_ptr<Pattern>&) {};
    // Nobody releases blocks here.
    executor_ = std::make_unique<Executor>(
        ExecutorOptions{.slots = 1, .threads_per_slot = 1, .block_credit_bytes = int64_t{1} << 30},
        modules_.catalog, modules_.dense, modules_.budget, observer_);
    Upload("huge tenant", huge_, "m");
    Upload("tiny tenant", tiny_, "m");
  }
  void Upload(const std::string& tenant, const test::Pattern& pattern, const std::string& name) {
    UploadHeader header = HeaderOf(name, pattern);
    header.tenant = tenant;
    auto upload = modules_.catalog.BeginUpload(header);
    ASSERT_TRUE(upload.ok()) << upload.status();
    std::vector<float> values(pattern.nnz());
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 13) - 6;
    ASSERT_TRUE(Feed(**upload, Upload::kRowOffsets, pattern.row_offsets).ok());
    ASSERT_TRUE(Feed(**upload, Upload::kColumnIndices, pattern.column_indices).ok());
    ASSERT_TRUE(Feed(**upload, Upload::kValues, values).ok());
    ASSERT_TRUE((*upload)->Finish(1).ok());
  }
  static std::vector<float> Operand(int64_t elements) {
    std::vector<float> operand(elements);
    for (int64_t i = 0; i < elements; ++i) operand[i] = static_cast<float>(i % 29) / 7 - 2;
    return operand;
  }
  struct Begun {
    std::shared_ptr<Call> call;
    std::shared_ptr<Result> result = std::make_shared<Result>();
  };
  template <typename Spec>
  Begun Begin(const Spec& spec) {
    Begun begun;
    auto call = executor_->Begin(spec, begun.result);
    EXPECT_TRUE(call.ok()) << call.status();
    if (call.ok()) begun.call = *std::move(call);
    return begun;
  }
  Begun Spmm(const std::string& tenant, const test::Pattern& pattern, int64_t k,
             bool transpose = false) {
    SpmmSpec spec;
    spec.tenant = tenant;
    spec.matrix = "m";
    spec.transpose = transpose;
    spec.b.shape = DenseShape{transpose ? pattern.rows : pattern.cols, k, 0, ElementType::kF32};
    Begun begun = Begin(spec);
    EXPECT_TRUE(FeedAndCommit(*begun.call, 0, Operand(spec.b.shape->rows * k)).ok());
    return begun;
  }
  Begun Sddmm(const std::string& tenant, const test::Pattern& pattern, int64_t k) {
    SddmmSpec spec;
    spec.tenant = tenant;
    spec.matrix = "m";
    spec.a.shape = DenseShape{pattern.rows, k, 0, ElementType::kF32};
    spec.b.shape = DenseShape{pattern.cols, k, 0, ElementType::kF32};
    spec.b.stream_array = 1;
    Begun begun = Begin(spec);
    EXPECT_TRUE(FeedAndCommit(*begun.call, 0, Operand(pattern.rows * k)).ok());
    EXPECT_TRUE(FeedAndCommit(*begun.call, 1, Operand(pattern.cols * k)).ok());
    return begun;
  }
  /// B, then S (S B), S^T of that.
  Begun Chain(const std::string& tenant, const test::Pattern& pattern, int64_t k) {
    ChainSpec spec;
    spec.tenant = tenant;
    spec.operands.resize(1);
    spec.operands[0].shape = DenseShape{pattern.cols, k, 0, ElementType::kF32};
    spec.steps = {SpmmStep{.matrix = "m", .b = 0}, SpmmStep{.matrix = "m", .b = 1},
                  SpmmStep{.matrix = "m", .transpose = true, .b = 2}};
    spec.results.resize(1);
    spec.results[0].value = 3;
    Begun begun = Begin(spec);
    EXPECT_TRUE(FeedAndCommit(*begun.call, 0, Operand(pattern.cols * k)).ok());
    return begun;
  }
  /// Tiny requests of another tenant, one after the other, until it ended; how many.
  int RunBeside(const Begun& huge) {
    huge.call->Submit();
    int ended = 0;
    std::atomic<bool> over = false;
    std::thread waits([&] {
      EXPECT_TRUE(huge.result->Wait().ok());
      over = true;
    });
    while (!over) {
      const Begun tiny = Spmm("tiny tenant", tiny_, 1);
      tiny.call->Submit();
      EXPECT_TRUE(tiny.result->Wait().ok());
      if (!over) ++ended;
    }
    waits.join();
    return ended;
  }
  /// Attention and the gradients of all that it has, of four heads.
  Begun Attention(const std::string& tenant, const test::Pattern& pattern, int64_t k) {
    ChainSpec spec;
    spec.tenant = tenant;
    spec.operands.resize(3);
    for (uint32_t i = 0; i < 3; ++i) {
      spec.operands[i].shape =
          DenseShape{i == 0 ? pattern.rows : pattern.cols, k, 0, ElementType::kF32};
      spec.operands[i].stream_array = i;
    }
    const AttentionScores scores = {.heads = 4, .scale = 0.01, .left = 0, .right = 1};
    spec.steps = {AttentionStep{.matrix = "m", .scores = scores, .values = 2},
                  AttentionGradientStep{.matrix = "m",
                                        .scores = scores,
                                        .values = 2,
                                        .result = 3,
                                        .log_sums = 4,
                                        .gradient = 0,
                                        .of_left = true,
                                        .of_right = true,
                                        .of_values = true}};
    spec.results.resize(4);
    for (size_t i = 0; i < 4; ++i) spec.results[i].value = i == 0 ? 3 : 4 + i;
    Begun begun = Begin(spec);
    for (uint32_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(FeedAndCommit(*begun.call, i, Operand(spec.operands[i].shape->rows * k)).ok());
    }
    return begun;
  }
  Begun Spgemm(const std::string& tenant, const std::string& factor) {
    SpgemmSpec spec;
    spec.tenant = tenant;
    spec.left = spec.right = factor;
    spec.count_first = true;
    return Begin(spec);
  }
  /// `least` tiny ones of another tenant went before its end.
  void ExpectTheSameBeside(const std::function<Begun()>& begin, int least = 3) {
    const Begun alone = begin();
    alone.call->Submit();
    ASSERT_TRUE(alone.result->Wait().ok());
    // Whole, it would let one of them before it, or as many as it has steps. Where others have the
    // processors, tiny ones come late: then once more.
    int most = 0;
    for (int tries = 0; tries < kTries && most < least; ++tries) {
      const Begun beside = begin();
      most = std::max(most, RunBeside(beside));
      EXPECT_TRUE(alone.result->bytes == beside.result->bytes) << "it has other bits";
      EXPECT_EQ(alone.result->plan, beside.result->plan);
    }
    EXPECT_GE(most, least);
  }
  /// Cancels one that gave way, before it ended.
  void ExpectCancelled(const std::function<Begun()>& begin) {
    bool cancelled = false;
    for (int tries = 0; tries < kTries && !cancelled; ++tries) {
      const Begun huge = begin();
      huge.call->Submit();
      for (int i = 0; i < 3; ++i) {
        const Begun tiny = Spmm("tiny tenant", tiny_, 1);
        tiny.call->Submit();
        EXPECT_TRUE(tiny.result->Wait().ok());
      }
      huge.call->Cancel();
      cancelled = absl::IsCancelled(huge.result->Wait());
      EXPECT_EQ(executor_->in_flight(), 0);
    }
    EXPECT_TRUE(cancelled);
  }

  const test::Pattern huge_ = test::Rmat(15, 24, 3);
  const test::Pattern tiny_ = test::Uniform(50, 50, 4, 1);
  Modules modules_;
  Observer observer_;
  std::unique_ptr<Executor> executor_;
};

TEST_F(FairnessTest, AnSpmmThatGaveWayHasTheSameBits) {
  ExpectTheSameBeside([&] { return Spmm("huge tenant", huge_, kWide); });
}

TEST_F(FairnessTest, ATransposedSpmmThatGaveWayHasTheSameBits) {
  ExpectTheSameBeside([&] { return Spmm("huge tenant", huge_, kWide, /*transpose=*/true); });
}

TEST_F(FairnessTest, AnSddmmThatGaveWayHasTheSameBits) {
  ExpectTheSameBeside([&] { return Sddmm("huge tenant", huge_, kWide); });
}

TEST_F(FairnessTest, AChainGivesWayWithinItsProducts) {
  ExpectTheSameBeside([&] { return Chain("huge tenant", huge_, kWide); });
}

TEST_F(FairnessTest, AttentionGivesWayWithinItsPasses) {
  ExpectTheSameBeside([&] { return Attention("huge tenant", huge_, kWide); }, /*least=*/8);
}

TEST_F(FairnessTest, AttentionThatGaveWayCanBeCancelled) {
  ExpectCancelled([&] { return Attention("huge tenant", huge_, 2 * kWide); });
}

TEST_F(FairnessTest, AnSpgemmGivesWayWhileItIsCounted) {
  int most = 0;
  for (int tries = 0; tries < kTries && most < 3; ++tries) {
    // What was counted once is known: each time another pattern.
    const std::string factor = fmt::format("factor{}", tries);
    Upload("huge tenant", test::Uniform(30'000, 30'000, 16, 5 + tries), factor);
    const Begun beside = Spgemm("huge tenant", factor);
    beside.call->Submit();
    int ended = 0;
    while (!beside.result->began) {
      const Begun tiny = Spmm("tiny tenant", tiny_, 1);
      tiny.call->Submit();
      EXPECT_TRUE(tiny.result->Wait().ok());
      if (!beside.result->began) ++ended;
    }
    most = std::max(most, ended);
    ASSERT_TRUE(beside.result->Wait().ok());
    const Begun alone = Spgemm("huge tenant", factor);
    alone.call->Submit();
    ASSERT_TRUE(alone.result->Wait().ok());
    EXPECT_EQ(alone.result->row_offsets, beside.result->row_offsets);
    EXPECT_EQ(alone.result->column_indices, beside.result->column_indices);
    EXPECT_TRUE(alone.result->bytes == beside.result->bytes) << "it has other bits";
  }
  // Whole, it would let one of them before it.
  EXPECT_GE(most, 3);
}

TEST_F(FairnessTest, ATrialGivesWayWithinItsRuns) {
  const ProblemSignature c = {.operation = Operation::kSpmm,
                              .type = ElementType::kF32,
                              .k_bucket = 256,
                              .device = DeviceKind::kCpu};
  auto trial = Trial::Begin(c, huge_.rows, huge_.cols, huge_.nnz(), executor_->backend(DeviceId{}),
                            *executor_, nullptr);
  ASSERT_TRUE(trial.ok()) << trial.status();
  const auto matrix = modules_.catalog.Find("huge tenant", "m");
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  const auto csr = (*matrix)->pattern()->Csr();
  ASSERT_TRUE(csr.ok()) << csr.status();
  Array values = executor_->backend(DeviceId{}).ValuesFor(**matrix, **csr, HeapMemory(), 1).value();
  const auto kernels = LayoutKernels(Operation::kSpmm);
  const auto kernel = std::ranges::find_if(
      kernels, [&](const LayoutKernel& k) { return k.Serves(ProblemOf(c), **csr); });
  (*trial)->set_baseline({*csr, std::move(values), std::string(kernel->name())});
  int most = 0;
  for (int tries = 0; tries < kTries && most < 12; ++tries) {
    std::atomic<bool> over = false;
    std::thread trying([&] {
      const auto times = (*trial)->BaselineAlone(/*budget_ms=*/0);
      EXPECT_TRUE(times.ok()) << times.status();
      EXPECT_TRUE(!times.ok() || times->median > 0);
      over = true;
    });
    int ended = 0;
    while (!over) {
      const Begun tiny = Spmm("tiny tenant", tiny_, 1);
      tiny.call->Submit();
      EXPECT_TRUE(tiny.result->Wait().ok());
      if (!over) ++ended;
    }
    trying.join();
    most = std::max(most, ended);
  }
  // Four runs, which whole would let one before each.
  EXPECT_GE(most, 12);
}

TEST_F(FairnessTest, ALongOneThatGaveWayCanBeCancelled) {
  ExpectCancelled([&] { return Spmm("huge tenant", huge_, 4 * kWide); });
}

TEST_F(FairnessTest, WeightsMayBeSetAtAnyTime) {
  executor_->SetWeights({{{"huge tenant", 4}}});
  EXPECT_GE(RunBeside(Spmm("huge tenant", huge_, kWide)), 1);
  executor_->SetWeights({});
  const TenantSeconds seconds = executor_->tenant_seconds(DeviceId{});
  EXPECT_GT(seconds.named().at("huge tenant").seconds, 0);
  EXPECT_GT(seconds.named().at("tiny tenant").seconds, 0);
}

}  // namespace
}  // namespace sparsed::engine
