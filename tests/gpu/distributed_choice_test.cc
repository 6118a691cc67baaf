// How operands lie on two cards and three where the server chooses, and what else lies in rows: all
// types, sampled products, what is durable, what is cut, and layouts that are built meanwhile.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/catalog/catalog.h"
#include "engine/execution/derived_patterns.h"
#include "engine/execution/distributions.h"
#include "engine/execution/gpu_backend.h"
#include "engine/execution/part_exchange.h"
#include "engine/preparation/distribution_trial.h"
#include "engine/preparation/preparation.h"
#include "kernels/formats/row_bounds.h"
#include "kernels/half.h"
#include "tests/gpu/several_devices.h"

namespace sparsed::engine {
namespace {

class SeveralCards : public SeveralDevices, public ::testing::WithParamInterface<int> {
 protected:
  int cards() const override { return GetParam(); }
  template <typename T>
  absl::Status PutRows(const std::string& name, int64_t rows, int64_t k,
                       const std::vector<T>& data) {
    PutHeader header;
    header.name = name;
    header.shape = {rows, k, k, ElementTypeOf<T>()};
    header.distribution = Distribution::kRows;
    return Put(std::move(header), data);
  }
  absl::Status PutAuto(const std::string& name, int64_t rows, int64_t k,
                       const std::string& matrix) {
    PutHeader header;
    header.name = name;
    header.shape = {rows, k, k, ElementType::kF32};
    header.distribution = Distribution::kAuto;
    if (!matrix.empty()) header.rows_of = engine_->catalog().Find("t", matrix).value();
    return Put<float>(std::move(header), {});
  }
  static SddmmSpec Sddmm(const std::string& a, const std::string& b,
                         const std::string& matrix = "s") {
    SddmmSpec spec;
    spec.tenant = "t";
    spec.matrix = matrix;
    spec.a.held = a;
    spec.b.held = b;
    return spec;
  }
  template <typename T>
  static std::vector<T> Random(uint64_t seed, int64_t count) {
    std::vector<T> values;
    for (const double value : test::RandomValues(count, seed)) {
      values.push_back(static_cast<T>(static_cast<float>(value)));
    }
    return values;
  }
  template <typename T>
  static std::vector<double> Wide(const std::vector<T>& values) {
    std::vector<double> wide;
    for (const T value : values) wide.push_back(static_cast<double>(static_cast<float>(value)));
    return wide;
  }
  template <typename T>
  static double EpsilonOf() {
    if (ElementTypeOf<T>() == ElementType::kF16) return 0x1p-10;
    if (ElementTypeOf<T>() == ElementType::kBF16) return 0x1p-7;
    return ElementTypeOf<T>() == ElementType::kF32 ? 0x1p-23 : 0x1p-52;
  }
  /// Of a sum of `terms` products, rounded twice, by the magnitudes that were added.
  template <typename T>
  static void ExpectSums(const std::vector<T>& got, const std::vector<double>& expected,
                         const std::vector<double>& magnitudes, double terms) {
    ASSERT_EQ(got.size(), expected.size());
    // Those of 16 bits are added up in f32.
    const double sums = std::min(EpsilonOf<T>(), 0x1p-23) * (terms + 4);
    for (size_t i = 0; i < got.size(); ++i) {
      const double error = std::abs(static_cast<double>(static_cast<float>(got[i])) - expected[i]);
      // float above is exact for all but f64.
      const double of_float = EpsilonOf<T>() < 0x1p-23 ? 0x1p-23 : 0;
      ASSERT_LE(error, (2 * EpsilonOf<T>() + sums + of_float) * (magnitudes[i] + 1e-30)) << i;
    }
  }
  static std::vector<double> Absolute(std::vector<double> values) {
    for (double& value : values) value = std::abs(value);
    return values;
  }

