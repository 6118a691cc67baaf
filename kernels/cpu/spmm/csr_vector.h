// CSR SpMM with a single column, which is SpMV, on a range of rows and a single thread.
#pragma once

#include "kernels/cpu/spmm/csr_rows.h"

namespace sparsed::cpu {

/// As MultiplyRows, of a product with k == 1.
void MultiplyVector(const CsrProduct<float>& product, RowRange rows, int64_t first, int64_t last);
void MultiplyVector(const CsrProduct<double>& product, RowRange rows, int64_t first, int64_t last);
void MultiplyVector(const CsrProduct<Float16>& product, RowRange rows, int64_t first, int64_t last);
void MultiplyVector(const CsrProduct<BFloat16>& product, RowRange rows, int64_t first,
                    int64_t last);

}  // namespace sparsed::cpu
