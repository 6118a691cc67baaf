#include "tests/unit/client/attention_products.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sparsed/chain.h"
#include "tests/unit/client/chain_models.h"

namespace sparsed::test {
namespace {

using Scores = Chain::Scores;

constexpr double kScale = 0.25, kSlope = 0.5;

/// Attention of one matrix, with all that goes into it.
struct Attention {
  const Sparse& s;
  Scores scores;
  int64_t heads;
  Model left, right, values, bias;  ///< no columns of bias: none
  Model att = {};                   ///< of GATv2

  template <typename Visit>
  void ForEachNonzero(int64_t row, const Visit& visit) const {
    for (int64_t i = s.offsets[row]; i < s.offsets[row + 1]; ++i) visit(i, s.columns[i]);
  }
  double Raw(int64_t row, int64_t col, int64_t head) const {
    const int64_t width = left.cols / heads;
    if (scores == Scores::kSum) {
      return left.at[row * heads + head] + right.at[col * heads + head];
    }
    double sum = 0;
    for (int64_t j = head * width; j < (head + 1) * width; ++j) {
      const double a = left.at[row * left.cols + j], b = right.at[col * left.cols + j];
      sum += scores == Scores::kDot ? a * b : att.at[j] * Leaky(a + b) * (a + b);
    }
    return sum;
  }
  /// What LeakyReLU multiplies by.
  static double Leaky(double x) { return x > 0 ? 1 : kSlope; }
  /// What its score changes by with Raw.
  double Factor(int64_t row, int64_t col, int64_t head) const {
    if (scores == Scores::kDot) return kScale;
    return scores == Scores::kGatv2 ? 1 : Leaky(Raw(row, col, head));
  }
  size_t BiasAt(int64_t i, int64_t head) const {
    return static_cast<size_t>(i * bias.cols + (bias.cols == 1 ? 0 : head));
  }
  double Score(int64_t i, int64_t row, int64_t col, int64_t head) const {
    const double score = Factor(row, col, head) * Raw(row, col, head);
    return bias.cols == 0 ? score : score + bias.at[BiasAt(i, head)];
  }
  Model LogSums() const {
    Model sums = Model::Zeros(s.rows, heads);
    for (int64_t row = 0; row < s.rows; ++row) {
      for (int64_t head = 0; head < heads; ++head) {
        double greatest = -INFINITY, sum = 0;
        ForEachNonzero(row, [&](int64_t i, int64_t col) {
          greatest = std::max(greatest, Score(i, row, col, head));
        });
        ForEachNonzero(row, [&](int64_t i, int64_t col) {
          if (greatest > -INFINITY) sum += std::exp(Score(i, row, col, head) - greatest);
        });
        sums.at[row * heads + head] = greatest + std::log(sum);
      }
    }
    return sums;
  }
  double Weight(const Model& sums, int64_t i, int64_t row, int64_t col, int64_t head) const {
    const double of_row = sums.at[row * heads + head];
    return of_row == -INFINITY ? 0 : std::exp(Score(i, row, col, head) - of_row);
  }
  Model Result(const Model& sums) const {
    Model out = Model::Zeros(s.rows, values.cols);
    const int64_t width = values.cols / heads;
    for (int64_t row = 0; row < s.rows; ++row) {
      ForEachNonzero(row, [&](int64_t i, int64_t col) {
        for (int64_t j = 0; j < values.cols; ++j) {
          out.at[row * values.cols + j] +=
              Weight(sums, i, row, col, j / width) * values.at[col * values.cols + j];
        }
      });
    }
    return out;
  }
  struct Gradients {
    Model left, right, values, bias, att;
  };
  Gradients Backward(const Model& sums, const Model& out, const Model& d_out) const {
    Gradients d = {left, right, values, bias, att};
    for (Model* of : {&d.left, &d.right, &d.values, &d.bias, &d.att}) std::ranges::fill(of->at, 0);
    const int64_t width = values.cols / heads;
    for (int64_t row = 0; row < s.rows; ++row) {
      ForEachNonzero(row, [&](int64_t i, int64_t col) {
        for (int64_t head = 0; head < heads; ++head) {
          const double weight = Weight(sums, i, row, col, head);
          double d_score = 0;
          for (int64_t j = head * width; j < (head + 1) * width; ++j) {
            const double dy = d_out.at[row * values.cols + j];
            d.values.at[col * values.cols + j] += weight * dy;
            d_score +=
                weight * dy * (values.at[col * values.cols + j] - out.at[row * values.cols + j]);
          }
          if (bias.cols > 0) d.bias.at[BiasAt(i, head)] += d_score;
          AddToOperands(row, col, head, Factor(row, col, head) * d_score, d);
        }
      });
    }
    return d;
  }