  template <typename T>
  void ExpectRowsOfType() {
    const std::vector<T> values = Random<T>(1, pattern_.nnz());
    UploadHeader header = HeaderOf("typed", pattern_);
    header.type = ElementTypeOf<T>();
    header.replace = true;
    ASSERT_TRUE(
        Send(engine_->catalog(), header, pattern_.row_offsets, pattern_.column_indices, values)
            .ok());
    const std::vector<T> x = Random<T>(2, kRows * kK), y = Random<T>(3, kRows * kK);
    ASSERT_TRUE(PutRows("x", kRows, kK, x).ok());
    ASSERT_TRUE(PutRows("y", kRows, kK, y).ok());
    for (const bool transpose : {false, true}) {
      ASSERT_TRUE(PutRows("c", kRows, kK, std::vector<T>(kRows * kK)).ok());
      SpmmSpec spec = Spmm("x", "c", "typed");
      spec.transpose = transpose;
      const auto sink = std::make_shared<Result>();
      const absl::Status ended = Compute(spec, sink);
      ASSERT_TRUE(ended.ok()) << ended;
      EXPECT_NE(sink->plan.find(InRows()), std::string::npos) << sink->plan;
      std::vector<double> expected(kRows * kK), magnitudes(kRows * kK);
      reference::Spmm(pattern_.view(), Wide(values).data(), transpose, Wide(x).data(), kK, kK, 1, 0,
                      expected.data());
      reference::Spmm(pattern_.view(), Absolute(Wide(values)).data(), transpose,
                      Absolute(Wide(x)).data(), kK, kK, 1, 0, magnitudes.data());
      ExpectSums(Whole<T>("c"), expected, magnitudes, 40);
    }
    const auto sink = std::make_shared<Result>();
    const absl::Status ended = Compute(Sddmm("x", "y", "typed"), sink);
    ASSERT_TRUE(ended.ok()) << ended;
    EXPECT_NE(sink->plan.find(InRows()), std::string::npos) << sink->plan;
    std::vector<double> expected(values.size()), magnitudes(values.size());
    reference::Sddmm(pattern_.view(), Wide(values).data(), Wide(x).data(), kK, Wide(y).data(), kK,
                     kK, expected.data());
    reference::Sddmm(pattern_.view(), Absolute(Wide(values)).data(), Absolute(Wide(x)).data(), kK,
                     Absolute(Wide(y)).data(), kK, kK, magnitudes.data());
    ExpectSums(sink->Elements<T>(), expected, magnitudes, kK);
  }
};

TEST_P(SeveralCards, ComputeEachTypeByRows) {
  ExpectRowsOfType<float>();
  ExpectRowsOfType<double>();
  ExpectRowsOfType<Float16>();
  ExpectRowsOfType<BFloat16>();
}

TEST_P(SeveralCards, SampleProductsByRows) {
  for (const int64_t rows : {kRows, int64_t{200}, int64_t{900}}) {
    const test::Pattern s = test::Uniform(rows, kRows, 5, 7);
    ASSERT_TRUE(SendMatrix(engine_->catalog(), "o" + std::to_string(rows), s).ok());
    const std::vector<float> a = Random<float>(4, rows * kK), b = Random<float>(5, kRows * kK);
    ASSERT_TRUE(PutRows("a", rows, kK, a).ok());
    ASSERT_TRUE(PutRows("b", kRows, kK, b).ok());
    std::vector<double> expected(s.nnz()), ones(s.nnz(), 1), unscaled(s.nnz());
    reference::Sddmm(s.view(), Wide(FloatsOf(s)).data(), Wide(a).data(), kK, Wide(b).data(), kK, kK,
                     expected.data());
    reference::Sddmm(s.view(), ones.data(), Wide(a).data(), kK, Wide(b).data(), kK, kK,
                     unscaled.data());
    SddmmSpec spec = Sddmm("a", "b", "o" + std::to_string(rows));
    for (const bool plain : {false, true}) {
      spec.unscaled = plain;
      const auto sink = std::make_shared<Result>();
      const absl::Status ended = Compute(spec, sink);
      ASSERT_TRUE(ended.ok()) << ended;
      EXPECT_NE(sink->plan.find(InRows()), std::string::npos) << sink->plan;
      EXPECT_EQ(sink->end().version, 1U);
      ExpectNear(sink->Elements<float>(), plain ? unscaled : expected);
    }
    // Into a buffer, which lies whole.
    PutHeader header;
    header.name = "values";
    header.shape = {s.nnz(), 1, 1, ElementType::kF32};
    ASSERT_TRUE(Put<float>(std::move(header), {}).ok());
    spec.unscaled = false;
    spec.result.held = "values";
    ASSERT_TRUE(Compute(spec, std::make_shared<Result>()).ok());
    EXPECT_EQ(Find("values")->distribution(), Distribution::kWhole);
    ExpectNear(Whole("values"), expected);
    spec.result.held = "none";
    EXPECT_TRUE(absl::IsNotFound(Compute(spec, std::make_shared<Result>())));
  }
}

TEST_P(SeveralCards, SampleProductsInTheOrderOfTheUpload) {
  // Each row's columns the wrong way round.
  test::Pattern reversed = pattern_;
  for (int64_t row = 0; row < reversed.rows; ++row) {
    std::reverse(reversed.column_indices.begin() + reversed.row_offsets[row],
                 reversed.column_indices.begin() + reversed.row_offsets[row + 1]);
  }
  UploadHeader header = HeaderOf("reversed", reversed);
  header.sort = true;
  ASSERT_TRUE(Send(engine_->catalog(), header, reversed.row_offsets, reversed.column_indices,
                   FloatsOf(reversed))
                  .ok());
  const std::vector<float> x = Random<float>(6, kRows * kK);
  ASSERT_TRUE(PutRows("x", kRows, kK, x).ok());
  std::vector<double> expected(reversed.nnz());
  reference::Sddmm(reversed.view(), Wide(FloatsOf(reversed)).data(), Wide(x).data(), kK,
                   Wide(x).data(), kK, kK, expected.data());
  const auto sink = std::make_shared<Result>();
  ASSERT_TRUE(Compute(Sddmm("x", "x", "reversed"), sink).ok());
  EXPECT_NE(sink->plan.find(InRows()), std::string::npos) << sink->plan;
  ExpectNear(sink->Elements<float>(), expected);
}

TEST_P(SeveralCards, SampleProductsAtTheEndOfChains) {
  const std::vector<float> x = Random<float>(7, kRows * kK);
  ASSERT_TRUE(PutRows("x", kRows, kK, x).ok());
  ChainSpec spec;
  spec.tenant = "t";
  spec.operands.resize(1);
  spec.operands[0].held = "x";
  SpmmStep spmm;
  spmm.matrix = "s";
  spec.steps.emplace_back(spmm);
  SddmmStep sddmm;
  sddmm.matrix = "s";
  sddmm.a = 1;
  sddmm.b = 0;
  spec.steps.emplace_back(sddmm);
  spec.results.resize(1);
  spec.results[0].value = 2;
  const auto sink = std::make_shared<Result>();
  const absl::Status ended = Compute(spec, sink);
  ASSERT_TRUE(ended.ok()) << ended;
  EXPECT_NE(sink->plan.find(InRows()), std::string::npos) << sink->plan;
  ASSERT_EQ(sink->end().steps.size(), 2U);
  const std::vector<double> once = Product(Wide(x));
  std::vector<double> expected(pattern_.nnz());
  reference::Sddmm(pattern_.view(), Wide(FloatsOf(pattern_)).data(), once.data(), kK,
                   Wide(x).data(), kK, kK, expected.data());
  ExpectNear(sink->Elements<float>(), expected);
}

TEST_P(SeveralCards, RunAllStepsOfAChainAtOnce) {
  const std::vector<float> x = Random<float>(20, kRows * kK), c = Random<float>(21, kRows * kK);
  ASSERT_TRUE(PutRows("x", kRows, kK, x).ok());
  Hold("c", c);
  Hold("y", {});
  Hold("between", {});
  ChainSpec spec;
  spec.tenant = "t";
  spec.operands.resize(2);
  spec.operands[0].held = "x";
  spec.operands[1].held = "c";
  SpmmStep step;
  step.matrix = "s";
  spec.steps.emplace_back(step);  // 2: S x
  step.b = 2;
  step.transpose = true;
  step.alpha = 0.5;
  step.beta = -1;
  step.accumulate = 1;
  spec.steps.emplace_back(step);  // 3: S^T (S x) / 2 - c
  SumStep sum;
  sum.terms = {{3, 0.5}, {2, 1}, {0, -2}};
  spec.steps.emplace_back(sum);  // 4
  step = {};
  step.matrix = "s";
  step.b = 4;
  spec.steps.emplace_back(step);  // 5
  step.b = 5;
  step.beta = 3;
  step.accumulate = 2;
  spec.steps.emplace_back(step);  // 6
  spec.results.resize(2);
  spec.results[0].value = 6;
  spec.results[0].place.held = "y";
  spec.results[1].value = 4;
  spec.results[1].place.held = "between";

  const std::vector<double> floats = Wide(FloatsOf(pattern_));
  const auto multiply = [&](const std::vector<double>& b, bool transpose, double alpha, double beta,
                            std::vector<double> to) {
    to.resize(kRows * kK);
    reference::Spmm(pattern_.view(), floats.data(), transpose, b.data(), kK, kK, alpha, beta,
                    to.data());
    return to;
  };
  const std::vector<double> v2 = multiply(Wide(x), false, 1, 0, {});
  const std::vector<double> v3 = multiply(v2, true, 0.5, -1, Wide(c));
  std::vector<double> v4(v3.size());
  for (size_t i = 0; i < v4.size(); ++i) v4[i] = 0.5 * v3[i] + v2[i] - 2 * x[i];
  const std::vector<double> v6 = multiply(multiply(v4, false, 1, 0, {}), false, 1, 3, v2);
  // The first time it is found out what each card has.
  for (int run = 0; run < 4; ++run) {
    const auto sink = std::make_shared<Result>();
    const absl::Status ended = Compute(spec, sink);
    ASSERT_TRUE(ended.ok()) << ended;
    EXPECT_NE(sink->plan.find(InRows()), std::string::npos) << sink->plan;
    EXPECT_EQ(sink->plan.find("all steps at once") != std::string::npos, run > 0) << sink->plan;
    ASSERT_EQ(sink->end().steps.size(), 5U);
    EXPECT_EQ(sink->end().steps[2].plan, "sum");
    for (const int i : {0, 1, 3, 4}) {
      EXPECT_NE(sink->end().steps[i].plan.find(" / cuda."), std::string::npos);
      EXPECT_GT(sink->end().steps[i].nanoseconds, 0U);
    }
    ASSERT_EQ(Find("y")->distribution(), Distribution::kRows);
    ExpectNear(Whole("y"), v6);
    ExpectNear(Whole("between"), v4);
  }
  // Sent, it comes as it is.
  spec.results.resize(1);
  spec.results[0].place.held = "";
  const auto sink = std::make_shared<Result>();
  ASSERT_TRUE(Compute(spec, sink).ok());
  ExpectNear(sink->Elements<float>(), v6);
  // Many at a time: one of them at once, the others step by step.
  std::vector<std::shared_ptr<Result>> sinks;
  for (int i = 0; i < 8; ++i) {
    sinks.push_back(std::make_shared<Result>());
    auto call = engine_->executor().Begin(spec, sinks.back());
    ASSERT_TRUE(call.ok()) << call.status();
    (*call)->Submit();
    if (i % 4 == 3) (*call)->Cancel();
  }
  for (size_t i = 0; i < sinks.size(); ++i) {
    const absl::Status ended = sinks[i]->Wait();
    if (i % 4 == 3 && absl::IsCancelled(ended)) continue;
    ASSERT_TRUE(ended.ok()) << ended;
    ExpectNear(sinks[i]->Elements<float>(), v6);
  }
  EXPECT_EQ(engine_->executor().in_flight(), 0);
}

TEST_P(SeveralCards, CutWhatLiesOtherwiseOnce) {
  const std::vector<float> x = Random<float>(8, kRows * kK), old = Random<float>(9, kRows * kK);
  ASSERT_TRUE(PutRows("x", kRows, kK, x).ok());
  Hold("old", old);
  Hold("c", {});
  SpmmSpec spec = Spmm("x", "c");
  spec.beta = 2;
  spec.accumulate = OperandSpec();
  spec.accumulate->held = "old";
  const int64_t bytes = kRows * kK * static_cast<int64_t>(sizeof(float));
  for (int i = 0; i < 3; ++i) {
    const auto sink = std::make_shared<Result>();
    const absl::Status ended = Compute(spec, sink);
    ASSERT_TRUE(ended.ok()) << ended;
    EXPECT_EQ(sink->plan.find("bytes cut into rows") != std::string::npos, i == 0) << sink->plan;
    EXPECT_EQ(observer_.moved_by_host(), bytes) << "the next requests use what was cut";
  }
  std::vector<double> expected = Product(Wide(x));
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += 2 * old[i];
  ExpectNear(Whole("c"), expected);
}

TEST_P(SeveralCards, SayWhatIsPutTogether) {
  const std::vector<float> x = Random<float>(10, kRows * kK);
  ASSERT_TRUE(PutRows("x", kRows, kK, x).ok());
  Hold("y", {});
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
  const std::string bytes = std::to_string(kRows * kK * sizeof(float));
  const auto sink = std::make_shared<Result>();
  ASSERT_TRUE(Compute(spec, sink).ok());
  EXPECT_NE(sink->plan.find(", " + bytes + " bytes put together on the host"), std::string::npos)
      << sink->plan;
  EXPECT_EQ(std::to_string(observer_.moved_by_host()), bytes);
  const auto again = std::make_shared<Result>();
  ASSERT_TRUE(Compute(spec, again).ok());
  EXPECT_EQ(again->plan.find("put together"), std::string::npos) << again->plan;
}

TEST_P(SeveralCards, ChooseHowAnOperandLies) {
  const auto lies = [&](const std::string& name) { return Find(name)->distribution(); };
  // Of so few bytes parts cost more than they gain.
  ASSERT_TRUE(PutAuto("small", kRows, kK, "s").ok());
  EXPECT_EQ(lies("small"), Distribution::kWhole);
  const MatrixLease s = engine_->catalog().Find("t", "s").value();
  const auto choice = ChooseDistribution(engine_->executor(), *s, false, kK, nullptr);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->gpus, cards());
  ASSERT_EQ(choice->estimates.size(), 3U);
  EXPECT_EQ(choice->estimates[0].distribution, Distribution::kWhole);
  EXPECT_EQ(choice->estimates[1].exchanged_bytes, 0) << "columns";
  EXPECT_GT(choice->estimates[2].exchanged_bytes, 0) << "rows";
  EXPECT_FALSE(choice->tried.has_value());
  EXPECT_GT(choice->spread_ms, 0);
  // What was tried counts, where there were as many cards.
  const auto with_trial = [&](Distribution best, int gpus) {
    Plan plan;
    plan.signature = SignatureOf({.operation = Operation::kSpmm,
                                  .type = ElementType::kF32,
                                  .k = kK,
                                  .device = DeviceKind::kCuda});
    plan.kernel = "cuda.csr.rows";
    plan.distribution = TriedDistribution{best, gpus, 2, 1};
    s->pattern()->plans().Replace(std::make_shared<const ActivePlan>(ActivePlan{plan, nullptr}));
  };
  with_trial(Distribution::kColumns, cards());
  ASSERT_TRUE(PutAuto("columns", kRows, kK, "s").ok());
  EXPECT_EQ(lies("columns"), Distribution::kColumns);
  with_trial(Distribution::kRows, cards());
  ASSERT_TRUE(PutAuto("rows", kRows, kK, "s").ok());
  ASSERT_EQ(lies("rows"), Distribution::kRows);
  EXPECT_EQ(RowBoundsOf(Find("rows")->blocks), RowBoundsByNonzeros(pattern_.view(), cards()));
  with_trial(Distribution::kRows, cards() + 1);
  ASSERT_TRUE(PutAuto("others", kRows, kK, "s").ok());
  EXPECT_EQ(lies("others"), Distribution::kWhole);
  EXPECT_EQ(PutAuto("x", kRows, kK, "").message(),
            "buffer 'x' is to lie as is best for a matrix, and names none");
  EXPECT_EQ(PutAuto("x", kRows + 1, kK, "s").message(),
            "buffer 'x' is to be multiplied with 's', which is 500 x 500, but has 501 rows");
}

TEST_P(SeveralCards, LookAtNoNonzeroWhereATrialSaysWhatIsBest) {
  const MatrixLease s = engine_->catalog().Find("t", "s").value();
  const std::atomic<bool> stop = true;
  const auto choose = [&] {
    return ChooseDistribution(engine_->executor(), *s, false, kK, &stop, /*best_alone=*/true);
  };
  EXPECT_TRUE(absl::IsCancelled(choose().status()));
  Plan plan;
  plan.signature = SignatureOf({.operation = Operation::kSpmm,
                                .type = ElementType::kF32,
                                .k = kK,
                                .device = DeviceKind::kCuda});
  plan.kernel = "cuda.csr.rows";
  plan.distribution = TriedDistribution{Distribution::kRows, cards(), 2, 1};
  s->pattern()->plans().Replace(std::make_shared<const ActivePlan>(ActivePlan{plan, nullptr}));
  const auto known = choose();
  ASSERT_TRUE(known.ok()) << known.status();
  EXPECT_EQ(known->best, Distribution::kRows);
}

TEST_P(SeveralCards, SampleProductsOfColumnsBesideRows) {
  const std::vector<double> values = test::RandomValues(pattern_.nnz(), 30);
  const std::vector<float> a = Random<float>(31, kRows * kK), b = Random<float>(32, kRows * kK),
                           held = {values.begin(), values.end()};
  Hold("a", a, Distribution::kColumns);
  ASSERT_TRUE(PutRows("b", kRows, kK, b).ok());
  PutHeader header;
  header.name = "values";
  header.shape = {pattern_.nnz(), 1, 1, ElementType::kF32};
  ASSERT_TRUE(Put(std::move(header), held).ok());
  // By rows a request's own values are not taken.
  SddmmSpec spec = Sddmm("a", "b");
  spec.values = OperandSpec();
  spec.values->held = "values";
  const auto sink = std::make_shared<Result>();
  const absl::Status ended = Compute(spec, sink);
  ASSERT_TRUE(ended.ok()) << ended;
  EXPECT_NE(sink->plan.find("columns over " + std::to_string(cards()) + " GPUs"), std::string::npos)
      << sink->plan;
  std::vector<double> expected(pattern_.nnz());
  reference::Sddmm(pattern_.view(), Wide(held).data(), Wide(a).data(), kK, Wide(b).data(), kK, kK,
                   expected.data());
  ExpectNear(sink->Elements<float>(), expected);
}

TEST_P(SeveralCards, KeepLayoutsOfPartsAndAskForThoseThatTheyLack) {
  const MatrixLease s = engine_->catalog().Find("t", "s").value();
  const std::shared_ptr<Pattern>& pattern = s->pattern();
  BuildContext context;
  context.memory = &HeapMemory();
  auto built = BuildLayout(*ParsePipeline("dcsr"), ViewCsr(**pattern->Csr()), context);
  ASSERT_TRUE(built.ok()) << built.status();
  pattern->AddLayout(std::make_shared<const Layout>(std::move(built->layout)), 0.1);
  const Problem problem = {.operation = Operation::kSpmm,
                           .type = ElementType::kF32,
                           .k = kK,
                           .device = DeviceKind::kCuda};
  ActivePlan active;
  active.plan.signature = SignatureOf(problem);
  active.plan.pipeline = "dcsr";
  active.plan.kernel = "cuda.dcsr.rows";
  active.layout = pattern->FindLayout("dcsr");
  const auto plan = std::make_shared<const ActivePlan>(active);
  const auto find = [&](const std::shared_ptr<const ActivePlan>& of, bool with_layouts) {
    return FindOrBuildRows(engine_->executor().derived(), pattern, problem, of,
                           EvenBounds(kRows, cards()), with_layouts, engine_->budget(), nullptr)
        .value();
  };
  const auto has_layouts = [&](const RowDistribution& rows) {
    return std::ranges::all_of(rows.parts(), [&](const RowDistribution::Part& part) {
      return part.own->plans().Find(SignatureOf(problem)).plan->layout != nullptr;
    });
  };
  const auto rows = find(plan, /*with_layouts=*/false);
  EXPECT_FALSE(has_layouts(*rows));
  // Whoever was asked may not have built them.
  const auto now = std::chrono::steady_clock::now();
  EXPECT_TRUE(rows->AsksForLayouts(problem, plan, *pattern, now));
  EXPECT_FALSE(rows->AsksForLayouts(problem, plan, *pattern, now + std::chrono::minutes(1)));
  EXPECT_TRUE(rows->AsksForLayouts(problem, plan, *pattern, now + std::chrono::minutes(10)));
  find(plan, /*with_layouts=*/true);
  EXPECT_TRUE(has_layouts(*rows));
  EXPECT_FALSE(rows->AsksForLayouts(problem, plan, *pattern, now + std::chrono::hours(1)));
  // One that says the same, and more.
  active.plan.distribution = TriedDistribution{Distribution::kRows, cards(), 2, 1};
  const auto same = std::make_shared<const ActivePlan>(active);
  EXPECT_TRUE(rows->HasPlans(problem, same));
  find(same, /*with_layouts=*/false);
  EXPECT_TRUE(has_layouts(*rows));
  // Another kernel on the same layout.
  active.plan.kernel = "cuda.dcsr.other";
  const auto other = std::make_shared<const ActivePlan>(active);
  EXPECT_FALSE(rows->HasPlans(problem, other));
  find(other, /*with_layouts=*/false);
  EXPECT_TRUE(has_layouts(*rows)) << "they are there";
}

TEST(PartExchangeTest, LetsGoOfWhatIsShownOnceItIsStopped) {
  PartExchange exchange(2);
  const Token token([] {});
  auto array = std::make_shared<const Array>();
  const std::weak_ptr<const Array> shown = array;
  PartExchange::Shown mine;
  mine.value.array = std::move(array);
  std::thread first([&] {
    const auto met = exchange.Meet(0, std::move(mine), token);
    EXPECT_TRUE(absl::IsCancelled(met.status())) << met.status();
  });
  exchange.Stop(absl::CancelledError("a part ended"));
  first.join();
  mine = {};  // if the first came afterwards
  EXPECT_TRUE(shown.expired());
  // Nor does the last go on alone.
  EXPECT_TRUE(absl::IsCancelled(exchange.Meet(1, {}, token).status()));
}

TEST_P(SeveralCards, TryHowOperandsLie) {
  const MatrixLease s = engine_->catalog().Find("t", "s").value();
  const std::atomic<bool> stop = false;
  Plan plan;
  plan.signature = SignatureOf({.operation = Operation::kSpmm,
                                .type = ElementType::kF32,
                                .k = kK,
                                .device = DeviceKind::kCuda});
  plan.kernel = "cuda.csr.rows";
  s->pattern()->plans().Replace(std::make_shared<const ActivePlan>(ActivePlan{plan, nullptr}));
  std::atomic<int> asked = 0;
  engine_->executor().on_unknown_signature = [&](const MatrixLease&, const Problem&) { ++asked; };
  // Its name may be another matrix's before a trial begins.
  const test::Pattern narrow = test::Uniform(1, kRows, 6, 13);
  UploadHeader replacing = HeaderOf("s", narrow);
  replacing.replace = true;
  ASSERT_TRUE(Send(engine_->catalog(), replacing, narrow.row_offsets, narrow.column_indices,
                   FloatsOf(narrow))
                  .ok());
  for (const bool transposed : {false, true}) {
    for (const Distribution distribution : {Distribution::kColumns, Distribution::kRows}) {
      DistributionTrialSpec spec;
      spec.matrix = s;
      spec.problem = {.operation = Operation::kSpmm,
                      .transposed = transposed,
                      .type = ElementType::kF32,
                      .k = kK,
                      .device = DeviceKind::kCuda};
      spec.distribution = distribution;
      spec.bounds = ChosenBounds(pattern_.view(), transposed, cards());
      const auto times = TryDistribution(spec, engine_->executor(), engine_->budget(), &stop);
      ASSERT_TRUE(times.ok()) << times.status();
      EXPECT_GT(times->median, 0);
      EXPECT_GT(times->baseline_median, 0);
      EXPECT_GE(times->runs, 1);
    }
  }
  EXPECT_EQ(engine_->executor().in_flight(), 0);
  EXPECT_EQ(observer_.distributed(), 0) << "trials are nobody's requests";
  EXPECT_EQ(asked, 0) << "parts of other widths are to have no trials of their own";
  EXPECT_FALSE(s->pattern()->plans().uses().Of(plan).has_value());
  for (const GpuBackend& gpu : engine_->executor().gpus()) {
    EXPECT_FALSE(engine_->executor().tenant_seconds(gpu.id()).named().contains("t"));
  }
  EXPECT_TRUE(engine_->dense().List("t", "").empty());
  const std::atomic<bool> stopped = true;
  DistributionTrialSpec spec;
  spec.matrix = s;
  spec.problem.type = ElementType::kF32;
  spec.problem.k = kK;
  spec.problem.device = DeviceKind::kCuda;
  EXPECT_TRUE(absl::IsCancelled(
      TryDistribution(spec, engine_->executor(), engine_->budget(), &stopped).status()));
  spec.distribution = Distribution::kColumns;
  spec.until = std::chrono::steady_clock::now();
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      TryDistribution(spec, engine_->executor(), engine_->budget(), &stop).status()));
}

