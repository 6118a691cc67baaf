// The vectorised part of attention along edges (kernels/attention.h): a range of rows on a single
// thread. Rows may be cut: what there is of one is left to be put together with its other pieces.
#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cpu/partition.h"
#include "kernels/formats/csr.h"
#include "kernels/half.h"
#include "kernels/value_source.h"

namespace sparsed::cpu {

/// Rows of a dense operand: a part of `width` columns for each head.
template <typename T>
struct HeadRows {
  const T* data = nullptr;
  int64_t stride = 0;
  int64_t width = 0;
};

/// How scores come about, for rows that are `own` and gather rows of `other`: left and right, or
/// the other way around.
template <typename T>
struct ScoreJob {
  const int64_t* row_offsets = nullptr;
  const int32_t* columns = nullptr;
  int64_t nnz = 0;
  ValueSource source;  ///< of slots, in the bias
  EdgeScores::Kind kind = EdgeScores::Kind::kDot;
  int64_t heads = 1;
  SumOf<T> scale = 1, slope = 0;
  HeadRows<T> own, other;
  const T* att = nullptr;   ///< kGatv2: heads x own.width
  const T* bias = nullptr;  ///< null: none
  int64_t bias_stride = 0, bias_cols = 0;
  bool prefetch = false;  ///< what is gathered, some nonzeros ahead
};

template <typename T>
struct AttentionJob {
  ScoreJob<T> scores;
  HeadRows<T> values;
  T* out = nullptr;
  int64_t out_stride = 0;
  SumOf<T>* log_sums = nullptr;  ///< null: not asked for
  int64_t log_sums_stride = 0;
};
/// A piece of a row: for each head the greatest score and the sum of exp(score - greatest), then
/// the weighted sums that go with them, heads x width.
template <typename T>
int64_t PieceSize(const AttentionJob<T>& job) {
  return job.scores.heads * (2 + job.values.width);
}
/// Rows from `begin` to `end`; of a row that began before, `head` receives a piece, of one that
/// does not end here, `tail`.
void AttendRows(const AttentionJob<float>& job, Cut begin, Cut end, float* head, float* tail);
void AttendRows(const AttentionJob<double>& job, Cut begin, Cut end, double* head, double* tail);
void AttendRows(const AttentionJob<Float16>& job, Cut begin, Cut end, float* head, float* tail);
void AttendRows(const AttentionJob<BFloat16>& job, Cut begin, Cut end, float* head, float* tail);

/// One side of the gradients: over rows of S, `own` being left and the gradient of `out`, `other`
/// right and values; or over rows of S^T, the other way around.
template <typename T>
struct GradientJob {
  ScoreJob<T> scores;
  HeadRows<T> own, other;  ///< beside those of the scores
  /// For each row of S and head the logarithm of its sum (0 if that is minus infinity), for each
  /// head the dot product of out and its gradient.
  const SumOf<T>* terms = nullptr;
  bool terms_of_own = true;
  // Results; null: not asked for.
  T* of_scores = nullptr;  ///< the gradient of scores.own
  int64_t of_scores_stride = 0;
  T* of_values = nullptr;  ///< the sums of shares times `other`
  int64_t of_values_stride = 0;
  T* of_bias = nullptr;  ///< as scores.bias; where terms_of_own alone
  int64_t of_bias_stride = 0;
  SumOf<T>* of_att =
      nullptr;  ///< of these rows: heads x scores.own.width; where terms_of_own alone
};
/// A piece of a row: sums of of_scores and of of_values.
template <typename T>
int64_t PieceSize(const GradientJob<T>& job) {
  return job.scores.heads * (job.scores.own.width + job.own.width);
}
void GradientRows(const GradientJob<float>& job, Cut begin, Cut end, float* head, float* tail);
void GradientRows(const GradientJob<double>& job, Cut begin, Cut end, double* head, double* tail);
void GradientRows(const GradientJob<Float16>& job, Cut begin, Cut end, float* head, float* tail);
void GradientRows(const GradientJob<BFloat16>& job, Cut begin, Cut end, float* head, float* tail);

/// What GradientJob::terms holds.
template <typename T>
struct TermsJob {
  int64_t heads = 1;
  HeadRows<T> out, gradient;
  const SumOf<T>* log_sums = nullptr;
  int64_t log_sums_stride = 0;
  SumOf<T>* terms = nullptr;  ///< rows of 2 * heads
};
void MakeTerms(const TermsJob<float>& job, RowRange rows);
void MakeTerms(const TermsJob<double>& job, RowRange rows);
void MakeTerms(const TermsJob<Float16>& job, RowRange rows);
void MakeTerms(const TermsJob<BFloat16>& job, RowRange rows);

}  // namespace sparsed::cpu
