// The vectorised part of CSR SpMM, on a range of rows and a single thread.
#pragma once

#include <cstdint>

#include "kernels/problem.h"

namespace sparsed::cpu {

/// C = alpha * S * B + beta * C over CSR arrays of T, computed in SumOf<T> and rounded once. Not
/// owned; lengths as in kernels/formats/csr.h.
template <typename T>
struct CsrProduct {
  const int64_t* row_offsets = nullptr;
  const int32_t* column_indices = nullptr;
  const int32_t* row_order = nullptr;  ///< null: identity
  const T* values = nullptr;
  int64_t nnz = 0;
  const T* b = nullptr;
  int64_t ldb = 0;
  T* c = nullptr;
  int64_t ldc = 0;
  int64_t k = 0;
  SumOf<T> alpha = 1;
  SumOf<T> beta = 0;
  /// For C of a type that is only stored: where sums go, unscaled, instead of C.
  SumOf<T>* sums = nullptr;
  int64_t ld_sums = 0;
  bool prefetch = false;  ///< fetch rows of B some nonzeros ahead
  bool stream = false;    ///< store past the caches; needs beta == 0 and rows of C aligned to 64
};

/// Computes `rows` of C from those of their nonzeros that are in [first, last); with `sums`, a
/// single row.
void MultiplyRows(const CsrProduct<float>& product, RowRange rows, int64_t first, int64_t last);
void MultiplyRows(const CsrProduct<double>& product, RowRange rows, int64_t first, int64_t last);
void MultiplyRows(const CsrProduct<Float16>& product, RowRange rows, int64_t first, int64_t last);
void MultiplyRows(const CsrProduct<BFloat16>& product, RowRange rows, int64_t first, int64_t last);

}  // namespace sparsed::cpu