 private:
  void AddToOperands(int64_t row, int64_t col, int64_t head, double d_raw, Gradients& d) const {
    const int64_t width = left.cols / heads;
    for (int64_t j = head * width; j < (head + 1) * width; ++j) {
      const double a = left.at[row * left.cols + j], b = right.at[col * left.cols + j];
      const double of_sum = scores == Scores::kGatv2 ? att.at[j] * Leaky(a + b) : 1;
      d.left.at[row * left.cols + j] += d_raw * (scores == Scores::kDot ? b : of_sum);
      d.right.at[col * left.cols + j] += d_raw * (scores == Scores::kDot ? a : of_sum);
      if (scores == Scores::kGatv2) d.att.at[j] += d_raw * Leaky(a + b) * (a + b);
    }
  }
};

Model Random(int64_t rows, int64_t cols, std::mt19937& random) {
  Model model = Model::Zeros(rows, cols);
  for (double& x : model.at) x = (static_cast<double>(random() % 9) - 4) / 4;
  return model;
}

/// Of a row of 3,000 nonzeros, several of a few and some of none.
Sparse WithLongRow(std::mt19937& random) {
  constexpr int32_t kLong = 3000;
  Sparse s = RandomSparse(40, kLong, false, random);
  s.offsets.push_back(s.offsets.back() + kLong);
  for (int32_t col = kLong; col > 0; --col) s.columns.push_back(col - 1);
  s.values.resize(s.columns.size(), 1);
  ++s.rows;
  return s;
}

/// What log_sums are of.
template <typename T>
using SumOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Inputs and outputs of chains, whose places live as long as this.
template <typename T>
class Places {
 public:
  Places(ChainRunner& runner, std::mt19937& random) : runner_(runner), random_(random) {}

  Chain::Value Input(Chain& chain, const Model& model) {
    inputs_.push_back(std::make_unique<Place<T>>(runner_, model, random_));
    return chain.Input(inputs_.back()->AsOperand(model));
  }
  Chain::Value InputSums(Chain& chain, const Model& model) {
    sums_.push_back(std::make_unique<Place<SumOf<T>>>(runner_, model, random_));
    return chain.Input(sums_.back()->AsOperand(model));
  }
  void Output(Chain& chain, Chain::Value value, const Model& expected) {
    outputs_.emplace_back(std::make_unique<Place<T>>(runner_, expected, random_), expected);
    chain.Output(value, outputs_.back().first->AsDestination());
  }
  void OutputSums(Chain& chain, Chain::Value value, const Model& expected) {
    sums_.push_back(std::make_unique<Place<SumOf<T>>>(runner_, expected, random_));
    chain.Output(value, sums_.back()->AsDestination());
    expected_sums_.emplace_back(sums_.size() - 1, expected);
  }
  void Expect(double relative) {
    for (size_t i = 0; i < outputs_.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "result " << i << " in " << Name(kTypeOf<T>));
      outputs_[i].first->Expect(outputs_[i].second, relative);
      if (testing::Test::HasFatalFailure()) return;
    }
    for (const auto& [i, expected] : expected_sums_) {
      SCOPED_TRACE(testing::Message() << "log_sums in " << Name(kTypeOf<T>));
      sums_[i]->Expect(expected, relative);
      if (testing::Test::HasFatalFailure()) return;
    }
  }

