#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reference/reference.h"

namespace sparsed::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double At(const ConstDense& dense, int64_t row, int64_t column) {
  return static_cast<const double*>(dense.data)[row * dense.leading_dimension + column];
}

struct Sum {
  double value = 0, magnitude = 0;
};

Sum Dot(const ConstDense& a, int64_t i, const ConstDense& b, int64_t j, int64_t head,
        int64_t heads) {
  const int64_t width = a.cols / heads;
  Sum sum;
  for (int64_t k = head * width; k < (head + 1) * width; ++k) {
    sum.value += At(a, i, k) * At(b, j, k);
    sum.magnitude += std::abs(At(a, i, k) * At(b, j, k));
  }
  return sum;
}

struct Score {
  double value = 0;
  double slope = 0;  ///< of the value in the dot product, or in the sum
  double magnitude = 0;
};

/// GATv2's sum of column k of two rows: LeakyReLU makes slope * sum of it.
struct Activated {
  double sum = 0, slope = 0, magnitude = 0;
};

Activated ActivatedAt(const EdgeScores& s, int64_t i, int64_t j, int64_t k) {
  const double left = At(s.left, i, k), right = At(s.right, j, k);
  return {left + right, left + right > 0 ? 1 : s.slope, std::abs(left) + std::abs(right)};
}

Score ScoreOf(const EdgeScores& s, int64_t i, int64_t j, int64_t p, int64_t head) {
  Score score;
  if (s.kind == EdgeScores::Kind::kDot) {
    const Sum dot = Dot(s.left, i, s.right, j, head, s.heads);
    score = {s.scale * dot.value, s.scale, std::abs(s.scale) * dot.magnitude};
  } else if (s.kind == EdgeScores::Kind::kGatv2) {
    const int64_t width = s.left.cols / s.heads;
    score.slope = 1;
    for (int64_t k = head * width; k < (head + 1) * width; ++k) {
      const Activated z = ActivatedAt(s, i, j, k);
      score.value += At(s.att, 0, k) * z.slope * z.sum;
      score.magnitude += std::abs(At(s.att, 0, k) * z.slope) * z.magnitude;
    }
  } else {
    const double left = At(s.left, i, head), right = At(s.right, j, head);
    const double slope = left + right > 0 ? 1 : s.slope;
    score = {slope * (left + right), slope, std::abs(slope) * (std::abs(left) + std::abs(right))};
  }
  if (s.bias.data != nullptr) {
    const double bias = At(s.bias, p, s.bias.cols > 1 ? head : 0);
    score.value += bias;
    score.magnitude += std::abs(bias);
  }
  return score;
}

/// The greatest magnitude of the scores of a row that say something.
double Magnitude(const CsrView& s, const EdgeScores& scores, int64_t row, int64_t head) {
  double magnitude = 0;
  for (int64_t p = s.row_offsets[row]; p < s.row_offsets[row + 1]; ++p) {
    const Score score = ScoreOf(scores, row, s.column_indices[p], p, head);
    if (score.value > -kInfinity) magnitude = std::max(magnitude, score.magnitude);
  }
  return magnitude;
}

void Resize(Values& values, int64_t rows, int64_t cols, double start = 0) {
  values.values.assign(static_cast<size_t>(rows * cols), start);
  values.magnitudes.assign(static_cast<size_t>(rows * cols), 0);
}
void Add(Values& to, int64_t at, double value, double magnitude) {
  to.values[at] += value;
  to.magnitudes[at] += magnitude;
}

/// A nonzero's, of one head.
struct ScoreGradient {
  double share = 0;            ///< its softmax
  double share_magnitude = 0;  ///< its error is of a multiple of this
  double value = 0, magnitude = 0;
};

