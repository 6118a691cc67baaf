#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cpu/attention/rows.h"
#include "kernels/cpu/partition.h"
#include "kernels/cpu/prefetch.h"
#include "kernels/formats/csr.h"

namespace sparsed {
namespace {

template <typename T>
cpu::HeadRows<T> Rows(const ConstDense& dense, int64_t heads) {
  return {static_cast<const T*>(dense.data), dense.leading_dimension, dense.cols / heads};
}

/// Of rows of `csr`: S, or S^T with left and right swapped.
template <typename T>
cpu::ScoreJob<T> MakeScoreJob(const EdgeScores& scores, const Layout& layout, const CsrView& csr,
                              bool transposed) {
  const ConstDense &own = transposed ? scores.right : scores.left,
                   &other = transposed ? scores.left : scores.right;
  cpu::ScoreJob<T> job;
  job.row_offsets = csr.row_offsets.data();
  job.columns = csr.column_indices.data();
  job.nnz = csr.nnz();
  if (transposed) job.source = ValueSource(layout);
  job.kind = scores.kind;
  job.heads = scores.heads;
  job.scale = static_cast<SumOf<T>>(scores.scale);
  job.slope = static_cast<SumOf<T>>(scores.slope);
  job.own = Rows<T>(own, scores.heads);
  job.other = Rows<T>(other, scores.heads);
  job.bias = static_cast<const T*>(scores.bias.data);
  if (job.bias != nullptr) {
    job.bias_stride = scores.bias.leading_dimension;
    job.bias_cols = scores.bias.cols;
  }
  return job;
}

/// Runs a job over the rows in parts of about equal work: run(begin, end, head, tail) of each,
/// where head and tail have room for a piece of a row that is cut, and then finish(row, pieces) of
/// the rows that were, in order. `width`: multiplications of a nonzero.
template <typename Wide, typename Run, typename Finish>
void RunParts(const CsrView& csr, int64_t width, int64_t piece_size, int threads, const Run& run,
              const Finish& finish) {
  if (csr.rows == 0) return;
  const int64_t parts = cpu::PartCount(csr.rows, csr.nnz(), width);
  const auto pieces =
      std::make_unique_for_overwrite<Wide[]>(static_cast<size_t>(2 * parts * piece_size));
  const auto begin_of = [&](int64_t part) { return cpu::PartBegin(csr.row_offsets, part, parts); };
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (parts > 1 && threads > 1)
  for (int64_t part = 0; part < parts; ++part) {
    Wide* const head = pieces.get() + 2 * part * piece_size;
    run(begin_of(part), begin_of(part + 1), head, head + piece_size);
  }
  std::vector<const Wide*> of_row;
  for (int64_t part = 0; part < parts; ++part) {
    const cpu::Cut begin = begin_of(part), end = begin_of(part + 1);
    const Wide* const head = pieces.get() + 2 * part * piece_size;
    if (begin.nonzero > csr.row_offsets[begin.row]) {
      of_row.push_back(head);
      if (end.row == begin.row && end.nonzero < csr.row_offsets[end.row + 1]) continue;
      finish(begin.row, std::span<const Wide* const>(of_row));
      of_row.clear();
      if (end.row == begin.row) continue;
    }
    if (end.nonzero > csr.row_offsets[end.row]) of_row.push_back(head + piece_size);
  }
}

/// Puts a row together from its pieces (cpu::PieceSize).
template <typename T>
void FinishRow(const cpu::AttentionJob<T>& job, int64_t row,
               std::span<const SumOf<T>* const> pieces) {
  using Wide = SumOf<T>;
  const int64_t heads = job.scores.heads, width = job.values.width;
  std::vector<Wide> factors(pieces.size());
  for (int64_t head = 0; head < heads; ++head) {
    Wide greatest = std::numeric_limits<Wide>::lowest(), sum = 0;
    for (const Wide* piece : pieces) greatest = std::max(greatest, piece[head]);
    for (size_t i = 0; i < pieces.size(); ++i) {
      factors[i] = std::exp(pieces[i][head] - greatest);
      sum += factors[i] * pieces[i][heads + head];
    }
    T* const out = job.out + row * job.out_stride + head * width;
    for (int64_t k = 0; k < width; ++k) {
      Wide element = 0;
      for (size_t i = 0; i < pieces.size(); ++i) {
        element += factors[i] * pieces[i][2 * heads + head * width + k];
      }
      out[k] = static_cast<T>(sum == 0 ? Wide(0) : element / sum);
    }
    if (job.log_sums == nullptr) continue;
    job.log_sums[row * job.log_sums_stride + head] =
        sum == 0 ? -std::numeric_limits<Wide>::infinity() : greatest + std::log(sum);
  }
}

/// to[k] = the sum of element from + k of the pieces.
template <typename T>
void AddPieces(std::span<const SumOf<T>* const> pieces, int64_t from, int64_t count, T* to) {
  for (int64_t k = 0; k < count; ++k) {
    SumOf<T> sum = 0;
    for (const SumOf<T>* piece : pieces) sum += piece[from + k];
    to[k] = static_cast<T>(sum);
  }
}

template <typename T>
void Attend(const EdgeAttention& a, int threads) {
  const CsrView csr = ViewCsr(a.layout);
  cpu::AttentionJob<T> job;
  job.scores = MakeScoreJob<T>(a.scores, a.layout, csr, /*transposed=*/false);
  const int64_t columns = a.scores.right.cols + a.values.cols;
  job.scores.prefetch = cpu::ShouldPrefetch(csr, columns * static_cast<int64_t>(sizeof(T)));
  job.values = Rows<T>(a.values, a.scores.heads);
  job.out = static_cast<T*>(a.out.data);
  job.out_stride = a.out.leading_dimension;
  job.log_sums = static_cast<SumOf<T>*>(a.log_sums.data);
  job.log_sums_stride = a.log_sums.leading_dimension;
  RunParts<SumOf<T>>(
      csr, columns, cpu::PieceSize(job), threads,
      [&](auto... part) { cpu::AttendRows(job, part...); },
      [&](int64_t row, auto pieces) { FinishRow(job, row, pieces); });
}

template <typename T>
class Gradients {
 public:
  using Wide = SumOf<T>;

