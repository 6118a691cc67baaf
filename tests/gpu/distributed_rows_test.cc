// Buffers that lie in rows over two cards and three, and what is computed with them.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/catalog/catalog.h"
#include "engine/execution/derived_patterns.h"
#include "kernels/formats/row_bounds.h"
#include "tests/gpu/several_devices.h"

namespace sparsed::engine {
namespace {

class BuffersInRows : public SeveralDevices, public ::testing::WithParamInterface<int> {
 protected:
  int cards() const override { return GetParam(); }
  absl::Status Put(const std::string& name, int64_t rows, int64_t k, const std::vector<float>& data,
                   Distribution distribution, const std::string& rows_of = "") {
    PutHeader header;
    header.name = name;
    header.shape = {rows, k, k, ElementType::kF32};
    header.distribution = distribution;
    if (!rows_of.empty()) header.rows_of = engine_->catalog().Find("t", rows_of).value();
    return SeveralDevices::Put(std::move(header), data);
  }
  int64_t Sum(int64_t (Device::*of)() const) const {
    int64_t sum = 0;
    for (const auto& gpu : engine_->gpus()) sum += (gpu.get()->*of)();
    return sum;
  }
  void ExpectInRows(const std::string& name) {
    ASSERT_EQ(Find(name)->distribution(), Distribution::kRows) << name;
    EXPECT_EQ(Find(name)->blocks.size(), static_cast<size_t>(cards()));
  }
  /// Of the operand that go from one card to another.
  int64_t Exchanged(const test::Pattern& s, const std::vector<int64_t>& bounds) const {
    int64_t rows = 0;
    for (size_t part = 0; part + 1 < bounds.size(); ++part) {
      std::set<int32_t> named;
      for (int64_t i = s.row_offsets[bounds[part]]; i < s.row_offsets[bounds[part + 1]]; ++i) {
        const int32_t column = s.column_indices[i];
        if (column < bounds[part] || column >= bounds[part + 1]) named.insert(column);
      }
      rows += static_cast<int64_t>(named.size());
    }
    return rows;
  }
  static std::vector<double> Reference(const test::Pattern& s, const std::vector<float>& floats,
                                       const std::vector<float>& b, int64_t k, double alpha = 1,
                                       double beta = 0, const std::vector<float>& old = {},
                                       bool transpose = false) {
    const std::vector<double> values(floats.begin(), floats.end());
    std::vector<double> c((transpose ? s.cols : s.rows) * k);
    if (beta != 0) c.assign(old.begin(), old.end());
    const std::vector<double> in(b.begin(), b.end());
    reference::Spmm(s.view(), values.data(), transpose, in.data(), k, k, alpha, beta, c.data());
    return c;
  }
  static std::vector<float> Random(uint64_t seed, int64_t count = kRows * kK) {
    const std::vector<double> values = test::RandomValues(count, seed);
    return {values.begin(), values.end()};
  }
};

TEST_P(BuffersInRows, AreMultipliedWhereTheyAre) {
  const std::vector<float> x = Random(1);
  Hold("x", x, Distribution::kRows);
  Hold("y", {});
  Hold("z", {});
  ExpectInRows("x");
  EXPECT_EQ(Whole("x"), x);
  const int64_t before = Sum(&Device::bytes_out);
  const auto sink = std::make_shared<Result>();
  const absl::Status ended = Compute(Spmm("x", "y"), sink);
  ASSERT_TRUE(ended.ok()) << ended;
  EXPECT_NE(sink->plan.find(InRows()), std::string::npos) << sink->plan;
  EXPECT_GT(sink->end().timings.kernel_ns, 0U);
  EXPECT_EQ(sink->end().version, 1U);
  EXPECT_TRUE(sink->end().steps.empty());
  EXPECT_EQ(observer_.runs().size(), static_cast<size_t>(cards())) << "each card has its part";
  ExpectInRows("y");
  for (int i = 0; i < 3; ++i) {
    Multiply("y", "z");
    Multiply("z", "y");
  }
  EXPECT_EQ(Sum(&Device::bytes_out), before) << "nothing left the cards";
  const int64_t rows = Exchanged(pattern_, RowBoundsOf(Find("x")->blocks));
  EXPECT_EQ(Sum(&Device::bytes_from_peers), 7 * rows * kK * static_cast<int64_t>(sizeof(float)));
  EXPECT_GT(engine_->executor().derived().bytes(), 0) << "what was found is kept";
  std::vector<double> expected(x.begin(), x.end());
  for (int i = 0; i < 7; ++i) expected = Product(expected);
  ExpectNear(Whole("y"), expected);
}

TEST_P(BuffersInRows, HaveAnyWidth) {
  for (const int64_t k : {1, 2, 3, 7, 65}) {
    const std::vector<float> x = Random(k, kRows * k);
    Hold("x", x, Distribution::kRows, k);
    Hold("y", {}, Distribution::kWhole, k);
    EXPECT_EQ(Whole("x"), x);
    const auto sink = std::make_shared<Result>();
    ASSERT_TRUE(Compute(Spmm("x", "y"), sink).ok());
    EXPECT_NE(sink->plan.find(InRows()), std::string::npos) << sink->plan;
    ExpectInRows("y");
    ExpectNear(Whole("y"), Reference(pattern_, FloatsOf(pattern_), x, k));
  }
}

TEST_P(BuffersInRows, AreScaledAddedToAndTransposed) {
  const std::vector<float> x = Random(2), old = Random(3);
  for (const Distribution of_old :
       {Distribution::kWhole, Distribution::kColumns, Distribution::kRows}) {
    for (const bool transpose : {false, true}) {
      Hold("x", x, Distribution::kRows);
      Hold("c", old, of_old);
      SpmmSpec spec = Spmm("x", "c");
      spec.transpose = transpose;
      spec.alpha = -0.5;
      spec.beta = 2;
      spec.accumulate = OperandSpec();
      spec.accumulate->held = "c";
      const auto sink = std::make_shared<Result>();
      const absl::Status ended = Compute(spec, sink);
      ASSERT_TRUE(ended.ok()) << ended;
      EXPECT_NE(sink->plan.find(InRows()), std::string::npos) << sink->plan;
      EXPECT_EQ(sink->plan.find("cut into rows") == std::string::npos,
                of_old == Distribution::kRows)
          << sink->plan;
      ExpectInRows("c");
      ExpectNear(Whole("c"),
                 Reference(pattern_, FloatsOf(pattern_), x, kK, -0.5, 2, old, transpose));
    }
  }
}

TEST_P(BuffersInRows, LieAsAMatrixHasItsNonzeros) {
  const test::Pattern skewed = [] {
    test::Pattern s = test::Uniform(kRows, kRows, 3, 5);
    // All rows have three nonzeros but the first twenty, which have a hundred.
    s.row_offsets = {0};
    s.column_indices.clear();
    for (int64_t row = 0; row < kRows; ++row) {
      const int64_t count = row < 20 ? 100 : 3;
      for (int64_t i = 0; i < count; ++i) {
        s.column_indices.push_back(static_cast<int32_t>((row + i * 4) % kRows));
      }
      std::sort(s.column_indices.begin() + s.row_offsets.back(), s.column_indices.end());
      s.row_offsets.push_back(static_cast<int64_t>(s.column_indices.size()));
    }
    return s;
  }();
  ASSERT_TRUE(SendMatrix(engine_->catalog(), "skewed", skewed).ok());
  const std::vector<float> x = Random(4);
  ASSERT_TRUE(Put("x", kRows, kK, x, Distribution::kRows, "skewed").ok());
  const std::vector<int64_t> bounds = RowBoundsOf(Find("x")->blocks);
  EXPECT_EQ(bounds, RowBoundsByNonzeros(skewed.view(), cards()));
  EXPECT_LT(bounds[1], kRows / cards() / 2) << "the first rows have more nonzeros";
  Hold("y", {});
  ASSERT_TRUE(Compute(Spmm("x", "y", "skewed"), std::make_shared<Result>()).ok());
  EXPECT_EQ(RowBoundsOf(Find("y")->blocks), bounds);
  ExpectNear(Whole("y"), Reference(skewed, FloatsOf(skewed), x, kK));

  const absl::Status other = Put("z", kRows + 1, kK, {}, Distribution::kRows, "skewed");
  EXPECT_EQ(other.message(),
            "buffer 'z' is to have the rows of 'skewed', which has 500 of them, not 501");
  EXPECT_TRUE(absl::IsInvalidArgument(Put("z", kRows, kK, {}, Distribution::kWhole, "skewed")));
  // With fewer rows than cards it is whole.
  ASSERT_TRUE(Put("few", 1, kK, {}, Distribution::kRows).ok());
  EXPECT_EQ(Find("few")->distribution(), Distribution::kWhole);
}

TEST_P(BuffersInRows, OfOblongMatricesLieByTheirNonzeros) {
  for (const int64_t rows : {200, 900}) {
    const test::Pattern s = test::Uniform(rows, kRows, 5, 7);
    ASSERT_TRUE(SendMatrix(engine_->catalog(), "o" + std::to_string(rows), s).ok());
    const std::vector<float> x = Random(5);
    Hold("x", x, Distribution::kRows);
    ASSERT_TRUE(Put("y", rows, kK, {}, Distribution::kWhole).ok());
    const auto sink = std::make_shared<Result>();
    const absl::Status ended = Compute(Spmm("x", "y", "o" + std::to_string(rows)), sink);
    ASSERT_TRUE(ended.ok()) << ended;
    EXPECT_NE(sink->plan.find(InRows()), std::string::npos) << sink->plan;
    EXPECT_EQ(RowBoundsOf(Find("y")->blocks), RowBoundsByNonzeros(s.view(), cards()));
    ExpectNear(Whole("y"), Reference(s, FloatsOf(s), x, kK));
  }
}

TEST_P(BuffersInRows, FetchNothingThatNoColumnNames) {
  test::Pattern diagonal = test::Uniform(kRows, kRows, 1, 1);
  for (int64_t row = 0; row <= kRows; ++row) diagonal.row_offsets[row] = row;
  diagonal.column_indices.resize(kRows);
  std::iota(diagonal.column_indices.begin(), diagonal.column_indices.end(), 0);
  ASSERT_TRUE(SendMatrix(engine_->catalog(), "d", diagonal).ok());
  const std::vector<float> x = Random(6);
  Hold("x", x, Distribution::kRows);
  Hold("y", {});
  const auto sink = std::make_shared<Result>();
  ASSERT_TRUE(Compute(Spmm("x", "y", "d"), sink).ok());
  EXPECT_NE(sink->plan.find(", 0 bytes exchanged"), std::string::npos) << sink->plan;
  EXPECT_EQ(Sum(&Device::bytes_from_peers), 0);
  ExpectNear(Whole("y"), Reference(diagonal, FloatsOf(diagonal), x, kK));
}

TEST_P(BuffersInRows, AreSentWhole) {
  const std::vector<float> x = Random(7);
  Hold("x", x, Distribution::kRows);
  const auto sink = std::make_shared<Result>();
  const absl::Status ended = Compute(Spmm("x", ""), sink);
  ASSERT_TRUE(ended.ok()) << ended;
  EXPECT_NE(sink->plan.find(InRows()), std::string::npos) << sink->plan;
  ExpectNear(sink->Elements<float>(), Reference(pattern_, FloatsOf(pattern_), x, kK));
}

TEST_P(BuffersInRows, FollowTheMatrixsValues) {
  const std::vector<float> x = Random(8);
  Hold("x", x, Distribution::kRows);
  Hold("y", {});
  ASSERT_TRUE(Compute(Spmm("x", "y"), std::make_shared<Result>()).ok());
  const int64_t kept = engine_->executor().derived().bytes();
  for (uint64_t seed = 50; seed < 53; ++seed) {
    const std::vector<float> values = FloatsOf(pattern_, seed);
    auto update = engine_->catalog().BeginUpdate({"t", "s", ElementType::kF32, false, 0});
    ASSERT_TRUE(update.ok()) << update.status();
    ASSERT_TRUE(Feed(**update, 0, values).ok());
    ASSERT_TRUE((*update)->Finish(1).ok());
    const auto sink = std::make_shared<Result>();
    ASSERT_TRUE(Compute(Spmm("x", "y"), sink).ok());
    EXPECT_GT(sink->end().version, 1U);
    ExpectNear(Whole("y"), Reference(pattern_, values, x, kK));
  }
  EXPECT_EQ(engine_->executor().derived().bytes(), kept) << "of the pattern, whatever the values";
}

TEST_P(BuffersInRows, TakeThePlanOfTheWholeMatrix) {
  const std::shared_ptr<Pattern> pattern = engine_->catalog().Find("t", "s").value()->pattern();
  const std::vector<float> x = Random(9);
  Hold("x", x, Distribution::kRows);
  Hold("y", {});
  const auto plan = [&] {
    const auto sink = std::make_shared<Result>();
    const absl::Status ended = Compute(Spmm("x", "y"), sink);
    EXPECT_TRUE(ended.ok()) << ended;
    ExpectNear(Whole("y"), Reference(pattern_, FloatsOf(pattern_), x, kK));
    return sink->plan;
  };
  EXPECT_NE(plan().find(": csr / cuda.csr."), std::string::npos) << plan();
  BuildContext context;
  context.memory = &HeapMemory();
  auto built = BuildLayout(*ParsePipeline("dcsr"), ViewCsr(**pattern->Csr()), context);
  ASSERT_TRUE(built.ok()) << built.status();
  ASSERT_FALSE(built->skipped) << built->notes;
  pattern->AddLayout(std::make_shared<const Layout>(std::move(built->layout)), 0.1);
  Plan better;
  better.signature = SignatureOf({.operation = Operation::kSpmm,
                                  .type = ElementType::kF32,
                                  .k = kK,
                                  .device = DeviceKind::kCuda});
  better.pipeline = "dcsr";
  better.kernel = "cuda.dcsr.rows";
  pattern->plans().Replace(
      std::make_shared<const ActivePlan>(ActivePlan{better, pattern->FindLayout("dcsr")}));
  EXPECT_NE(plan().find("dcsr / cuda.dcsr.rows"), std::string::npos) << plan();
}

TEST_P(BuffersInRows, GoThroughChains) {
  const std::vector<float> x = Random(10);
  Hold("x", x, Distribution::kRows);
  Hold("y", {});
  ChainSpec spec;
  spec.tenant = "t";
  spec.operands.resize(1);
  spec.operands[0].held = "x";
  SpmmStep step;
  step.matrix = "s";
  spec.steps.emplace_back(step);
  step.b = 1;
  step.alpha = -1;
  step.beta = 0.25;
  step.accumulate = 1;
  spec.steps.emplace_back(step);
  SumStep sum;
  sum.terms = {{0, 0.5}, {2, 1}};
  spec.steps.emplace_back(sum);
  spec.results.resize(1);
  spec.results[0].value = 3;
  spec.results[0].place.held = "y";
  const int64_t before = Sum(&Device::bytes_out);
  const auto sink = std::make_shared<Result>();
  const absl::Status ended = Compute(spec, sink);
  ASSERT_TRUE(ended.ok()) << ended;
  EXPECT_NE(sink->plan.find(InRows()), std::string::npos) << sink->plan;
  EXPECT_EQ(Sum(&Device::bytes_out), before) << "nothing left the cards";
  ASSERT_EQ(sink->end().steps.size(), 3U);
  EXPECT_TRUE(sink->end().steps[0].plan.starts_with("csr / cuda.csr."))
      << sink->end().steps[0].plan;
  EXPECT_EQ(sink->end().steps[2].plan, "sum");
  ExpectInRows("y");
  const std::vector<double> once = Product({x.begin(), x.end()}), twice = Product(once);
  std::vector<double> expected(once.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i] = 0.5 * x[i] + 0.25 * once[i] - twice[i];
  }
  ExpectNear(Whole("y"), expected);

