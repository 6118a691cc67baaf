// What each operation means: plain loops in float64 over plain CSR. The oracle of every kernel
// test; never fast.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention.h"
#include "kernels/formats/csr.h"
#include "kernels/problem.h"

namespace sparsed::reference {

/// C = alpha * op(S) * B + beta * C; C has rows(op(S)) x k elements, leading dimension k. If beta
/// is 0, C is only written. `magnitude`, if not null, receives for each element sum |s||b| *
/// |alpha| + |beta * c|: what a forward error bound scales with.
void Spmm(const CsrView& s, const double* values, bool transposed, const double* b, int64_t ldb,
          int64_t k, double alpha, double beta, double* c, double* magnitude = nullptr);

/// O[p] = values[p] * dot(A[row], B[col]); values null: 1. `magnitude` likewise.
void Sddmm(const CsrView& s, const double* values, const double* a, int64_t lda, const double* b,
           int64_t ldb, int64_t k, double* out, double* magnitude = nullptr);

struct SparseResult {
  std::vector<int64_t> row_offsets;
  std::vector<int32_t> column_indices;
  std::vector<double> values;
  std::vector<double> magnitudes;
};
/// C = S * T in the semiring, rows sorted; entries that cancel to zero are kept. With a mask (as
/// many rows as S, columns as T), of C's entries those at its positions.
SparseResult Spgemm(const CsrView& s, const double* s_values, const CsrView& t,
                    const double* t_values, Semiring semiring = Semiring::kSumProduct,
                    const CsrView* mask = nullptr);

/// Rows of a dense matrix one after the other. An error bound of an element is a multiple of its
/// magnitude.
struct Values {
  std::vector<double> values;
  std::vector<double> magnitudes;
};

/// Of kernels/attention.h, all operands in float64.
struct AttentionResults {
  Values out;       ///< M x L
  Values log_sums;  ///< M x H
};
AttentionResults EdgeAttention(const CsrView& s, const EdgeScores& scores,
                               const ConstDense& values);

/// From `out` and `log_sums` as they are given, like the kernels.
struct AttentionGradients {
  Values left, right, values, bias, att;
};
AttentionGradients EdgeAttentionGradients(const CsrView& s, const EdgeScores& scores,
                                          const ConstDense& values, const ConstDense& out,
                                          const ConstDense& log_sums, const ConstDense& gradient);

}  // namespace sparsed::reference
