// Softmax over the nonzeros of each row: what attention puts between an SDDMM and an SpMM.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/array.h"

namespace sparsed {

/// y[i] = exp(scale * x[i] - m) / sum over the row of exp(scale * x[j] - m), m the row's greatest
/// scale * x[j]. `row_offsets` is CSR's; x and y have one element a nonzero, of `type`, which
/// IsFloat() is true of, and may be the same. In f64 for f64, in f32 for the others. A row with a
/// NaN or infinity, or without anything above minus infinity, is NaN.
void RowSoftmax(std::span<const int64_t> row_offsets, ElementType type, double scale, const void* x,
                void* y, int threads);

/// Its backward: dx[i] = scale * y[i] * (dy[i] - sum over the row of y[j] * dy[j]), for the same
/// scale and the y that RowSoftmax gave. dx may be y or dy.
void RowSoftmaxGradient(std::span<const int64_t> row_offsets, ElementType type, double scale,
                        const void* y, const void* dy, void* dx, int threads);

}  // namespace sparsed
