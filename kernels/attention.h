// Attention along the nonzeros of S: scores, softmax over each row and the weighted sum in one
// pass, so that nothing of nnz x H is stored, and the gradients of it, for which scores are made
// again. The running maximum and sum of a row are those of Milakov and Gimelshein ("Online
// normalizer calculation for softmax", 2018), the backward that of Dao et al. ("FlashAttention",
// NeurIPS 2022, appendix B), along edges.
//
// With H heads, dense matrices of K columns have H parts of K / H columns each, side by side.
// Elements are of one type that IsFloat() is true of; sums are in f64 for f64, in f32 for the
// others, results rounded once. Nothing lies over a result; `right` and `values` may be the same. A
// row without nonzeros, or whose scores are all minus infinity, gives zeros and the logarithm minus
// infinity; one with a NaN or infinity among its scores NaN.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/array.h"
#include "kernels/layout.h"
#include "kernels/problem.h"

namespace sparsed {

/// How the score of a nonzero (i, j) comes about; h is a head.
struct EdgeScores {
  enum class Kind : uint8_t {
    kDot,  ///< scale * (the dot product of part h of row i of `left`, and of row j of `right`)
    kSum,  ///< LeakyReLU(left[i, h] + right[j, h]), as GAT has it (Velickovic et al., ICLR 2018)
    /// The sum over part h of att * LeakyReLU(left[i] + right[j]) (GATv2: Brody et al., ICLR 2022).
    kGatv2,
  };
  Kind kind = Kind::kDot;
  int64_t heads = 1;
  double scale = 1;       ///< kDot
  double slope = 0.2;     ///< kSum, kGatv2: of what is below 0
  ConstDense left = {};   ///< M x K (Q); kSum: M x H
  ConstDense right = {};  ///< N x K (K); kSum: N x H
  ConstDense att = {};    ///< kGatv2: 1 x K
  ConstDense bias = {};   ///< added: nnz x H, or nnz x 1 for all heads; no data: none
};

/// out[i, h] = the sum over the nonzeros (i, j) of S of p[i, j, h] * values[j, h], p the softmax
/// over row i of the scores.
struct EdgeAttention {
  const Layout& layout;  ///< plain CSR of S
  EdgeScores scores = {};
  ConstDense values = {};  ///< N x L, L a multiple of H
  Dense out = {};          ///< M x L
  /// M x H of SumOf the type, the logarithm of the sum over the row of exp(score), which the
  /// gradient needs; no data: not asked for.
  Dense log_sums = {};
};
/// On the CPU, with a workspace of as many bytes as EdgeAttentionWorkspace says. Results have the
/// same bits for any team. It knows Context::progress. CANCELLED.
absl::Status ComputeEdgeAttention(const Context& context, const EdgeAttention& attention,
                                  ElementType type);
size_t EdgeAttentionWorkspace(const EdgeAttention& attention, ElementType type);

/// The gradients, from those of `out`. No data: not asked for.
struct EdgeAttentionGradient {
  const Layout& layout;      ///< plain CSR of S
  const Layout& transposed;  ///< plain CSR of S^T, with a value source
  EdgeScores scores = {};    ///< as they were
  ConstDense values = {};    ///< as they were
  ConstDense out = {};       ///< what they gave
  ConstDense log_sums = {};
  ConstDense gradient = {};  ///< of `out`, M x L
  Dense left = {};           ///< of scores.left
  Dense right = {};          ///< of scores.right
  Dense values_gradient = {};
  Dense bias = {};  ///< of scores.bias, of its shape
  Dense att = {};   ///< of scores.att
};
/// Likewise.
absl::Status ComputeEdgeAttentionGradient(const Context& context,
                                          const EdgeAttentionGradient& gradient, ElementType type);
size_t EdgeAttentionWorkspace(const EdgeAttentionGradient& gradient, ElementType type);

}  // namespace sparsed
