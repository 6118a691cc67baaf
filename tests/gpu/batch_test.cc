// SpMM calls that run as one on a card: operands of every kind and width, results to every place.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "kernels/reference/reference.h"
#include "tests/gpu/stand_in.h"
#include "tests/unit/engine/calls.h"
#include "tests/unit/engine/modules.h"

namespace sparsed::engine {
namespace {

using cuda::stand_in::Step;

constexpr int64_t kRows = 90, kCols = 70;
/// Widths that the card has padded, and one that it has not.
constexpr int64_t kWidths[] = {1, 3, 16, 5, 7};

class BatchOnACard : public ::testing::Test {
 protected:
  void SetUp() override {
    EngineOptions options;
    options.host_memory_bytes = options.preparation_memory_bytes = int64_t{256} << 20;
    options.gpu = DeviceOptions{.memory_bytes = int64_t{520} << 20};
    options.preparation.enabled = false;
    // For who is coming, not until a time.
    options.execution.batch_wait = std::chrono::hours(1);
    engine_ = Engine::Open(options, observer_).value();
    ASSERT_FALSE(engine_->gpus().empty()) << engine_->devices().back().unavailable;
    ASSERT_TRUE(SendMatrix(engine_->catalog(), "s", pattern_).ok());
  }
  void TearDown() override { cuda::stand_in::Heal(); }

  static std::vector<float> Random(int64_t count, uint64_t seed) {
    const std::vector<double> values = test::RandomValues(count, seed);
    return {values.begin(), values.end()};
  }
  static std::vector<double> Wide(const std::vector<float>& of) { return {of.begin(), of.end()}; }

  struct Asked {
    std::shared_ptr<Call> call;
    std::shared_ptr<Result> result = std::make_shared<Result>();
    SpmmSpec spec;
    std::vector<float> b, c;
    Buffer shared_c;
    DenseShape shape;
  };

  std::string Hold(const std::string& name, const DenseShape& shape,
                   const std::vector<float>& elements) {
    auto put = engine_->dense().BeginPut({"t", name, shape, elements.empty(), false});
    EXPECT_TRUE(put.ok()) << put.status();
    EXPECT_TRUE(elements.empty() || Feed(**put, 0, elements).ok());
    EXPECT_TRUE((*put)->Finish().ok());
    return name;
  }
  /// As memory that a client shares, which here is anybody's.
  static Buffer Shared(const std::vector<float>& elements) {
    Buffer memory = HeapMemory().Allocate(elements.size() * sizeof(float)).value();
    std::memcpy(memory.mutable_data(), elements.data(), elements.size() * sizeof(float));
    return memory;
  }

  /// Call number `i` of a batch, whose operands lie in another place each time.
  Asked Ask(int i, bool transpose, double beta) {
    const int64_t k = kWidths[i % std::size(kWidths)], ldb = k + i % 2, ldc = k + i % 3;
    const int64_t in = transpose ? kRows : kCols, out = transpose ? kCols : kRows;
    Asked asked;
    asked.b = Random((in - 1) * ldb + k, i);
    asked.shape = {out, k, ldc, ElementType::kF32};
    asked.c = Random(asked.shape.elements(), i + 100);
    SpmmSpec& spec = asked.spec;
    spec.tenant = std::string("t");
    spec.matrix = std::string("s");
    spec.transpose = transpose;
    spec.alpha = 1.5;
    spec.beta = beta;
    spec.b.shape = DenseShape{in, k, ldb, ElementType::kF32};
    if (i % 3 == 1) spec.b.held = Hold(fmt::format("b{}", i), *spec.b.shape, asked.b);
    if (i % 3 == 2) spec.b.shared = Shared(asked.b);
    if (beta != 0) {
      spec.accumulate.emplace();
      spec.accumulate->shape = asked.shape;
      spec.accumulate->stream_array = 1;
    }
    if (i % 4 == 1) spec.result.held = Hold(fmt::format("c{}", i), asked.shape, {});
    if (i % 4 == 2) {
      spec.result.shared = asked.shared_c = Shared(asked.c);
      spec.result.shape = asked.shape;
    }
    spec.result_leading_dimension = ldc;
    auto call = engine_->executor().Begin(spec, asked.result);
    EXPECT_TRUE(call.ok()) << call.status();
    asked.call = *call;
    EXPECT_TRUE(i % 3 != 0 || FeedAndCommit(**call, 0, asked.b).ok());
    EXPECT_TRUE(beta == 0 || FeedAndCommit(**call, 1, asked.c).ok());
    return asked;
  }
  std::vector<Asked> AskAll(int count, bool transpose, double beta) {
    std::vector<Asked> all;
    for (int i = 0; i < count; ++i) all.push_back(Ask(i, transpose, beta));
    return all;
  }