  Gradients(const EdgeAttentionGradient& gradient, int threads)
      : g_(gradient),
        threads_(threads),
        heads_(gradient.scores.heads),
        terms_(std::make_unique_for_overwrite<Wide[]>(
            static_cast<size_t>(gradient.gradient.rows * 2 * gradient.scores.heads))) {
    cpu::TermsJob<T> job;
    job.heads = heads_;
    job.out = Rows<T>(g_.out, heads_);
    job.gradient = Rows<T>(g_.gradient, heads_);
    job.log_sums = static_cast<const Wide*>(g_.log_sums.data);
    job.log_sums_stride = g_.log_sums.leading_dimension;
    job.terms = terms_.get();
    constexpr int64_t kRowsAtOnce = 256;
    const int64_t rows = g_.gradient.rows;
#pragma omp parallel for num_threads(threads_) schedule(static) if (threads_ > 1)
    for (int64_t first = 0; first < rows; first += kRowsAtOnce) {
      cpu::MakeTerms(job, {first, std::min(first + kRowsAtOnce, rows)});
    }
  }

  /// Those of the left operand and of the bias.
  void OfRows() const {
    const CsrView csr = ViewCsr(g_.layout);
    cpu::GradientJob<T> job = MakeJob(g_.layout, csr, /*transposed=*/false);
    job.own = Rows<T>(g_.gradient, heads_);
    job.other = Rows<T>(g_.values, heads_);
    job.of_scores = static_cast<T*>(g_.left.data);
    job.of_scores_stride = g_.left.leading_dimension;
    job.of_bias = static_cast<T*>(g_.bias.data);
    job.of_bias_stride = g_.bias.leading_dimension;
    Run(csr, job);
  }
  /// Those of the right operand and of the values.
  void OfColumns() const {
    const CsrView csr = ViewCsr(g_.transposed);
    cpu::GradientJob<T> job = MakeJob(g_.transposed, csr, /*transposed=*/true);
    job.own = Rows<T>(g_.values, heads_);
    job.other = Rows<T>(g_.gradient, heads_);
    job.of_scores = static_cast<T*>(g_.right.data);
    job.of_scores_stride = g_.right.leading_dimension;
    job.of_values = static_cast<T*>(g_.values_gradient.data);
    job.of_values_stride = g_.values_gradient.leading_dimension;
    Run(csr, job);
  }

 private:
  cpu::GradientJob<T> MakeJob(const Layout& layout, const CsrView& csr, bool transposed) const {
    cpu::GradientJob<T> job;
    job.scores = MakeScoreJob<T>(g_.scores, layout, csr, transposed);
    job.scores.prefetch = cpu::ShouldPrefetch(csr, Columns() * static_cast<int64_t>(sizeof(T)));
    job.terms = terms_.get();
    job.terms_of_own = !transposed;
    return job;
  }
  /// That are gathered.
  int64_t Columns() const { return g_.scores.right.cols + g_.values.cols; }

  void Run(const CsrView& csr, const cpu::GradientJob<T>& job) const {
    const int64_t of_scores = heads_ * job.scores.own.width, of_values = heads_ * job.own.width;
    RunParts<Wide>(
        csr, 2 * Columns(), cpu::PieceSize(job), threads_,
        [&](auto... part) { cpu::GradientRows(job, part...); },
        [&](int64_t row, std::span<const Wide* const> pieces) {
          if (job.of_scores != nullptr) {
            AddPieces(pieces, 0, of_scores, job.of_scores + row * job.of_scores_stride);
          }
          if (job.of_values != nullptr) {
            AddPieces(pieces, of_scores, of_values, job.of_values + row * job.of_values_stride);
          }
        });
  }

  const EdgeAttentionGradient& g_;
  const int threads_;
  const int64_t heads_;
  const std::unique_ptr<Wide[]> terms_;
};

}  // namespace

void ComputeEdgeAttention(const EdgeAttention& attention, ElementType type, int threads) {
  VisitFloat(type, [&]<typename T>(T) { Attend<T>(attention, threads); });
}

void ComputeEdgeAttentionGradient(const EdgeAttentionGradient& gradient, ElementType type,
                                  int threads) {
  VisitFloat(type, [&]<typename T>(T) {
    const Gradients<T> gradients(gradient, threads);
    if (gradient.left.data != nullptr || gradient.bias.data != nullptr) gradients.OfRows();
    if (gradient.right.data != nullptr || gradient.values_gradient.data != nullptr) {
      gradients.OfColumns();
    }
  });
}

}  // namespace sparsed
