// Products of sparse and dense that have no plan: with several values for each nonzero, one a head,
// and reductions that are not sums. Of plain CSR, of which there always is one.
//
// With H heads, dense matrices of K columns have H parts of K / H columns each, side by side, and
// values of nonzeros are nnz x H: column h goes with part h.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/array.h"
#include "kernels/layout.h"
#include "kernels/problem.h"

namespace sparsed {

/// C[i, k] = the reduction over the nonzeros (i, j) of s[i, j] * B[j, k]; of sums alpha times that
/// plus beta * C[i, k]. Elements are of one type that IsFloat() is true of; in f64 for f64, in f32
/// for the others, which are rounded once. Nothing lies over C.
struct RowProducts {
  const Layout& layout;  ///< kind "csr", rows in order: S, or S^T with a value source
  Reduction reduction = Reduction::kSum;
  ConstDense values = {};       ///< nnz x H, H a divisor of K; no data: ones
  bool values_by_slot = false;  ///< in the layout's order; else in that of S's CSR
  ConstDense b = {};
  Dense c = {};
  double alpha = 1, beta = 0;  ///< with beta = 0 C is not read
  /// i64, of C's shape: the nonzero that a greatest or least is of, the first in the layout's row
  /// of equal ones, -1 of none; no data: not asked for.
  Dense arguments = {};
  /// What `arguments` says of a nonzero of S's CSR; empty: its index there.
  std::span<const int64_t> positions = {};

  int64_t heads() const { return values.data == nullptr ? 1 : values.cols; }
};
void ComputeRowProducts(const RowProducts& products, ElementType type, int threads);

/// out[p, h] = s[p, h] times the dot product of part h of row i of A with part h of row j of B, for
/// each nonzero p = (i, j) of S. Types as above.
struct HeadDots {
  const Layout& layout;    ///< plain CSR of S
  ConstDense values = {};  ///< nnz x H, or nnz x 1 for all heads; no data: ones
  ConstDense a = {}, b = {};
  Dense out = {};  ///< nnz x H
};
void ComputeHeadDots(const HeadDots& dots, ElementType type, int threads);

}  // namespace sparsed