  void ExpectRight(const Asked& asked, int64_t batch) {
    const absl::Status status = asked.result->Wait();
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(asked.result->end().batch, batch);
    const int64_t k = asked.shape.cols, ldc = asked.shape.leading_dimension;
    std::vector<float> got = asked.result->Elements<float>();
    if (!asked.spec.result.held.empty()) {
      const auto held = engine_->dense().Find("t", asked.spec.result.held);
      ASSERT_TRUE(held.ok());
      got = Elements<float>((*held)->elements->Get());
    } else if (asked.shared_c.size() > 0) {
      got.resize(asked.shape.elements());
      std::memcpy(got.data(), asked.shared_c.data(), got.size() * sizeof(float));
    }
    ASSERT_EQ(std::ssize(got), asked.shape.elements());
    std::vector<double> expected(asked.shape.rows * k), magnitudes(expected.size());
    for (size_t i = 0; i < expected.size(); ++i) expected[i] = asked.c[i / k * ldc + i % k];
    reference::Spmm(pattern_.view(), Wide(FloatsOf(pattern_)).data(), asked.spec.transpose,
                    Wide(asked.b).data(), asked.spec.b.shape->leading_dimension, k,
                    asked.spec.alpha, asked.spec.beta, expected.data(), magnitudes.data());
    std::vector<float> packed(expected.size());
    for (size_t i = 0; i < packed.size(); ++i) packed[i] = got[i / k * ldc + i % k];
    ExpectSums<float>(packed, expected, magnitudes, pattern_.nnz());
  }

  const test::Pattern pattern_ = test::Uniform(kRows, kCols, 6, 12);
  Observer observer_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(BatchOnACard, EachGetsItsOwn) {
  for (const bool transpose : {false, true}) {
    for (const double beta : {0.0, -0.5}) {
      SCOPED_TRACE(testing::Message() << transpose << " " << beta);
      const std::vector<Asked> all = AskAll(12, transpose, beta);
      for (const Asked& asked : all) asked.call->Submit();
      for (const Asked& asked : all) ExpectRight(asked, 12);
    }
  }
}

TEST_F(BatchOnACard, WhatFailsTogetherRunsApart) {
  const std::vector<Asked> all = AskAll(12, false, -0.5);
  // The first kernel is that of the batch.
  cuda::stand_in::Fail(Step::kKernel, 0, 1, absl::ResourceExhaustedError("no room, says the test"));
  for (const Asked& asked : all) asked.call->Submit();
  for (const Asked& asked : all) ExpectRight(asked, 1);
  EXPECT_EQ(cuda::stand_in::Failed(Step::kKernel), 1);
}

TEST_F(BatchOnACard, OneThatIsCancelledLeavesTheOthersAlone) {
  const std::vector<Asked> all = AskAll(6, false, 0);
  for (int i = 0; i < 4; ++i) all[i].call->Submit();
  all[2].call->Cancel();
  EXPECT_TRUE(absl::IsCancelled(all[2].result->Wait()));
  all[4].call->Cancel();
  EXPECT_TRUE(absl::IsCancelled(all[4].result->Wait()));
  all[5].call->Submit();
  for (const int i : {0, 1, 3, 5}) ExpectRight(all[i], 4);
}

/// A vector multiplied by the transpose of a few rows of `cols` columns: to bring the result back
/// takes longest.
class WideBatchOnACard : public BatchOnACard {
 protected:
  std::vector<Asked> SubmitVectors(int64_t cols, int count) {
    const test::Pattern wide = test::FromRows(cols, {{0, 5}, {}, {7}});
    EXPECT_TRUE(SendMatrix(engine_->catalog(), "wide", wide).ok());
    std::vector<Asked> all(count);
    for (Asked& asked : all) {
      asked.spec.tenant = "t";
      asked.spec.matrix = "wide";
      asked.spec.transpose = true;
      asked.spec.b.shape = DenseShape{wide.rows, 1, 1, ElementType::kF32};
      auto call = engine_->executor().Begin(asked.spec, asked.result);
      EXPECT_TRUE(call.ok()) << call.status();
      asked.call = *std::move(call);
      EXPECT_TRUE(FeedAndCommit(*asked.call, 0, std::vector<float>(wide.rows, 1)).ok());
    }
    for (const Asked& asked : all) asked.call->Submit();
    return all;
  }
  static std::vector<int64_t> BatchesOf(const std::vector<Asked>& all) {
    std::vector<int64_t> batches;
    for (const Asked& asked : all) {
      const absl::Status status = asked.result->Wait();
      EXPECT_TRUE(status.ok()) << status;
      batches.push_back(asked.result->end().batch);
    }
    return batches;
  }
};

TEST_F(WideBatchOnACard, ShortOnesAreJoinedForAsLongAsAShortOneTakes) {
  // 0.3 ms each: eleven would have room for one another.
  EXPECT_EQ(BatchesOf(SubmitVectors(1'400'000, 6)), std::vector<int64_t>(6, 2));
}

TEST_F(WideBatchOnACard, LongOnesAreJoined) {
  // 1.2 ms each: there is room for two.
  EXPECT_EQ(BatchesOf(SubmitVectors(6'000'000, 4)), std::vector<int64_t>(4, 2));
}

}  // namespace
}  // namespace sparsed::engine
