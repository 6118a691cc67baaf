// Buffers that are distributed over two cards by columns, and what is computed with them.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/execution/attachments.h"
#include "engine/execution/gpu_backend.h"
#include "tests/gpu/several_devices.h"

namespace sparsed::engine {
namespace {

class DistributedBuffers : public SeveralDevices {
 protected:
  int64_t BytesOut() const {
    int64_t bytes = 0;
    for (const auto& gpu : engine_->gpus()) bytes += gpu->bytes_out();
    return bytes;
  }
  std::vector<double> Reference(const std::vector<float>& b, int64_t k, double alpha = 1,
                                double beta = 0, const std::vector<float>& old = {},
                                bool transpose = false) const {
    const std::vector<float> floats = FloatsOf(pattern_);
    const std::vector<double> values(floats.begin(), floats.end());
    std::vector<double> c(kRows * k);
    if (beta != 0) c.assign(old.begin(), old.end());
    const std::vector<double> in(b.begin(), b.end());
    reference::Spmm(pattern_.view(), values.data(), transpose, in.data(), k, k, alpha, beta,
                    c.data());
    return c;
  }
  static std::vector<float> Random(uint64_t seed, int64_t k = kK) {
    const std::vector<double> values = test::RandomValues(kRows * k, seed);
    return {values.begin(), values.end()};
  }
};

TEST_F(DistributedBuffers, AreMultipliedWhereTheyAre) {
  const std::vector<float> x = Random(1);
  Hold("x", x, Distribution::kColumns);
  Hold("y", {});
  Hold("z", {});
  ASSERT_EQ(Find("x")->blocks.size(), 2U);
  EXPECT_TRUE(Find("y")->blocks.empty());
  EXPECT_EQ(Whole("x"), x);
  const int64_t before = BytesOut();
  const auto sink = std::make_shared<Result>();
  ASSERT_TRUE(Compute(Spmm("x", "y"), sink).ok());
  EXPECT_NE(sink->plan.find("columns over 2 GPUs"), std::string::npos) << sink->plan;
  EXPECT_GT(sink->end().timings.kernel_ns, 0U);
  EXPECT_EQ(sink->end().version, 1U);
  EXPECT_EQ(observer_.runs().size(), 2U) << "each card has its part";
  ASSERT_EQ(Find("y")->blocks.size(), 2U) << "a result lies as its operand";
  for (int i = 0; i < 3; ++i) {
    Multiply("y", "z");
    Multiply("z", "y");
  }
  EXPECT_EQ(BytesOut(), before) << "nothing left the cards";
  std::vector<double> expected(x.begin(), x.end());
  for (int i = 0; i < 7; ++i) expected = Product(expected);
  ExpectNear(Whole("y"), expected);
}

TEST_F(DistributedBuffers, HaveAnyWidth) {
  for (const int64_t k : {1, 2, 3, 7, 65}) {
    const std::vector<float> x = Random(k, k);
    Hold("x", x, Distribution::kColumns, k);
    Hold("y", {}, Distribution::kWhole, k);
    EXPECT_EQ(Find("x")->blocks.size(), k < 2 ? 0U : 2U) << k;
    EXPECT_EQ(Whole("x"), x);
    const auto sink = std::make_shared<Result>();
    ASSERT_TRUE(Compute(Spmm("x", "y"), sink).ok());
    ExpectNear(Whole("y"), Reference(x, k));
  }
}

TEST_F(DistributedBuffers, AreScaledAddedToAndTransposed) {
  const std::vector<float> x = Random(2), old = Random(3);
  for (const Distribution of_old : {Distribution::kWhole, Distribution::kColumns}) {
    for (const bool transpose : {false, true}) {
      Hold("x", x, Distribution::kColumns);
      Hold("c", old, of_old);
      SpmmSpec spec = Spmm("x", "c");
      spec.transpose = transpose;
      spec.alpha = -0.5;
      spec.beta = 2;
      spec.accumulate = OperandSpec();
      spec.accumulate->held = "c";
      const auto sink = std::make_shared<Result>();
      ASSERT_TRUE(Compute(spec, sink).ok());
      EXPECT_EQ(Find("c")->blocks.size(), 2U);
      ExpectNear(Whole("c"), Reference(x, kK, -0.5, 2, old, transpose));
    }
  }
}

TEST_F(DistributedBuffers, MayHaveNoRows) {
  PutHeader header{"t", "empty", {0, 4, 4, ElementType::kF32}, /*zeros=*/true};
  header.distribution = Distribution::kColumns;
  ASSERT_TRUE((*engine_->dense().BeginPut(std::move(header)))->Finish().ok());
  ASSERT_EQ(Find("empty")->blocks.size(), 2U);
  EXPECT_TRUE(Whole("empty").empty());
}

TEST_F(DistributedBuffers, AreSentWhole) {
  const std::vector<float> x = Random(4);
  Hold("x", x, Distribution::kColumns);
  SpmmSpec spec = Spmm("x", "");
  const auto sink = std::make_shared<Result>();
  ASSERT_TRUE(Compute(spec, sink).ok());
  ExpectNear(sink->Elements<float>(), Reference(x, kK));
}

TEST_F(DistributedBuffers, GiveSampledProducts) {
  const std::vector<float> a = Random(5), b = Random(6);
  const std::vector<float> floats = FloatsOf(pattern_);
  const std::vector<double> values(floats.begin(), floats.end());
  const std::vector<double> wide_a(a.begin(), a.end()), wide_b(b.begin(), b.end());
  std::vector<double> expected(values.size());
  reference::Sddmm(pattern_.view(), values.data(), wide_a.data(), kK, wide_b.data(), kK, kK,
                   expected.data());
  Hold("a", a, Distribution::kColumns);
  for (const Distribution of_b : {Distribution::kWhole, Distribution::kColumns}) {
    Hold("b", b, of_b);
    SddmmSpec spec;
    spec.tenant = "t";
    spec.matrix = "s";
    spec.a.held = "a";
    spec.b.held = "b";
    const auto sink = std::make_shared<Result>();
    const absl::Status ended = Compute(spec, sink);
    ASSERT_TRUE(ended.ok()) << ended;
    EXPECT_NE(sink->plan.find("columns over 2 GPUs"), std::string::npos) << sink->plan;
    EXPECT_EQ(sink->end().version, 1U);
    ExpectNear(sink->Elements<float>(), expected);
  }
  EXPECT_EQ(observer_.runs().size(), 2U);
  int64_t exchanged = 0;
  for (const auto& gpu : engine_->gpus()) exchanged += gpu->bytes_from_peers();
  EXPECT_EQ(exchanged, static_cast<int64_t>(2 * values.size() * sizeof(float)))
      << "one card's sums, twice";
}

TEST_F(DistributedBuffers, GoThroughChainsByColumns) {
  const std::vector<float> x = Random(7);
  Hold("x", x, Distribution::kColumns);
  Hold("y", {});
  ChainSpec spec;
  spec.tenant = "t";
  spec.operands.resize(1);
  spec.operands[0].held = "x";
  SpmmStep step;
  step.matrix = "s";
  spec.steps.emplace_back(step);
  step.b = 1;
  spec.steps.emplace_back(step);
  SumStep sum;
  sum.terms = {{0, 0.5}, {1, 0.25}, {2, -1}};
  spec.steps.emplace_back(sum);
  spec.results.resize(1);
  spec.results[0].value = 3;
  spec.results[0].place.held = "y";
  const int64_t before = BytesOut();
  const auto sink = std::make_shared<Result>();
  absl::Status ended = Compute(spec, sink);
  ASSERT_TRUE(ended.ok()) << ended;
  EXPECT_NE(sink->plan.find("columns over 2 GPUs"), std::string::npos) << sink->plan;
  EXPECT_EQ(BytesOut(), before);
  EXPECT_EQ(sink->end().steps.size(), 3U);
  ASSERT_EQ(Find("y")->blocks.size(), 2U);
  const std::vector<double> once = Product({x.begin(), x.end()}), twice = Product(once);
  std::vector<double> expected(once.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i] = 0.5 * x[i] + 0.25 * once[i] - twice[i];
  }
  ExpectNear(Whole("y"), expected);
  // A sampled product needs whole rows: it is put together for one card.
  spec.steps.clear();
  SddmmStep sampled;
  sampled.matrix = "s";
  spec.steps.emplace_back(sampled);
  step.b = 0;
  step.values = 1;
  spec.steps.emplace_back(step);
  spec.results[0].value = 2;
  ended = Compute(spec, std::make_shared<Result>());
  ASSERT_TRUE(ended.ok()) << ended;
  EXPECT_TRUE(Find("y")->blocks.empty());
}

TEST_F(DistributedBuffers, GoThroughAttentionByHeads) {
  constexpr int64_t kHeads = 4;
  ChainSpec spec;
  spec.tenant = "t";
  spec.operands.resize(3);
  AttentionStep attention;
  attention.matrix = "s";
  attention.scores = {.heads = kHeads, .scale = 0.3, .left = 0, .right = 1};
  attention.values = 2;
  spec.steps.emplace_back(attention);
  spec.results.resize(2);
  spec.results[0].value = 3;
  spec.results[0].place.held = "o";
  spec.results[1].value = 4;
  spec.results[1].place.held = "sums";
  std::vector<std::vector<float>> whole;
  for (const Distribution distribution : {Distribution::kWhole, Distribution::kColumns}) {
    for (size_t i = 0; i < 3; ++i) {
      const std::string name(1, "qkv"[i]);
      Hold(name, Random(20 + i), distribution);
      spec.operands[i].held = name;
    }
    Hold("o", {});
    Hold("sums", {}, Distribution::kWhole, kHeads);
    const auto sink = std::make_shared<Result>();
    const absl::Status ended = Compute(spec, sink);
    ASSERT_TRUE(ended.ok()) << ended;
    const bool distributed = distribution == Distribution::kColumns;
    EXPECT_EQ(Find("o")->blocks.size(), distributed ? 2U : 0U) << sink->plan;
    EXPECT_EQ(Find("sums")->blocks.size(), distributed ? 2U : 0U);
    whole.push_back(Whole("o"));
    whole.push_back(Whole("sums"));
  }
  ExpectNear(whole[2], {whole[0].begin(), whole[0].end()});
  ExpectNear(whole[3], {whole[1].begin(), whole[1].end()});
  // Of three heads no two cards have as many.
  std::get<AttentionStep>(spec.steps[0]).scores.heads = 3;
  Hold("sums", {}, Distribution::kWhole, 3);
  const absl::Status ended = Compute(spec, std::make_shared<Result>());
  ASSERT_TRUE(ended.ok()) << ended;
  EXPECT_TRUE(Find("o")->blocks.empty());
}

TEST_F(DistributedBuffers, AreRefusedAsOthersAre) {
  const auto sink = std::make_shared<Result>();
  Hold("x", Random(8), Distribution::kColumns);
  Hold("narrow", {}, Distribution::kColumns, 5);
  const auto error = [&](const SpmmSpec& spec) {
    const auto call = engine_->executor().Begin(spec, sink);
    return call.ok() ? absl::OkStatus() : call.status();
  };
  absl::Status status = error(Spmm("x", "narrow"));
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_EQ(status.message(), "the result is 500 x 24 f32, but the buffer 'narrow' is 500 x 5 f32");
  // Of 24 and 25 columns the first parts are alike, and nothing stays locked.
  Hold("wide", {}, Distribution::kColumns, kK + 1);
  ChainSpec chain;
  chain.tenant = "t";
  chain.operands.resize(1);
  chain.operands[0].held = "x";
  SpmmStep step;
  step.matrix = "s";
  chain.steps.emplace_back(step);
  chain.results.resize(1);
  chain.results[0].value = 1;
  chain.results[0].place.held = "wide";
  for (int i = 0; i < 2; ++i) {
    const auto refused = engine_->executor().Begin(chain, sink);
    EXPECT_EQ(refused.status().message(),
              "result 0: the result is 500 x 24 f32, but the buffer 'wide' is 500 x 25 f32");
  }
  SddmmSpec sampled;
  sampled.tenant = "t";
  sampled.matrix = "s";
  sampled.a.held = sampled.b.held = "x";
  sampled.result.held = "none";
  EXPECT_TRUE(absl::IsNotFound(engine_->executor().Begin(sampled, sink).status()));
  status = error(Spmm("x", "none"));
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  status = error(Spmm("none", "x"));
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  SpmmSpec spec = Spmm("x", "x");
  spec.matrix = "none";
  EXPECT_TRUE(absl::IsNotFound(error(spec)));
  spec = Spmm("x", "x");
  spec.b.shape = DenseShape{kRows, 12, 12, ElementType::kF32};
  status = error(spec);
  EXPECT_EQ(status.message(),
            "operand B is announced as 500 x 12 f32, but the buffer 'x' is 500 x 24 f32");
  // Whoever writes it is alone, and not for longer than that.
  auto first = engine_->executor().Begin(Spmm("x", "x"), sink);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(absl::IsAborted(error(Spmm("x", "x"))));
  (*first)->Submit();
  ASSERT_TRUE(sink->Wait().ok());
  ASSERT_TRUE(Compute(Spmm("x", "x"), std::make_shared<Result>()).ok());
}

TEST_F(DistributedBuffers, EndOnceWhenTheyAreStopped) {
  const std::vector<float> x = Random(9);
  Hold("x", x, Distribution::kColumns);
  Hold("y", {});
  auto sink = std::make_shared<Result>();
  auto call = engine_->executor().Begin(Spmm("x", "y"), sink);
  ASSERT_TRUE(call.ok()) << call.status();
  (*call)->Cancel();
  EXPECT_TRUE(absl::IsCancelled(sink->Wait()));
  (*call)->Submit();
  EXPECT_TRUE(Find("y")->blocks.empty());
  sink = std::make_shared<Result>();
  SpmmSpec spec = Spmm("x", "y");
  spec.timeout_ns = 1;
  call = engine_->executor().Begin(spec, sink);
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(sink->Wait())) << "though nobody submitted it";
  (*call)->Submit();
  // What they held is free again.
  ASSERT_TRUE(Compute(Spmm("x", "y"), std::make_shared<Result>()).ok());
  ExpectNear(Whole("y"), Reference(x, kK));
  EXPECT_EQ(engine_->executor().in_flight(), 0);
}

}  // namespace
}  // namespace sparsed::engine
