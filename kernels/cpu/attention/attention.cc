#include "kernels/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "kernels/cpu/attention/rows.h"
#include "kernels/cpu/partition.h"
#include "kernels/cpu/parts.h"
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
  job.att = static_cast<const T*>(scores.att.data);
  job.bias = static_cast<const T*>(scores.bias.data);
  if (job.bias != nullptr) {
    job.bias_stride = scores.bias.leading_dimension;
    job.bias_cols = scores.bias.cols;
  }
  return job;
}

/// Elements of the pieces that RunParts leaves of rows that are cut.
int64_t PiecesSize(const CsrView& csr, int64_t width, int64_t piece_size) {
  return csr.rows == 0 ? 0 : 2 * cpu::PartCount(csr.rows, csr.nnz(), width) * piece_size;
}

/// Runs a job over the rows in parts of about equal work: run(part, begin, end, head, tail) of
/// each, where head and tail, in `pieces`, have room for a piece of a row that is cut, and then
/// finish(row, pieces) of the rows that were, in order. `width`: multiplications of a nonzero.
/// False: the run is to end.
template <typename Wide, typename Run, typename Finish>
bool RunParts(cpu::PartLoop& loop, const CsrView& csr, int64_t width, Wide* pieces,
              int64_t piece_size, const Run& run, const Finish& finish) {
  if (csr.rows == 0) return true;
  const int64_t parts = cpu::PartCount(csr.rows, csr.nnz(), width);
  const auto begin_of = [&](int64_t part) { return cpu::PartBegin(csr.row_offsets, part, parts); };
  const auto run_part = [&](int64_t part) {
    Wide* const head = pieces + 2 * part * piece_size;
    run(part, begin_of(part), begin_of(part + 1), head, head + piece_size);
  };
  const auto finish_rows = [&](int64_t) {
    std::vector<const Wide*> of_row;
    for (int64_t part = 0; part < parts; ++part) {
      const cpu::Cut begin = begin_of(part), end = begin_of(part + 1);
      const Wide* const head = pieces + 2 * part * piece_size;
      if (begin.nonzero > csr.row_offsets[begin.row]) {
        of_row.push_back(head);
        if (end.row == begin.row && end.nonzero < csr.row_offsets[end.row + 1]) continue;
        finish(begin.row, std::span<const Wide* const>(of_row));
        of_row.clear();
        if (end.row == begin.row) continue;
      }
      if (end.nonzero > csr.row_offsets[end.row]) of_row.push_back(head + piece_size);
    }
  };
  return loop.Run(parts, run_part) && loop.Run(1, finish_rows);
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

/// Multiplications of a nonzero, about: columns that are gathered.
int64_t WidthOf(const EdgeScores& scores, const ConstDense& values) {
  return scores.right.cols + values.cols;
}

template <typename T>
class Attention {
 public:
  using Wide = SumOf<T>;

  explicit Attention(const EdgeAttention& a)
      : csr_(ViewCsr(a.layout)), width_(WidthOf(a.scores, a.values)) {
    job_.scores = MakeScoreJob<T>(a.scores, a.layout, csr_, /*transposed=*/false);
    job_.values = Rows<T>(a.values, a.scores.heads);
    job_.out = static_cast<T*>(a.out.data);
    job_.out_stride = a.out.leading_dimension;
    job_.log_sums = static_cast<Wide*>(a.log_sums.data);
    job_.log_sums_stride = a.log_sums.leading_dimension;
  }

  size_t Workspace() const {
    return static_cast<size_t>(PiecesSize(csr_, width_, cpu::PieceSize(job_))) * sizeof(Wide);
  }
  absl::Status Run(const Context& context) {
    job_.scores.prefetch = cpu::ShouldPrefetch(csr_, width_ * static_cast<int64_t>(sizeof(T)));
    cpu::PartLoop loop(context);
    const bool all = RunParts(
        loop, csr_, width_, reinterpret_cast<Wide*>(context.workspace.data()), cpu::PieceSize(job_),
        [&](int64_t, auto... rows) { cpu::AttendRows(job_, rows...); },
        [&](int64_t row, auto pieces) { FinishRow(job_, row, pieces); });
    return all ? loop.Finish() : loop.Cut();
  }

 private:
  const CsrView csr_;
  const int64_t width_;
  cpu::AttentionJob<T> job_;
};

/// First what they need of each row of S, then those along its rows, then those along its columns.
template <typename T>
class Gradients {
 public:
  using Wide = SumOf<T>;

  explicit Gradients(const EdgeAttentionGradient& gradient)
      : g_(gradient),
        heads_(gradient.scores.heads),
        of_rows_(gradient.left.data != nullptr || gradient.bias.data != nullptr ||
                 gradient.att.data != nullptr),
        of_columns_(gradient.right.data != nullptr || gradient.values_gradient.data != nullptr) {}

  size_t Workspace() const {
    int64_t pieces = 0;
    if (of_rows_) {
      const cpu::GradientJob<T> job = OfRows(nullptr);
      pieces = PiecesSize(ViewCsr(g_.layout), 2 * Columns(), cpu::PieceSize(job));
    }
    if (of_columns_) {
      const cpu::GradientJob<T> job = OfColumns(nullptr);
      pieces =
          std::max(pieces, PiecesSize(ViewCsr(g_.transposed), 2 * Columns(), cpu::PieceSize(job)));
    }
    return static_cast<size_t>(TermsSize() + OfAttSize() + pieces) * sizeof(Wide);
  }
  absl::Status Run(const Context& context) const {
    auto* const terms = reinterpret_cast<Wide*>(context.workspace.data());
    cpu::PartLoop loop(context);
    const bool all =
        MakeTerms(loop, terms) &&
        (!of_rows_ || RunOver(loop, ViewCsr(g_.layout), OfRows(terms), terms)) &&
        (g_.att.data == nullptr || AddOfAtt(loop, terms + TermsSize())) &&
        (!of_columns_ || RunOver(loop, ViewCsr(g_.transposed), OfColumns(terms), terms));
    return all ? loop.Finish() : loop.Cut();
  }

 private:
  int64_t TermsSize() const { return g_.gradient.rows * 2 * heads_; }
  /// A row of sums for each part of the rows.
  int64_t OfAttSize() const { return g_.att.data == nullptr ? 0 : Parts() * g_.att.cols; }
  int64_t Parts() const {
    const CsrView csr = ViewCsr(g_.layout);
    return csr.rows == 0 ? 0 : cpu::PartCount(csr.rows, csr.nnz(), 2 * Columns());
  }

  bool MakeTerms(cpu::PartLoop& loop, Wide* terms) const {
    cpu::TermsJob<T> job;
    job.heads = heads_;
    job.out = Rows<T>(g_.out, heads_);
    job.gradient = Rows<T>(g_.gradient, heads_);
    job.log_sums = static_cast<const Wide*>(g_.log_sums.data);
    job.log_sums_stride = g_.log_sums.leading_dimension;
    job.terms = terms;
    constexpr int64_t kRowsAtOnce = 256;
    const int64_t rows = g_.gradient.rows;
    return loop.Run((rows + kRowsAtOnce - 1) / kRowsAtOnce, [&](int64_t part) {
      const int64_t first = part * kRowsAtOnce;
      cpu::MakeTerms(job, {first, std::min(first + kRowsAtOnce, rows)});
    });
  }
  /// Those of the left operand and of the bias.
  cpu::GradientJob<T> OfRows(const Wide* terms) const {
    cpu::GradientJob<T> job = MakeJob(g_.layout, terms, /*transposed=*/false);
    job.own = Rows<T>(g_.gradient, heads_);
    job.other = Rows<T>(g_.values, heads_);
    job.of_scores = static_cast<T*>(g_.left.data);
    job.of_scores_stride = g_.left.leading_dimension;
    job.of_bias = static_cast<T*>(g_.bias.data);
    job.of_bias_stride = g_.bias.leading_dimension;
    return job;
  }
  /// Those of the right operand and of the values.
  cpu::GradientJob<T> OfColumns(const Wide* terms) const {
    cpu::GradientJob<T> job = MakeJob(g_.transposed, terms, /*transposed=*/true);
    job.own = Rows<T>(g_.values, heads_);
    job.other = Rows<T>(g_.gradient, heads_);
    job.of_scores = static_cast<T*>(g_.right.data);
    job.of_scores_stride = g_.right.leading_dimension;
    job.of_values = static_cast<T*>(g_.values_gradient.data);
    job.of_values_stride = g_.values_gradient.leading_dimension;
    return job;
  }
  cpu::GradientJob<T> MakeJob(const Layout& layout, const Wide* terms, bool transposed) const {
    cpu::GradientJob<T> job;
    job.scores = MakeScoreJob<T>(g_.scores, layout, ViewCsr(layout), transposed);
    job.terms = terms;
    job.terms_of_own = !transposed;
    return job;
  }
  /// That are gathered.
  int64_t Columns() const { return WidthOf(g_.scores, g_.values); }

  bool AddOfAtt(cpu::PartLoop& loop, const Wide* sums) const {
    // Of the parts one after the other, so that their rows are read as they lie.
    constexpr int64_t kColumns = 64;
    const int64_t cols = g_.att.cols, parts = Parts();
    return loop.Run((cols + kColumns - 1) / kColumns, [&](int64_t block) {
      const int64_t first = block * kColumns, count = std::min(kColumns, cols - first);
      std::array<Wide, kColumns> all = {};
      for (int64_t part = 0; part < parts; ++part) {
        const Wide* const of_part = sums + part * cols + first;
        for (int64_t k = 0; k < count; ++k) all[k] += of_part[k];
      }
      std::transform(all.begin(), all.begin() + count, static_cast<T*>(g_.att.data) + first,
                     [](Wide sum) { return static_cast<T>(sum); });
    });
  }
  /// Its pieces are behind the terms and the sums of att; those of a job before it are not needed
  /// any more.
  bool RunOver(cpu::PartLoop& loop, const CsrView& csr, cpu::GradientJob<T> job,
               Wide* terms) const {
    job.scores.prefetch = cpu::ShouldPrefetch(csr, Columns() * static_cast<int64_t>(sizeof(T)));
    const int64_t of_scores = heads_ * job.scores.own.width, of_values = heads_ * job.own.width;
    return RunParts(
        loop, csr, 2 * Columns(), terms + TermsSize() + OfAttSize(), cpu::PieceSize(job),
        [&](int64_t part, auto... rows) {
          cpu::GradientJob<T> of_part = job;
          if (job.terms_of_own && g_.att.data != nullptr) {
            of_part.of_att = terms + TermsSize() + part * g_.att.cols;
          }
          cpu::GradientRows(of_part, rows...);
        },
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
  const int64_t heads_;
  const bool of_rows_, of_columns_;
};

}  // namespace

absl::Status ComputeEdgeAttention(const Context& context, const EdgeAttention& attention,
                                  ElementType type) {
  return VisitFloat(type, [&]<typename T>(T) { return Attention<T>(attention).Run(context); });
}

size_t EdgeAttentionWorkspace(const EdgeAttention& attention, ElementType type) {
  return VisitFloat(type, [&]<typename T>(T) { return Attention<T>(attention).Workspace(); });
}

absl::Status ComputeEdgeAttentionGradient(const Context& context,
                                          const EdgeAttentionGradient& gradient, ElementType type) {
  return VisitFloat(type, [&]<typename T>(T) { return Gradients<T>(gradient).Run(context); });
}

size_t EdgeAttentionWorkspace(const EdgeAttentionGradient& gradient, ElementType type) {
  return VisitFloat(type, [&]<typename T>(T) { return Gradients<T>(gradient).Workspace(); });
}

}  // namespace sparsed
