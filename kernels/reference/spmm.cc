#include <cmath>

#include "kernels/reference/reference.h"

namespace sparsed::reference {

void Spmm(const CsrView& s, const double* values, bool transposed, const double* b, int64_t ldb,
          int64_t k, double alpha, double beta, double* c, double* magnitude) {
  const int64_t c_rows = transposed ? s.cols : s.rows;
  for (int64_t i = 0; i < c_rows * k; ++i) {
    c[i] = beta == 0 ? 0 : beta * c[i];
    if (magnitude != nullptr) magnitude[i] = std::abs(c[i]);
  }
  for (int64_t row = 0; row < s.rows; ++row) {
    for (int64_t p = s.row_offsets[row]; p < s.row_offsets[row + 1]; ++p) {
      const int64_t b_row = transposed ? row : s.column_indices[p];
      const int64_t c_row = transposed ? s.column_indices[p] : row;
      for (int64_t j = 0; j < k; ++j) {
        const double product = alpha * values[p] * b[b_row * ldb + j];
        c[c_row * k + j] += product;
        if (magnitude != nullptr) magnitude[c_row * k + j] += std::abs(product);
      }
    }
  }
}

}  // namespace sparsed::reference
