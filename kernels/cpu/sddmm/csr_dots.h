// The vectorised part of CSR SDDMM, on a range of nonzeros and a single thread.
#pragma once

#include <cstdint>

#include "kernels/half.h"

namespace sparsed::cpu {

/// O = S .* (A * B^T) over CSR arrays of T, computed in SumOf<T> and rounded once. Not owned;
/// lengths as in kernels/formats/csr.h.
template <typename T>
struct CsrDots {
  const int64_t* row_offsets = nullptr;
  const int32_t* column_indices = nullptr;
  const int32_t* row_order = nullptr;  ///< null: identity
  const T* values = nullptr;           ///< null: unscaled
  int64_t nnz = 0;
  const T* a = nullptr;
  int64_t lda = 0;
  const T* b = nullptr;
  int64_t ldb = 0;
  int64_t k = 0;
  bool prefetch = false;  ///< fetch rows of B some nonzeros ahead
  /// To what `out` holds already, before it is scaled by the values; f32 and f64 alone.
  bool add = false;
};

/// Computes nonzeros [first, last), of which the first one is in `row`; nonzero p goes to
/// out[p - first].
void DotNonzeros(const CsrDots<float>& dots, int64_t row, int64_t first, int64_t last, float* out);
void DotNonzeros(const CsrDots<double>& dots, int64_t row, int64_t first, int64_t last,
                 double* out);
void DotNonzeros(const CsrDots<Float16>& dots, int64_t row, int64_t first, int64_t last,
                 Float16* out);
void DotNonzeros(const CsrDots<BFloat16>& dots, int64_t row, int64_t first, int64_t last,
                 BFloat16* out);

}  // namespace sparsed::cpu
