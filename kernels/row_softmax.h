// Softmax over the nonzeros of each row: what attention puts between an SDDMM and an SpMM.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/array.h"
#include "kernels/problem.h"

namespace sparsed {

/// y[p, h] = exp(scale * x[p, h] - m) / sum over the row's nonzeros q of exp(scale * x[q, h] - m),
/// m the row's greatest scale * x[q, h]. `row_offsets` is CSR's; x and y are nnz x H, of `type`,
/// which IsFloat() is true of, and may be the same. In f64 for f64, in f32 for the others. A row
/// with a NaN or infinity, or without anything above minus infinity, is NaN.
void RowSoftmax(std::span<const int64_t> row_offsets, ElementType type, double scale,
                const ConstDense& x, const Dense& y, int threads);

/// Its backward: dx[p, h] = scale * y[p, h] * (dy[p, h] - sum over the row of y[q, h] * dy[q, h]),
/// for the same scale and the y that RowSoftmax gave. dx may be y or dy.
void RowSoftmaxGradient(std::span<const int64_t> row_offsets, ElementType type, double scale,
                        const ConstDense& y, const ConstDense& dy, const Dense& dx, int threads);

}  // namespace sparsed
