#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/formats/csr.h"
#include "kernels/value_source.h"

namespace sparsed {
namespace {

constexpr int kRowsAtOnce = 64;

template <typename T>
SumOf<T> At(const ConstDense& dense, int64_t row, int64_t column) {
  const T* const data = static_cast<const T*>(dense.data);
  return static_cast<SumOf<T>>(data[row * dense.leading_dimension + column]);
}
template <typename T>
T* RowOf(const Dense& dense, int64_t row) {
  return static_cast<T*>(dense.data) + row * dense.leading_dimension;
}

/// Dot product of part `head` of two rows.
template <typename T>
SumOf<T> Dot(const ConstDense& a, int64_t i, const ConstDense& b, int64_t j, int64_t head,
             int64_t heads) {
  const int64_t width = a.cols / heads;
  SumOf<T> sum = 0;
  for (int64_t k = head * width; k < (head + 1) * width; ++k)
    sum += At<T>(a, i, k) * At<T>(b, j, k);
  return sum;
}

template <typename T>
struct Scores {
  using Wide = SumOf<T>;
  const EdgeScores& s;

  struct Score {
    Wide value, slope;  ///< slope: of the value in what is multiplied or added up
  };
  Score Of(int64_t i, int64_t j, int64_t p, int64_t head) const {
    Score score;
    if (s.kind == EdgeScores::Kind::kDot) {
      score.slope = static_cast<Wide>(s.scale);
      score.value = score.slope * Dot<T>(s.left, i, s.right, j, head, s.heads);
    } else {
      const Wide sum = At<T>(s.left, i, head) + At<T>(s.right, j, head);
      score.slope = sum > 0 ? Wide(1) : static_cast<Wide>(s.slope);
      score.value = score.slope * sum;
    }
    if (s.bias.data != nullptr) score.value += At<T>(s.bias, p, s.bias.cols > 1 ? head : 0);
    return score;
  }
};

template <typename T>
void Attend(const EdgeAttention& a, int threads) {
  using Wide = SumOf<T>;
  const CsrView csr = ViewCsr(a.layout);
  const Scores<T> scores{a.scores};
  const int64_t heads = a.scores.heads, width = a.values.cols / heads;
#pragma omp parallel num_threads(threads)
  {
    std::vector<Wide> sums(static_cast<size_t>(width));
#pragma omp for schedule(dynamic, kRowsAtOnce)
    for (int64_t i = 0; i < csr.rows; ++i) {
      for (int64_t head = 0; head < heads; ++head) {
        std::ranges::fill(sums, Wide(0));
        Wide greatest = std::numeric_limits<Wide>::lowest(), sum = 0;
        for (int64_t p = csr.row_offsets[i]; p < csr.row_offsets[i + 1]; ++p) {
          const int64_t j = csr.column_indices[p];
          const Wide score = scores.Of(i, j, p, head).value;
          if (score > greatest) {
            const Wide factor = std::exp(greatest - score);
            sum *= factor;
            for (Wide& x : sums) x *= factor;
            greatest = score;
          }
          const Wide share = std::exp(score - greatest);
          sum += share;
          for (int64_t k = 0; k < width; ++k)
            sums[k] += share * At<T>(a.values, j, head * width + k);
        }
        T* const out = RowOf<T>(a.out, i) + head * width;
        for (int64_t k = 0; k < width; ++k) {
          out[k] = static_cast<T>(sum == 0 ? Wide(0) : sums[k] / sum);
        }
        if (a.log_sums.data != nullptr) {
          RowOf<Wide>(a.log_sums, i)[head] =
              sum == 0 ? -std::numeric_limits<Wide>::infinity() : greatest + std::log(sum);
        }
      }
    }
  }
}

template <typename T>
class Gradient {
 public:
  using Wide = SumOf<T>;

  explicit Gradient(const EdgeAttentionGradient& g)
      : g_(g), scores_{g.scores}, heads_(g.scores.heads) {}