  // Two results, one of which the other is made of.
  Hold("once", {});
  spec.steps.resize(2);
  spec.results.resize(2);
  spec.results[0].value = 2;
  spec.results[1].value = 1;
  spec.results[1].place.held = "once";
  ASSERT_TRUE(Compute(spec, std::make_shared<Result>()).ok());
  ExpectInRows("once");
  ExpectNear(Whole("once"), once);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] -= 0.5 * x[i];
  ExpectNear(Whole("y"), expected);
}

TEST_P(BuffersInRows, ArePutTogetherForWhatIsNotComputedSo) {
  Hold("x", Random(11), Distribution::kRows);
  // A mean over rows in a chain.
  ChainSpec spec;
  spec.tenant = "t";
  spec.operands.resize(1);
  spec.operands[0].held = "x";
  ReduceStep mean;
  mean.matrix = "s";
  spec.steps.emplace_back(mean);
  spec.results.resize(1);
  spec.results[0].value = 1;
  spec.results[0].place.held = "y";
  Hold("y", {});
  ASSERT_TRUE(Compute(spec, std::make_shared<Result>()).ok());
  EXPECT_EQ(Find("y")->distribution(), Distribution::kWhole);
}

TEST_P(BuffersInRows, AreRefusedAsOthersAre) {
  const auto sink = std::make_shared<Result>();
  Hold("x", Random(12), Distribution::kRows);
  Hold("narrow", {}, Distribution::kRows, 5);
  const auto error = [&](const SpmmSpec& spec) {
    const auto call = engine_->executor().Begin(spec, sink);
    return call.ok() ? absl::OkStatus() : call.status();
  };
  const absl::Status status = error(Spmm("x", "narrow"));
  EXPECT_EQ(status.message(), "the result is 500 x 24 f32, but the buffer 'narrow' is 500 x 5 f32");
  EXPECT_TRUE(absl::IsNotFound(error(Spmm("x", "none"))));
  EXPECT_TRUE(absl::IsNotFound(error(Spmm("none", "x"))));
  EXPECT_TRUE(absl::IsNotFound(error(Spmm("x", "x", "none"))));
  // Whoever writes it is alone, and not for longer than that.
  auto first = engine_->executor().Begin(Spmm("x", "x"), sink);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(absl::IsAborted(error(Spmm("x", "x"))));
  (*first)->Submit();
  ASSERT_TRUE(sink->Wait().ok());
  ASSERT_TRUE(Compute(Spmm("x", "x"), std::make_shared<Result>()).ok());
}

