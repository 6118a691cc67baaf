// Two tenants on one lane of the CPU: long products give way, and their results stay what they are.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/execution/executor.h"
#include "tests/unit/engine/calls.h"
#include "tests/unit/engine/rooms.h"

namespace sparsed::engine {
namespace {

class FairnessTest : public testing::Test {
 protected:
  static constexpr int64_t kWide = 192;

  FairnessTest() {
    rooms_.catalog.on_published = [](auto&&...) {};
    rooms_.catalog.on_pattern_gone = [](const std::shared_ptr<Pattern>&) {};
    executor_ = std::make_unique<Executor>(ExecutorOptions{.lanes = 1, .threads_per_lane = 1},
                                           rooms_.catalog, rooms_.dense, rooms_.budget, observer_);
    Upload("huge tenant", huge_, "m");
    Upload("tiny tenant", tiny_, "m");
  }
  void Upload(const std::string& tenant, const test::Pattern& pattern, const std::string& name) {
    UploadHeader header = HeaderOf(name, pattern);
    header.tenant = tenant;
    auto upload = rooms_.catalog.BeginUpload(header);
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
  void ExpectTheSameBeside(const std::function<Begun()>& begin) {
    const Begun alone = begin();
    alone.call->Submit();
    ASSERT_TRUE(alone.result->Wait().ok());
    const Begun beside = begin();
    // Whole, it would let one of them before it.
    EXPECT_GE(RunBeside(beside), 3);
    EXPECT_TRUE(alone.result->bytes == beside.result->bytes) << "it has other bits";
    EXPECT_EQ(alone.result->plan, beside.result->plan);
  }

  const test::Pattern huge_ = test::Rmat(15, 24, 3);
  const test::Pattern tiny_ = test::Uniform(50, 50, 4, 1);
  Rooms rooms_;
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

TEST_F(FairnessTest, ALongOneThatGaveWayCanBeCancelled) {
  const Begun huge = Spmm("huge tenant", huge_, 4 * kWide);
  huge.call->Submit();
  for (int i = 0; i < 3; ++i) {
    const Begun tiny = Spmm("tiny tenant", tiny_, 1);
    tiny.call->Submit();
    EXPECT_TRUE(tiny.result->Wait().ok());
  }
  huge.call->Cancel();
  EXPECT_TRUE(absl::IsCancelled(huge.result->Wait()));
  EXPECT_EQ(executor_->in_flight(), 0);
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