  void OfRows(int threads) const {
    const CsrView csr = ViewCsr(g_.layout);
#pragma omp parallel num_threads(threads)
    {
      std::vector<Wide> left(static_cast<size_t>(g_.scores.left.cols));
#pragma omp for schedule(dynamic, kRowsAtOnce)
      for (int64_t i = 0; i < csr.rows; ++i) {
        std::ranges::fill(left, Wide(0));
        for (int64_t p = csr.row_offsets[i]; p < csr.row_offsets[i + 1]; ++p) {
          const int64_t j = csr.column_indices[p];
          Wide of_all = 0;
          for (int64_t head = 0; head < heads_; ++head) {
            const OfScore of = Of(i, j, p, head);
            of_all += of.score;
            if (g_.bias.data != nullptr && g_.bias.cols > 1) {
              RowOf<T>(g_.bias, p)[head] = static_cast<T>(of.score);
            }
            Add(of, g_.scores.right, j, head, left);
          }
          if (g_.bias.data != nullptr && g_.bias.cols == 1) {
            *RowOf<T>(g_.bias, p) = static_cast<T>(of_all);
          }
        }
        Store(g_.left, i, left);
      }
    }
  }

  void OfColumns(int threads) const {
    const CsrView csr = ViewCsr(g_.transposed);
    const ValueSource source(g_.transposed);
    const int64_t width = g_.values.cols / heads_;
#pragma omp parallel num_threads(threads)
    {
      std::vector<Wide> right(static_cast<size_t>(g_.scores.right.cols)),
          values(static_cast<size_t>(g_.values.cols));
#pragma omp for schedule(dynamic, kRowsAtOnce)
      for (int64_t j = 0; j < csr.rows; ++j) {
        std::ranges::fill(right, Wide(0));
        std::ranges::fill(values, Wide(0));
        for (int64_t slot = csr.row_offsets[j]; slot < csr.row_offsets[j + 1]; ++slot) {
          const int64_t i = csr.column_indices[slot];
          for (int64_t head = 0; head < heads_; ++head) {
            const OfScore of = Of(i, j, source[slot], head);
            Add(of, g_.scores.left, i, head, right);
            for (int64_t k = head * width; k < (head + 1) * width; ++k) {
              values[k] += of.share * At<T>(g_.gradient, i, k);
            }
          }
        }
        Store(g_.right, j, right);
        Store(g_.values_gradient, j, values);
      }
    }
  }

 private:
  struct OfScore {
    Wide share, score, sum;  ///< the softmax; gradients of the score and of what it is made of
  };
  OfScore Of(int64_t i, int64_t j, int64_t p, int64_t head) const {
    const auto score = scores_.Of(i, j, p, head);
    const ConstDense& logs = g_.log_sums;
    Wide log = static_cast<const Wide*>(logs.data)[i * logs.leading_dimension + head];
    if (log == -std::numeric_limits<Wide>::infinity()) log = 0;  // so are all scores
    OfScore of;
    of.share = std::exp(score.value - log);
    of.score = of.share * (Dot<T>(g_.gradient, i, g_.values, j, head, heads_) -
                           Dot<T>(g_.gradient, i, g_.out, i, head, heads_));
    of.sum = of.score * score.slope;
    return of;
  }
  void Add(const OfScore& of, const ConstDense& other, int64_t row, int64_t head,
           std::vector<Wide>& to) const {
    if (g_.scores.kind == EdgeScores::Kind::kSum) {
      to[head] += of.sum;
      return;
    }
    const int64_t width = other.cols / heads_;
    for (int64_t k = head * width; k < (head + 1) * width; ++k) {
      to[k] += of.sum * At<T>(other, row, k);
    }
  }
  static void Store(const Dense& to, int64_t row, const std::vector<Wide>& from) {
    if (to.data == nullptr) return;
    for (size_t k = 0; k < from.size(); ++k) RowOf<T>(to, row)[k] = static_cast<T>(from[k]);
  }

  const EdgeAttentionGradient& g_;
  const Scores<T> scores_;
  const int64_t heads_;
};

}  // namespace

void ComputeEdgeAttention(const EdgeAttention& attention, ElementType type, int threads) {
  VisitFloat(type, [&]<typename T>(T) { Attend<T>(attention, threads); });
}

void ComputeEdgeAttentionGradient(const EdgeAttentionGradient& gradient, ElementType type,
                                  int threads) {
  VisitFloat(type, [&]<typename T>(T) {
    const Gradient<T> of(gradient);
    if (gradient.left.data != nullptr || gradient.bias.data != nullptr) of.OfRows(threads);
    if (gradient.right.data != nullptr || gradient.values_gradient.data != nullptr) {
      of.OfColumns(threads);
    }
  });
}

}  // namespace sparsed
