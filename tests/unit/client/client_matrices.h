// Matrices and products for tests of the client library, wherever the server runs.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "sparsed/client.h"

namespace sparsed::test {

inline constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

/// Small integers, so that products are exact whatever the order of summation.
inline CsrMatrix RandomMatrix(int64_t rows, int64_t cols, unsigned seed) {
  std::mt19937 random(seed);
  CsrMatrix matrix;
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.row_offsets = {0};
  std::vector<float> values;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = row % 5 == 4 ? cols : 0; col < cols; ++col) {
      if (random() % 6 != 0) continue;
      matrix.column_indices.push_back(static_cast<int32_t>(col));
      values.push_back(static_cast<float>(random() % 9) - 4);
    }
    matrix.row_offsets.push_back(matrix.nnz());
  }
  matrix.values = values;
  return matrix;
}

inline std::vector<float> RandomDense(int64_t elements, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(static_cast<size_t>(elements));
  for (float& value : values) value = static_cast<float>(random() % 7) - 3;
  return values;
}

inline const std::vector<float>& F32(const CsrMatrix& matrix) {
  return std::get<std::vector<float>>(matrix.values);
}

/// op(S) * B, packed.
inline std::vector<float> Multiply(const CsrMatrix& s, bool transpose, const std::vector<float>& b,
                                   int64_t k) {
  std::vector<float> c(static_cast<size_t>((transpose ? s.cols : s.rows) * k), 0);
  for (int64_t row = 0; row < s.rows; ++row) {
    for (int64_t i = s.row_offsets[row]; i < s.row_offsets[row + 1]; ++i) {
      const int64_t to = transpose ? s.column_indices[i] : row;
      const int64_t from = transpose ? row : s.column_indices[i];
      for (int64_t j = 0; j < k; ++j) c[to * k + j] += F32(s)[i] * b[from * k + j];
    }
  }
  return c;
}

/// S * T, dense.
inline std::vector<float> Multiply(const CsrMatrix& s, const CsrMatrix& t) {
  std::vector<float> c(static_cast<size_t>(s.rows * t.cols), 0);
  for (int64_t row = 0; row < s.rows; ++row) {
    for (int64_t i = s.row_offsets[row]; i < s.row_offsets[row + 1]; ++i) {
      const int32_t middle = s.column_indices[i];
      for (int64_t j = t.row_offsets[middle]; j < t.row_offsets[middle + 1]; ++j) {
        c[row * t.cols + t.column_indices[j]] += F32(s)[i] * F32(t)[j];
      }
    }
  }
  return c;
}

inline std::vector<float> Dense(const CsrMatrix& matrix) {
  std::vector<float> dense(static_cast<size_t>(matrix.rows * matrix.cols), 0);
  for (int64_t row = 0; row < matrix.rows; ++row) {
    for (int64_t i = matrix.row_offsets[row]; i < matrix.row_offsets[row + 1]; ++i) {
      dense[row * matrix.cols + matrix.column_indices[i]] = F32(matrix)[i];
    }
  }
  return dense;
}

inline Matrix Upload(const Client& client, const std::string& name, const CsrMatrix& matrix,
                     const UploadOptions& options = {}) {
  auto handle = client.Upload(name, matrix.View(), options);
  EXPECT_TRUE(handle.ok()) << handle.status();
  return client.MatrixNamed(name);
}

}  // namespace sparsed::test