/// With a preparation, and a directory.
class PreparingCards : public SeveralCards {
 protected:
  void SetUp() override { Open(cards()); }
  void Open(int cards) {
    engine_.reset();
    EngineOptions options;
    options.host_memory_bytes = options.preparation_memory_bytes = int64_t{512} << 20;
    options.gpu = DeviceOptions{.memory_bytes = int64_t{1} << 30};
    options.gpu_ordinals.clear();
    for (int card = 0; card < cards; ++card) options.gpu_ordinals.push_back(card);
    options.data_dir = directory_.path();
    options.preparation.trial_budget_ms = 50;
    engine_ = Engine::Open(options, observer_).value();
    if (static_cast<int>(engine_->gpus().size()) < cards) {
      GTEST_SKIP() << engine_->devices().back().unavailable;
    }
  }
  bool Prepared(const Pattern& pattern) {
    return Eventually([&] {
      return pattern.progress().status().state == PreparationState::kReady &&
             engine_->preparation().pending() == 0;
    });
  }

  TemporaryDirectory directory_;
};

TEST_P(PreparingCards, SayInThePlanWhatBecameOfEachDistribution) {
  const auto sent = SendMatrix(engine_->catalog(), "s", pattern_);
  ASSERT_TRUE(sent.ok()) << sent.status();
  const Pattern& pattern = *(*sent)->pattern();
  ASSERT_TRUE(Prepared(pattern));
  const std::string over = " over " + std::to_string(cards()) + " GPUs";
  int decided = 0;
  for (const Decision& decision : pattern.trials().decisions()) {
    if (decision.pipeline != "columns" + over && decision.pipeline != "rows" + over) continue;
    ++decided;
    EXPECT_FALSE(decision.reason.empty());
  }
  EXPECT_EQ(decided, 2);
}

