// Passes over values of nonzeros: scaled by their rows and columns, and added up. Of types that
// IsFloat() is true of; in f64 for f64, in f32 for the others.
#pragma once

#include <cstdint>

#include "kernels/array.h"
#include "kernels/layout.h"
#include "kernels/problem.h"

namespace sparsed {

/// y[p, h] = rows[i, h] * x[p, h] * cols[j, h] for each nonzero p = (i, j) of S.
struct NonzeroScaling {
  const Layout& layout;  ///< plain CSR of S
  ConstDense x = {};     ///< nnz x H
  ConstDense rows = {};  ///< M x H, or M x 1 for all of them; no data: ones
  ConstDense cols = {};  ///< N x H or N x 1, likewise
  Dense y = {};          ///< nnz x H; may be x
};
void ScaleNonzeros(const NonzeroScaling& scaling, ElementType type, int threads);

/// y[i, h] = the sum of x[p, h] over the nonzeros p of row i of the layout.
struct NonzeroTotals {
  const Layout& layout;    ///< plain CSR of S, or of S^T with a value source
  ConstDense x = {};       ///< nnz x H
  bool x_by_slot = false;  ///< in the layout's order; else in that of S's CSR
  Dense y = {};            ///< rows x H
};
void TotalNonzeros(const NonzeroTotals& totals, ElementType type, int threads);

}  // namespace sparsed