 private:
  ChainRunner& runner_;
  std::mt19937& random_;
  std::vector<std::unique_ptr<Place<T>>> inputs_;
  std::vector<std::unique_ptr<Place<SumOf<T>>>> sums_;
  std::vector<std::pair<std::unique_ptr<Place<T>>, Model>> outputs_;
  std::vector<std::pair<size_t, Model>> expected_sums_;
};

void ExpectPlan(const std::string& plan, std::string_view kernel) {
  EXPECT_TRUE(plan == fmt::format("csr / cpu.csr.{}", kernel) ||
              plan == fmt::format("csr / cuda.csr.{}", kernel))
      << plan;
}

template <typename T>
void CheckAttention(ChainRunner& runner, const Matrix& matrix, const Attention& of,
                    const Model& d_out, double relative, std::mt19937& random) {
  const Model sums = of.LogSums(), out = of.Result(sums);
  const Attention::Gradients d = of.Backward(sums, out, d_out);
  const bool biased = of.bias.cols > 0;
  Chain::AttentionOptions options = {
      .scores = of.scores, .heads = of.heads, .scale = kScale, .slope = kSlope};
  Places<T> places(runner, random);
  // Both at once, of values that stay where they are made.
  Chain chain;
  const auto left = places.Input(chain, of.left), right = places.Input(chain, of.right);
  const auto values = places.Input(chain, of.values), dy = places.Input(chain, d_out);
  const bool gatv2 = of.scores == Scores::kGatv2;
  if (biased) options.bias = places.Input(chain, of.bias);
  if (gatv2) options.att = places.Input(chain, of.att);
  const Chain::Attended made = chain.Attention(matrix, left, right, values, options);
  const Chain::AttentionGradients gradients = chain.AttentionGradient(
      matrix, left, right, values, options, made, dy, {.bias = biased, .att = gatv2});
  places.Output(chain, made.value, out);
  places.OutputSums(chain, made.log_sums, sums);
  places.Output(chain, *gradients.left, d.left);
  places.Output(chain, *gradients.right, d.right);
  places.Output(chain, *gradients.values, d.values);
  ASSERT_EQ(gradients.bias.has_value(), biased);
  if (biased) places.Output(chain, *gradients.bias, d.bias);
  ASSERT_EQ(gradients.att.has_value(), gatv2);
  if (gatv2) places.Output(chain, *gradients.att, d.att);
  const auto done = runner.Run({matrix}, chain);
  ASSERT_TRUE(done.ok()) << done.status();
  ASSERT_EQ(done->steps.size(), 2U);
  ExpectPlan(done->steps[0].plan, "attention");
  ExpectPlan(done->steps[1].plan, "attention_gradient");
  places.Expect(relative);
  if (testing::Test::HasFatalFailure()) return;

  // One after the other, and of the gradients only some.
  Places<T> later(runner, random);
  Chain backward;
  const auto l = later.Input(backward, of.left), r = later.Input(backward, of.right);
  const auto v = later.Input(backward, of.values);
  if (biased) options.bias = later.Input(backward, of.bias);
  if (gatv2) options.att = later.Input(backward, of.att);
  const Chain::Attended before = {later.Input(backward, out), later.InputSums(backward, sums)};
  const Chain::AttentionGradients some = backward.AttentionGradient(
      matrix, l, r, v, options, before, later.Input(backward, d_out),
      {.left = biased, .right = !biased, .values = false, .bias = biased, .att = gatv2});
  if (biased) {
    later.Output(backward, *some.left, d.left);
    later.Output(backward, *some.bias, d.bias);
  } else {
    later.Output(backward, *some.right, d.right);
  }
  if (gatv2) later.Output(backward, *some.att, d.att);
  const auto again = runner.Run({matrix}, backward);
  ASSERT_TRUE(again.ok()) << again.status();
  later.Expect(relative);
}

template <typename T>
void CheckType(ChainRunner& runner, unsigned seed, double relative) {
  std::mt19937 random(seed);
  struct Shape {
    Scores scores;
    int64_t heads, width, of_values;
    int64_t bias;  ///< columns
  };
  const std::vector<Shape> shapes = {{Scores::kDot, 1, 16, 16, 0}, {Scores::kDot, 3, 5, 4, 3},
                                     {Scores::kDot, 4, 8, 8, 1},   {Scores::kSum, 1, 1, 7, 0},
                                     {Scores::kSum, 8, 1, 8, 8},   {Scores::kSum, 3, 1, 5, 1},
                                     {Scores::kGatv2, 2, 8, 8, 0}, {Scores::kGatv2, 3, 5, 4, 3}};
  const std::vector<Sparse> matrices = {WithLongRow(random), RandomSparse(45, 31, true, random)};
  for (const Sparse& s : matrices) {
    const Matrix matrix = Send<T>(runner.client(), "attended", s);
    for (const Shape& shape : shapes) {
      SCOPED_TRACE(testing::Message() << "scores " << static_cast<int>(shape.scores) << ", "
                                      << shape.heads << " heads, bias of " << shape.bias << ", "
                                      << Name(kTypeOf<T>) << ", " << s.rows << " x " << s.cols);
      Attention of = {s, shape.scores, shape.heads, {}, {}, {}, {}};
      of.left = Random(s.rows, shape.heads * shape.width, random);
      of.right = Random(s.cols, shape.heads * shape.width, random);
      of.values = Random(s.cols, shape.heads * shape.of_values, random);
      of.bias = Random(s.nnz(), shape.bias, random);
      if (shape.scores == Scores::kGatv2) of.att = Random(1, of.left.cols, random);
      // Some are masked, and all of one row.
      for (int64_t i = 0; i < s.nnz() * shape.bias; ++i) {
        const bool of_first_row = i < s.offsets[1] * shape.bias;
        if (of_first_row || random() % 4 == 0) of.bias.at[i] = -INFINITY;
      }
      const Model d_out = Random(s.rows, of.values.cols, random);
      CheckAttention<T>(runner, matrix, of, d_out, relative, random);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

}  // namespace

void CheckFusedAttention(ChainRunner& runner) {
  CheckType<float>(runner, 31, 1e-4);
  CheckType<double>(runner, 32, 1e-12);
  CheckType<Float16>(runner, 33, 2e-2);
  CheckType<BFloat16>(runner, 34, 1.5e-1);
}

void CheckAttentionRefusals(ChainRunner& runner) {
  std::mt19937 random(6);
  const Sparse s = RandomSparse(45, 31, true, random);
  const Matrix matrix = Send<float>(runner.client(), "attended", s);
  std::vector<float> zeros(static_cast<size_t>(std::max<int64_t>(45 * 6, s.nnz() * 3)));
  std::vector<double> wide(45 * 3);
  struct Inputs {
    Chain chain;
    Chain::Value q, k, v, left, right, bias, out, sums, wide_sums, att;
  };
  const auto inputs = [&] {
    Chain chain;
    const auto input = [&](int64_t rows, int64_t cols) {
      return chain.Input(DenseView(zeros.data(), rows, cols));
    };
    const auto q = input(45, 6), k = input(31, 6), v = input(31, 4);
    const auto left = input(45, 2), right = input(31, 2), bias = input(s.nnz(), 3);
    const auto out = input(45, 4), sums = input(45, 2);
    const auto wide_sums = chain.Input(DenseView(wide.data(), 45, 2));
    const auto att = input(1, 6);
    return Inputs{chain, q, k, v, left, right, bias, out, sums, wide_sums, att};
  };
  const auto run = [&](Chain& chain, Chain::Value value, int64_t rows, int64_t cols,
                       std::string_view sentence) {
    std::vector<float> result(static_cast<size_t>(rows * cols));
    chain.Output(value, MutableDenseView(result.data(), rows, cols));
    const absl::Status status = runner.Run({matrix}, chain).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << sentence << ", not " << status;
    EXPECT_NE(std::string(status.message()).find(sentence), std::string::npos)
        << status << "\nexpected: " << sentence;
  };
  struct Forward {
    Chain::Value Inputs::*left;
    Chain::Value Inputs::*right;
    Chain::Value Inputs::*values;
    Chain::AttentionOptions options;
    bool biased;
    std::string_view sentence;
    Chain::Value Inputs::*att = nullptr;
  };
  using In = Inputs;
  const Chain::AttentionOptions dot = {.heads = 2}, sum = {.scores = Scores::kSum, .heads = 2},
                                gatv2 = {.scores = Scores::kGatv2, .heads = 2};
  const std::vector<Forward> forward = {
      {&In::k, &In::k, &In::v, dot, false,
       "step 0: its left, value 1, is 31 x 6 f32, expected 45 x K f32"},
      {&In::q, &In::right, &In::v, dot, false,
       "step 0: its right, value 4, is 31 x 2 f32, expected 31 x 6 f32"},
      {&In::q, &In::k, &In::q, dot, false,
       "step 0: its values, value 0, is 45 x 6 f32, expected 31 x L f32"},
      {&In::q,
       &In::k,
       &In::v,
       {.heads = 4},
       false,
       "step 0: its left has 6 columns, which 4 heads do not divide"},
      {&In::q,
       &In::k,
       &In::v,
       {.heads = 3},
       false,
       "step 0: a row of its values has 4 columns, which 3 heads do not divide"},
      {&In::q, &In::k, &In::v, {.heads = 0}, false, "step 0: 0 heads, expected 1 or more"},
      {&In::q,
       &In::k,
       &In::v,
       {.heads = 1025},
       false,
       "step 0: it is of 1025 heads, at most 1024 may be"},
      {&In::q, &In::right, &In::v, sum, false,
       "step 0: its left, value 0, is 45 x 6 f32, expected 45 x 2 f32"},
      {&In::left, &In::k, &In::v, sum, false,
       "step 0: its right, value 1, is 31 x 6 f32, expected 31 x 2 f32"},
      {&In::left, &In::right, &In::v, sum, true, "step 0: its bias, value 5, is "},
      {&In::wide_sums, &In::right, &In::v, sum, false,
       "step 0: its left, value 8, is 45 x 2 f64, expected 45 x 2 f32"},
      {&In::q, &In::k, &In::v, gatv2, false, "step 0: its scores are of GATv2, which needs an att"},
      {&In::q, &In::k, &In::v, dot, false, "step 0: its scores have an att, which only GATv2's do",
       &In::att},
      {&In::q, &In::right, &In::v, gatv2, false,
       "step 0: its right, value 4, is 31 x 2 f32, expected 31 x 6 f32", &In::att},
      {&In::q, &In::k, &In::v, gatv2, false,
       "step 0: its att, value 6, is 45 x 4 f32, expected 1 x 6 f32", &In::out},
      {&In::q,
       &In::k,
       &In::v,
       {.scores = Scores::kGatv2, .heads = 4},
       false,
       "step 0: its left has 6 columns, which 4 heads do not divide",
       &In::att},
  };
  for (const Forward& bad : forward) {
    Inputs in = inputs();
    Chain::AttentionOptions options = bad.options;
    if (bad.biased) options.bias = in.bias;
    if (bad.att != nullptr) options.att = in.*bad.att;
    const auto made =
        in.chain.Attention(matrix, in.*bad.left, in.*bad.right, in.*bad.values, options);
    run(in.chain, made.value, 45, 4, bad.sentence);
  }
  struct Backward {
    Chain::Value Inputs::*result;
    Chain::Value Inputs::*log_sums;
    Chain::Value Inputs::*gradient;
    Chain::AttentionWanted wanted;
    std::string_view sentence;
  };
  const std::vector<Backward> backward = {
      {&In::q,
       &In::sums,
       &In::out,
       {},
       "step 0: its result, value 0, is 45 x 6 f32, expected 45 x 4 f32"},
      {&In::out,
       &In::out,
       &In::out,
       {},
       "step 0: its log_sums, value 6, is 45 x 4 f32, expected 45 x 2 f32"},
      {&In::out,
       &In::wide_sums,
       &In::out,
       {},
       "step 0: its log_sums, value 8, is 45 x 2 f64, expected 45 x 2 f32"},
      {&In::out,
       &In::sums,
       &In::v,
       {},
       "step 0: its gradient, value 2, is 31 x 4 f32, expected 45 x 4 f32"},
      {&In::out,
       &In::sums,
       &In::out,
       {.bias = true},
       "step 0: the gradient of its bias is wanted, but it has none"},
      {&In::out,
       &In::sums,
       &In::out,
       {.left = false, .right = false, .values = false},
       "step 0: no gradient is wanted"},
      {&In::out,
       &In::sums,
       &In::out,
       {.att = true},
       "step 0: the gradient of its att is wanted, but it has none"},
  };
  for (const Backward& bad : backward) {
    Inputs in = inputs();
    in.chain.AttentionGradient(matrix, in.q, in.k, in.v, dot, {in.*bad.result, in.*bad.log_sums},
                               in.*bad.gradient, bad.wanted);
    run(in.chain, in.q, 45, 6, bad.sentence);
  }
}

}  // namespace sparsed::test