TEST_P(PreparingCards, KeepWhatWasTriedWhenAPipelineIsAskedFor) {
  const auto sent = SendMatrix(engine_->catalog(), "s", pattern_);
  ASSERT_TRUE(sent.ok()) << sent.status();
  Pattern& pattern = *(*sent)->pattern();
  ASSERT_TRUE(Prepared(pattern));
  const auto plans = pattern.plans().List();
  const auto present = std::ranges::find_if(plans, [](const auto& active) {
    const ProblemSignature& c = active->plan.signature;
    return c.operation == Operation::kSpmm && c.device == DeviceKind::kCuda && !c.transposed;
  });
  ASSERT_NE(present, plans.end());
  const ProblemSignature c = (*present)->plan.signature;
  ActivePlan tried = **present;
  tried.plan.distribution = TriedDistribution{Distribution::kColumns, cards(), 2, 1};
  pattern.plans().Replace(std::make_shared<const ActivePlan>(tried));
  const auto asked = ParseAsked("dcsr", "");
  ASSERT_TRUE(asked.ok()) << asked.status();
  const absl::Status requested = engine_->preparation().Request(*sent, {c}, false, *asked);
  ASSERT_TRUE(requested.ok()) << requested;
  ASSERT_TRUE(Prepared(pattern));
  const auto now = pattern.plans().Find(c).plan;
  EXPECT_NE(now->plan.reason, tried.plan.reason) << "nothing was tried";
  EXPECT_EQ(now->plan.distribution, tried.plan.distribution);
}

