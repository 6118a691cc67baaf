// Attention along edges on the CPU, and its float64 reference against finite differences.
#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/reference/reference.h"
#include "tests/generate.h"
#include "tests/kernels/attention_harness.h"
#include "tests/kernels/instruction_sets.h"

namespace sparsed::test {
namespace {

class Cpu final : public OnCpu<AttentionSite> {
 public:
  explicit Cpu(int threads) : threads_(threads) {}

  absl::Status Compute(const EdgeAttention& attention, ElementType type) override {
    ComputeEdgeAttention(attention, type, threads_);
    return absl::OkStatus();
  }
  absl::Status Compute(const EdgeAttentionGradient& gradient, ElementType type) override {
    ComputeEdgeAttentionGradient(gradient, type, threads_);
    return absl::OkStatus();
  }

 private:
  const int threads_;
};

TEST(Attention, AsInFloat64WithEveryInstructionSet) {
  Cpu cpu(1);
  WithEveryInstructionSet([&] {
    CheckAttention(cpu);
    CheckAttentionOfOddScores(cpu);
  });
}

TEST(Attention, AsInFloat64WithSeveralThreads) {
  Cpu cpu(3);
  CheckAttention(cpu);
  CheckAttentionOfOddScores(cpu);
}

TEST(Attention, OfLongRows) {
  Cpu cpu(3);
  CheckAttentionOfLongRows(cpu);
}

/// Results do not depend on the team, bit by bit, also where rows are in pieces.
TEST(Attention, IsTheSameForAnyTeam) {
  constexpr int64_t kHeads = 2, kColumns = 16;
  std::vector<std::vector<int32_t>> of_rows(300, {1, 5, 9});
  for (int32_t col = 0; col < 60'000; ++col) of_rows[100].push_back(col);
  of_rows[100].erase(of_rows[100].begin(), of_rows[100].begin() + 3);
  const Pattern pattern = FromRows(60'000, of_rows);
  Cpu cpu(1);
  const Subject plain(cpu, pattern, false), transposed(cpu, pattern, true);
  std::mt19937 random(3);
  const auto random_floats = [&](int64_t rows) {
    std::vector<float> floats(static_cast<size_t>(rows * kColumns));
    for (float& x : floats) x = static_cast<float>(random() % 2000) / 1000 - 1;
    return floats;
  };
  const auto left = random_floats(300), right = random_floats(60'000),
             values = random_floats(60'000);
  const auto run = [&](int threads) {
    std::vector<std::vector<float>> results = {
        std::vector<float>(300 * kColumns), std::vector<float>(300 * kHeads),
        std::vector<float>(300 * kColumns), std::vector<float>(60'000 * kColumns),
        std::vector<float>(60'000 * kColumns)};
    EdgeAttention attention{plain.there};
    attention.scores.heads = kHeads;
    attention.scores.left = {left.data(), 300, kColumns, kColumns};
    attention.scores.right = {right.data(), 60'000, kColumns, kColumns};
    attention.values = {values.data(), 60'000, kColumns, kColumns};
    attention.out = {results[0].data(), 300, kColumns, kColumns};
    attention.log_sums = {results[1].data(), 300, kHeads, kHeads};
    ComputeEdgeAttention(attention, ElementType::kF32, threads);
    EdgeAttentionGradient gradient{plain.there, transposed.there};
    gradient.scores = attention.scores;
    gradient.values = attention.values;
    gradient.out = {results[0].data(), 300, kColumns, kColumns};
    gradient.log_sums = {results[1].data(), 300, kHeads, kHeads};
    gradient.gradient = attention.scores.left;
    gradient.left = {results[2].data(), 300, kColumns, kColumns};
    gradient.right = {results[3].data(), 60'000, kColumns, kColumns};
    gradient.values_gradient = {results[4].data(), 60'000, kColumns, kColumns};
    ComputeEdgeAttentionGradient(gradient, ElementType::kF32, threads);
    return results;
  };
  const auto alone = run(1);
  for (const int threads : {2, 3, 7}) EXPECT_EQ(run(threads), alone) << threads;
}

/// An operand that can be moved.
struct Operand {
  int64_t rows, cols;
  std::vector<double> values;

  Operand(int64_t row_count, int64_t col_count, std::mt19937& random)
      : rows(row_count), cols(col_count) {
    std::uniform_real_distribution<double> uniform(-1, 1);
    for (int64_t i = 0; i < rows * cols; ++i) values.push_back(uniform(random));
  }
  ConstDense View() const { return {values.data(), rows, cols, cols}; }
};

/// The reference's gradients of the sum over M x L of gradient * out.
class Differences {
 public:
  Differences(EdgeScores::Kind kind, int64_t bias_cols)
      : pattern_(Uniform(9, 7, 3, 5)),
        left_(9, kind == EdgeScores::Kind::kDot ? 6 : 2, random_),
        right_(7, kind == EdgeScores::Kind::kDot ? 6 : 2, random_),
        values_(7, 8, random_),
        bias_(pattern_.nnz(), bias_cols, random_),
        gradient_(9, 8, random_) {
    scores_.kind = kind;
    scores_.heads = 2;
    scores_.scale = 0.7;
  }

  void Check() {
    const reference::AttentionResults results =
        reference::EdgeAttention(pattern_.view(), Scores(), values_.View());
    const reference::AttentionGradients gradients = reference::EdgeAttentionGradients(
        pattern_.view(), Scores(), values_.View(), {results.out.values.data(), 9, 8, 8},
        {results.log_sums.values.data(), 9, 2, 2}, gradient_.View());
    CheckOf("left", left_, gradients.left);
    CheckOf("right", right_, gradients.right);
    CheckOf("values", values_, gradients.values);
    if (bias_.cols > 0) CheckOf("bias", bias_, gradients.bias);
  }

 private:
  EdgeScores Scores() const {
    EdgeScores scores = scores_;
    scores.left = left_.View();
    scores.right = right_.View();
    if (bias_.cols > 0) scores.bias = bias_.View();
    return scores;
  }
  double Loss() const {
    const auto results = reference::EdgeAttention(pattern_.view(), Scores(), values_.View());
    double sum = 0;
    for (size_t i = 0; i < gradient_.values.size(); ++i) {
      sum += gradient_.values[i] * results.out.values[i];
    }
    return sum;
  }
  void CheckOf(const char* what, Operand& operand, const reference::Values& gradient) {
    SCOPED_TRACE(what);
    constexpr double kStep = 1e-5;
    ASSERT_EQ(gradient.values.size(), operand.values.size());
    for (size_t i = 0; i < operand.values.size(); ++i) {
      const double before = operand.values[i];
      operand.values[i] = before + kStep;
      const double above = Loss();
      operand.values[i] = before - kStep;
      const double below = Loss();
      operand.values[i] = before;
      EXPECT_NEAR(gradient.values[i], (above - below) / (2 * kStep), 1e-8) << i;
    }
  }

  std::mt19937 random_{11};
  Pattern pattern_;
  Operand left_, right_, values_, bias_, gradient_;
  EdgeScores scores_;
};

TEST(AttentionReference, GradientsAreThoseOfFiniteDifferences) {
  for (const auto kind : {EdgeScores::Kind::kDot, EdgeScores::Kind::kSum}) {
    for (const int64_t bias_cols : {0, 1, 2}) Differences(kind, bias_cols).Check();
  }
}

}  // namespace
}  // namespace sparsed::test
