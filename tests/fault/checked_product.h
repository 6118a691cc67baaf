// A matrix whose products are known. Includes the client: after headers of the kernels'.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "sparsed/client.h"

namespace sparsed::test {

/// Rows with as many nonzeros each, at columns and with values that `seed` decides: small whole
/// numbers, so that every order of summation gives the same. Times a dense B, which is always the
/// same.
struct CheckedProduct {
  int64_t rows;
  std::vector<int64_t> offsets{0};
  std::vector<int32_t> columns;
  std::vector<float> values;

  CheckedProduct(int64_t rows, int64_t row_nnz, uint32_t seed) : rows(rows) {
    std::minstd_rand random(seed);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < row_nnz; ++i) {
        const auto of_part = static_cast<int64_t>(random() % (rows / row_nnz));
        columns.push_back(static_cast<int32_t>(i * (rows / row_nnz) + of_part));
        values.push_back(static_cast<float>(random() % 7) - 3);
      }
      offsets.push_back(static_cast<int64_t>(columns.size()));
    }
  }
  CsrView View() const {
    return {.rows = rows,
            .cols = rows,
            .row_offsets = std::span<const int64_t>(offsets),
            .column_indices = columns,
            .values = std::span<const float>(values)};
  }

  static float B(int64_t row, int64_t column) {
    return static_cast<float>((row * 3 + column * 5) % 17);
  }
  /// rows x k, row-major.
  void FillB(float* b, int64_t k) const {
    for (int64_t i = 0; i < rows * k; ++i) b[i] = B(i / k, i % k);
  }
  bool Is(const float* c, int64_t k) const {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t j = 0; j < k; ++j) {
        float sum = 0;
        for (int64_t i = offsets[row]; i < offsets[row + 1]; ++i)
          sum += values[i] * B(columns[i], j);
        if (c[row * k + j] != sum) return false;
      }
    }
    return true;
  }
};

}  // namespace sparsed::test