TEST_P(PreparingCards, BuildLayoutsOfPartsBesideRequests) {
  const auto sent = SendMatrix(engine_->catalog(), "s", pattern_);
  ASSERT_TRUE(sent.ok()) << sent.status();
  const std::shared_ptr<Pattern> pattern = (*sent)->pattern();
  ASSERT_TRUE(Prepared(*pattern));
  BuildContext context;
  context.memory = &HeapMemory();
  auto built = BuildLayout(*ParsePipeline("dcsr"), ViewCsr(**pattern->Csr()), context);
  ASSERT_TRUE(built.ok()) << built.status();
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
  const std::vector<float> x = Random<float>(11, kRows * kK);
  ASSERT_TRUE(PutRows("x", kRows, kK, x).ok());
  Hold("y", {});
  std::string plan;
  const auto multiply = [&] {
    const auto sink = std::make_shared<Result>();
    const absl::Status ended = Compute(Spmm("x", "y"), sink);
    EXPECT_TRUE(ended.ok()) << ended;
    plan = sink->plan;
    return plan.find(": dcsr / cuda.dcsr.rows") != std::string::npos;
  };
  // Those that come before do not wait for them.
  EXPECT_TRUE(Eventually(multiply)) << plan;
  ExpectNear(Whole("y"), Product(Wide(x)));
}