TEST_P(BuffersInRows, EndOnceWhenTheyAreStopped) {
  const std::vector<float> x = Random(13);
  Hold("x", x, Distribution::kRows);
  Hold("y", {});
  for (const bool known : {false, true}) {
    auto sink = std::make_shared<Result>();
    auto call = engine_->executor().Begin(Spmm("x", "y"), sink);
    ASSERT_TRUE(call.ok()) << call.status();
    (*call)->Cancel();
    EXPECT_TRUE(absl::IsCancelled(sink->Wait()));
    (*call)->Submit();
    sink = std::make_shared<Result>();
    SpmmSpec spec = Spmm("x", "y");
    spec.timeout_ns = 1;
    call = engine_->executor().Begin(spec, sink);
    ASSERT_TRUE(call.ok()) << call.status();
    EXPECT_TRUE(absl::IsDeadlineExceeded(sink->Wait())) << "though nobody submitted it";
    (*call)->Submit();
    EXPECT_EQ(Find("y")->version, known ? 2U : 1U);
    // What they held is free again.
    ASSERT_TRUE(Compute(Spmm("x", "y"), std::make_shared<Result>()).ok());
    ExpectNear(Whole("y"), Reference(pattern_, FloatsOf(pattern_), x, kK));
  }
  EXPECT_EQ(engine_->executor().in_flight(), 0);
}

INSTANTIATE_TEST_SUITE_P(Over, BuffersInRows, ::testing::Values(2, 3),
                         [](const auto& of) { return std::to_string(of.param) + "Cards"; });

}  // namespace
}  // namespace sparsed::engine
