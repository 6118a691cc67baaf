#include <cmath>

#include "kernels/reference/reference.h"

namespace sparsed::reference {

void Sddmm(const CsrView& s, const double* values, const double* a, int64_t lda, const double* b,
           int64_t ldb, int64_t k, double* out, double* magnitude) {
  for (int64_t row = 0; row < s.rows; ++row) {
    for (int64_t p = s.row_offsets[row]; p < s.row_offsets[row + 1]; ++p) {
      const double scale = values == nullptr ? 1 : values[p];
      double sum = 0;
      double sum_of_magnitudes = 0;
      for (int64_t j = 0; j < k; ++j) {
        const double product = a[row * lda + j] * b[s.column_indices[p] * ldb + j];
        sum += product;
        sum_of_magnitudes += std::abs(product);
      }
      out[p] = scale * sum;
      if (magnitude != nullptr) magnitude[p] = std::abs(scale) * sum_of_magnitudes;
    }
  }
}

}  // namespace sparsed::reference