TEST_P(PreparingCards, LieAsTheyLayAfterARestart) {
  const auto sent = SendMatrix(engine_->catalog(), "s", pattern_);
  ASSERT_TRUE(sent.ok()) << sent.status();
  const std::vector<float> x = Random<float>(12, kRows * kK);
  PutHeader header;
  header.shape = {kRows, kK, kK, ElementType::kF32};
  header.durable = true;
  for (const auto& [name, distribution] :
       {std::pair("rows", Distribution::kRows), std::pair("columns", Distribution::kColumns),
        std::pair("whole", Distribution::kWhole)}) {
    header.name = name;
    header.distribution = distribution;
    header.rows_of = distribution == Distribution::kRows ? *sent : nullptr;
    ASSERT_TRUE(Put(header, x).ok());
  }
  const std::vector<int64_t> bounds = RowBoundsOf(Find("rows")->blocks);
  header = {};
  // As many cards, and others.
  for (const int now : {cards(), 5 - cards(), 1}) {
    Open(now);
    if (IsSkipped()) return;
    const bool several = now > 1;
    EXPECT_EQ(Find("whole")->distribution(), Distribution::kWhole);
    EXPECT_EQ(Find("rows")->distribution(), several ? Distribution::kRows : Distribution::kWhole);
    EXPECT_EQ(Find("columns")->blocks.size(), several ? static_cast<size_t>(now) : 0U);
    if (now == cards()) {
      EXPECT_EQ(RowBoundsOf(Find("rows")->blocks), bounds);
    }
    for (const char* const name : {"rows", "columns", "whole"}) {
      EXPECT_EQ(Whole(name), x) << name;
      Hold("y", {});
      const auto sink = std::make_shared<Result>();
      const absl::Status ended = Compute(Spmm(name, "y"), sink);
      ASSERT_TRUE(ended.ok()) << ended;
      EXPECT_EQ(sink->plan.find(" over ") != std::string::npos,
                several && std::string(name) != "whole")
          << sink->plan;
      ExpectNear(Whole("y"), Product(Wide(x)));
    }
  }
}

const auto kNames = [](const auto& of) { return std::to_string(of.param) + "Cards"; };
INSTANTIATE_TEST_SUITE_P(Over, SeveralCards, ::testing::Values(2, 3), kNames);
INSTANTIATE_TEST_SUITE_P(Over, PreparingCards, ::testing::Values(2, 3), kNames);

}  // namespace
}  // namespace sparsed::engine
