// Attention along edges on the CPU, and its float64 reference against finite differences.
#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <vector>

#include "kernels/reference/reference.h"
#include "tests/generate.h"
#include "tests/kernels/attention_harness.h"
#include "tests/kernels/instruction_sets.h"

namespace sparsed::test {
namespace {

absl::Status Compute(const Context& context, const EdgeAttention& attention, ElementType type) {
  return ComputeEdgeAttention(context, attention, type);
}
absl::Status Compute(const Context& context, const EdgeAttentionGradient& gradient,
                     ElementType type) {
  return ComputeEdgeAttentionGradient(context, gradient, type);
}

Context TeamOf(int threads) {
  Context context;
  context.threads = threads;
  return context;
}

/// With a workspace of its own.
template <typename Arguments>
absl::Status RunWhole(const Arguments& arguments, ElementType type, Context context) {
  Buffer workspace = HeapMemory().Allocate(EdgeAttentionWorkspace(arguments, type)).value();
  context.workspace = {workspace.mutable_data(), workspace.size()};
  return Compute(context, arguments, type);
}

class Cpu final : public OnCpu<AttentionSite> {
 public:
  explicit Cpu(int threads) : threads_(threads) {}

  absl::Status Compute(const EdgeAttention& attention, ElementType type) override {
    return RunWhole(attention, type, TeamOf(threads_));
  }
  absl::Status Compute(const EdgeAttentionGradient& gradient, ElementType type) override {
    return RunWhole(gradient, type, TeamOf(threads_));
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

TEST(Attention, OfWideHeads) {
  Cpu cpu(2);
  CheckAttentionOfWideHeads(cpu);
}

TEST(Attention, OfLongRows) {
  Cpu cpu(3);
  CheckAttentionOfLongRows(cpu);
}

/// Attention with rows in pieces, and all of its gradients.
class Everything {
 public:
  explicit Everything(EdgeScores::Kind kind) : kind_(kind) {}
  static constexpr int64_t kHeads = 2, kColumns = 16, kRows = 300, kCols = 60'000;
  using Results = std::vector<std::vector<float>>;

  /// `run` computes one of them, of f32.
  template <typename RunOne>
  Results Compute(const RunOne& run) const {
    Results results = {std::vector<float>(kRows * kColumns), std::vector<float>(kRows * kHeads),
                       std::vector<float>(kRows * kColumns), std::vector<float>(kCols * kColumns),
                       std::vector<float>(kCols * kColumns), std::vector<float>(kColumns)};
    EdgeAttention attention{plain_.there};
    attention.scores.kind = kind_;
    if (kind_ == EdgeScores::Kind::kGatv2)
      attention.scores.att = {att_.data(), 1, kColumns, kColumns};
    attention.scores.heads = kHeads;
    attention.scores.left = {left_.data(), kRows, kColumns, kColumns};
    attention.scores.right = {right_.data(), kCols, kColumns, kColumns};
    attention.values = {values_.data(), kCols, kColumns, kColumns};
    attention.out = {results[0].data(), kRows, kColumns, kColumns};
    attention.log_sums = {results[1].data(), kRows, kHeads, kHeads};
    run(attention);
    EdgeAttentionGradient gradient{plain_.there, transposed_.there};
    gradient.scores = attention.scores;
    gradient.values = attention.values;
    gradient.out = {results[0].data(), kRows, kColumns, kColumns};
    gradient.log_sums = {results[1].data(), kRows, kHeads, kHeads};
    gradient.gradient = attention.scores.left;
    gradient.left = {results[2].data(), kRows, kColumns, kColumns};
    gradient.right = {results[3].data(), kCols, kColumns, kColumns};
    gradient.values_gradient = {results[4].data(), kCols, kColumns, kColumns};
    if (kind_ == EdgeScores::Kind::kGatv2) {
      gradient.att = {results[5].data(), 1, kColumns, kColumns};
    }
    run(gradient);
    return results;
  }

 private:
  static Pattern LongRow() {
    std::vector<std::vector<int32_t>> of_rows(kRows, {1, 5, 9});
    of_rows[100].clear();
    for (int32_t col = 3; col < kCols; ++col) of_rows[100].push_back(col);
    return FromRows(kCols, of_rows);
  }
  std::vector<float> Random(int64_t rows) {
    std::vector<float> floats(static_cast<size_t>(rows * kColumns));
    for (float& x : floats) x = static_cast<float>(random_() % 2000) / 1000 - 1;
    return floats;
  }

  const EdgeScores::Kind kind_;
  Cpu cpu_{1};
  const Pattern pattern_ = LongRow();
  const Subject plain_{cpu_, pattern_, false}, transposed_{cpu_, pattern_, true};
  std::mt19937 random_{3};
  const std::vector<float> left_ = Random(kRows), right_ = Random(kCols), values_ = Random(kCols);
  const std::vector<float> att_ = Random(1);
};

/// Of which rows are gathered on both sides.
class AttentionInPieces : public ::testing::TestWithParam<EdgeScores::Kind> {};
INSTANTIATE_TEST_SUITE_P(Scores, AttentionInPieces,
                         ::testing::Values(EdgeScores::Kind::kDot, EdgeScores::Kind::kGatv2),
                         [](const auto& kind) {
                           return kind.param == EdgeScores::Kind::kDot ? "Dot" : "Gatv2";
                         });

/// Results do not depend on the team, bit by bit, also where rows are in pieces.
TEST_P(AttentionInPieces, IsTheSameForAnyTeam) {
  const Everything everything(GetParam());
  const auto with = [&](int threads) {
    return everything.Compute([&](const auto& arguments) {
      EXPECT_TRUE(RunWhole(arguments, ElementType::kF32, TeamOf(threads)).ok());
    });
  };
  const auto alone = with(1);
  for (const int threads : {2, 3, 7}) EXPECT_EQ(with(threads), alone) << threads;
}

TEST_P(AttentionInPieces, IsTheSameHoweverOftenItIsCut) {
  const Everything everything(GetParam());
  const auto whole = everything.Compute([](const auto& arguments) {
    EXPECT_TRUE(RunWhole(arguments, ElementType::kF32, TeamOf(2)).ok());
  });
  const std::atomic<bool> wanted = true;
  for (const int64_t least : {1, 7, 50}) {
    const auto cut = everything.Compute([&](const auto& arguments) {
      Buffer workspace =
          HeapMemory().Allocate(EdgeAttentionWorkspace(arguments, ElementType::kF32)).value();
      Progress progress{.least = least, .pause = &wanted};
      Context context = TeamOf(2);
      context.workspace = {workspace.mutable_data(), workspace.size()};
      context.progress = &progress;
      int64_t runs = 0, done = 0;
      for (; !progress.finished && runs < 10'000; ++runs) {
        ASSERT_TRUE(Compute(context, arguments, ElementType::kF32).ok());
        ASSERT_GT(progress.done, done) << "a run that is cut does something";
        // Each of the team may have taken a part when it was to pause.
        ASSERT_LE(progress.done, done + least + context.threads);
        done = progress.done;
      }
      EXPECT_TRUE(progress.finished);
      EXPECT_GE(runs, least == 1 ? 5 : 1);
    });
    EXPECT_EQ(cut, whole) << least;
  }
}

TEST_P(AttentionInPieces, StopsBetweenItsParts) {
  const Everything everything(GetParam());
  const std::atomic<bool> stop = true;
  Context context = TeamOf(1);
  context.stop = &stop;
  everything.Compute([&](const auto& arguments) {
    EXPECT_TRUE(absl::IsCancelled(RunWhole(arguments, ElementType::kF32, context)));
  });
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
        left_(9, kind == EdgeScores::Kind::kSum ? 2 : 6, random_),
        right_(7, kind == EdgeScores::Kind::kSum ? 2 : 6, random_),
        att_(1, kind == EdgeScores::Kind::kGatv2 ? 6 : 0, random_),
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
    CheckOf("att", att_, gradients.att);
  }

 private:
  EdgeScores Scores() const {
    EdgeScores scores = scores_;
    scores.left = left_.View();
    scores.right = right_.View();
    scores.att = att_.View();
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
  Operand left_, right_, att_, values_, bias_, gradient_;
  EdgeScores scores_;
};

TEST(AttentionReference, GradientsAreThoseOfFiniteDifferences) {
  for (const auto kind :
       {EdgeScores::Kind::kDot, EdgeScores::Kind::kSum, EdgeScores::Kind::kGatv2}) {
    for (const int64_t bias_cols : {0, 1, 2}) Differences(kind, bias_cols).Check();
  }
}

}  // namespace
}  // namespace sparsed::test