/// Adds what follows from a nonzero (i, j), number p, to the gradients.
void AddGradients(const EdgeScores& scores, const Score& score, const ScoreGradient& of,
                  const ConstDense& gradient, int64_t i, int64_t j, int64_t p, int64_t head,
                  AttentionGradients& to) {
  const int64_t heads = scores.heads, width = gradient.cols / heads;
  for (int64_t k = head * width; k < (head + 1) * width; ++k) {
    const double g = At(gradient, i, k);
    Add(to.values, j * gradient.cols + k, of.share * g, of.share_magnitude * std::abs(g));
  }
  if (scores.bias.data != nullptr) {
    const int64_t columns = scores.bias.cols;
    Add(to.bias, p * columns + (columns > 1 ? head : 0), of.value, of.magnitude);
  }
  if (scores.kind == EdgeScores::Kind::kSum) {
    Add(to.left, i * heads + head, score.slope * of.value, std::abs(score.slope) * of.magnitude);
    Add(to.right, j * heads + head, score.slope * of.value, std::abs(score.slope) * of.magnitude);
    return;
  }
  const int64_t cols = scores.left.cols;
  for (int64_t k = head * cols / heads; k < (head + 1) * cols / heads; ++k) {
    if (scores.kind == EdgeScores::Kind::kGatv2) {
      const Activated z = ActivatedAt(scores, i, j, k);
      const double of_sum = At(scores.att, 0, k) * z.slope;
      Add(to.left, i * cols + k, of.value * of_sum, of.magnitude * std::abs(of_sum));
      Add(to.right, j * cols + k, of.value * of_sum, of.magnitude * std::abs(of_sum));
      Add(to.att, k, of.value * z.slope * z.sum, of.magnitude * std::abs(z.slope) * z.magnitude);
      continue;
    }
    const double of_left = score.slope * At(scores.right, j, k);
    const double of_right = score.slope * At(scores.left, i, k);
    Add(to.left, i * cols + k, of.value * of_left, of.magnitude * std::abs(of_left));
    Add(to.right, j * cols + k, of.value * of_right, of.magnitude * std::abs(of_right));
  }
}

}  // namespace

AttentionResults EdgeAttention(const CsrView& s, const EdgeScores& scores,
                               const ConstDense& values) {
  const int64_t heads = scores.heads, width = values.cols / heads;
  AttentionResults results;
  Resize(results.out, s.rows, values.cols);
  Resize(results.log_sums, s.rows, heads, -kInfinity);
  for (int64_t i = 0; i < s.rows; ++i) {
    const int64_t begin = s.row_offsets[i], end = s.row_offsets[i + 1];
    for (int64_t head = 0; head < heads; ++head) {
      std::vector<double> of_row;
      double greatest = -kInfinity, sum = 0;
      for (int64_t p = begin; p < end; ++p) {
        of_row.push_back(ScoreOf(scores, i, s.column_indices[p], p, head).value);
        greatest = std::max(greatest, of_row.back());
      }
      if (std::ranges::all_of(of_row, [](double x) { return x == -kInfinity; })) continue;
      for (const double score : of_row) sum += std::exp(score - greatest);
      const double magnitude = 1 + Magnitude(s, scores, i, head);
      results.log_sums.values[i * heads + head] = greatest + std::log(sum);
      results.log_sums.magnitudes[i * heads + head] = magnitude;
      for (int64_t p = begin; p < end; ++p) {
        const double share = std::exp(of_row[p - begin] - greatest) / sum;
        for (int64_t k = head * width; k < (head + 1) * width; ++k) {
          const double product = share * At(values, s.column_indices[p], k);
          Add(results.out, i * values.cols + k, product, magnitude * std::abs(product));
        }
      }
    }
  }
  return results;
}

AttentionGradients EdgeAttentionGradients(const CsrView& s, const EdgeScores& scores,
                                          const ConstDense& values, const ConstDense& out,
                                          const ConstDense& log_sums, const ConstDense& gradient) {
  const int64_t heads = scores.heads;
  AttentionGradients gradients;
  Resize(gradients.left, s.rows, scores.left.cols);
  Resize(gradients.right, s.cols, scores.right.cols);
  Resize(gradients.values, s.cols, values.cols);
  Resize(gradients.bias, s.row_offsets[s.rows], scores.bias.cols);
  Resize(gradients.att, 1, scores.att.cols);
  for (int64_t i = 0; i < s.rows; ++i) {
    for (int64_t head = 0; head < heads; ++head) {
      const double log_sum = At(log_sums, i, head);
      if (log_sum == -kInfinity) continue;  // nothing has a share
      const Sum mean = Dot(gradient, i, out, i, head, heads);
      const double magnitude = 1 + Magnitude(s, scores, i, head);
      for (int64_t p = s.row_offsets[i]; p < s.row_offsets[i + 1]; ++p) {
        const int64_t j = s.column_indices[p];
        const Score score = ScoreOf(scores, i, j, p, head);
        const Sum of_share = Dot(gradient, i, values, j, head, heads);
        ScoreGradient of;
        of.share = std::exp(score.value - log_sum);
        of.share_magnitude = magnitude * of.share;
        of.value = of.share * (of_share.value - mean.value);
        of.magnitude = of.share_magnitude * (of_share.magnitude + mean.magnitude);
        AddGradients(scores, score, of, gradient, i, j, p, head, gradients);
      }
    }
  }
  return gradients;
}

}  // namespace sparsed::reference
