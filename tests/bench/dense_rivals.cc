#include "tests/bench/dense_rivals.h"

#include <omp.h>

#include <cstdlib>
#include <vector>

#ifdef SPARSED_HAS_EIGEN
#include <Eigen/Sparse>
#endif

namespace sparsed::rivals {

#ifdef SPARSED_HAS_EIGEN

using Sparse = Eigen::SparseMatrix<float, Eigen::RowMajor, int32_t>;
using DenseMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

struct EigenSpmm::Matrix {
  std::vector<int32_t> row_offsets;
  Sparse s;
};

EigenSpmm::EigenSpmm(const CsrView& s, const float* values, bool transposed)
    : matrix_(std::make_unique<Matrix>()) {
  matrix_->row_offsets.assign(s.row_offsets.begin(), s.row_offsets.end());
  const Eigen::Map<const Sparse> plain(s.rows, s.cols, s.nnz(), matrix_->row_offsets.data(),
                                       s.column_indices.data(), values);
  matrix_->s = transposed ? Sparse(plain.transpose()) : Sparse(plain);
}

void EigenSpmm::Run(const float* b, int64_t k, int threads, float* c) const {
  Eigen::setNbThreads(threads);
  const Eigen::Map<const DenseMatrix> dense(b, matrix_->s.cols(), k);
  Eigen::Map<DenseMatrix> result(c, matrix_->s.rows(), k);
  result.noalias() = matrix_->s * dense;
}

bool EigenSpmm::Available() { return true; }

#else

struct EigenSpmm::Matrix {};
EigenSpmm::EigenSpmm(const CsrView&, const float*, bool) {}
void EigenSpmm::Run(const float*, int64_t, int, float*) const { std::abort(); }
bool EigenSpmm::Available() { return false; }

#endif

EigenSpmm::~EigenSpmm() = default;

void PlainSpmm(const CsrView& s, const float* values, const float* b, int64_t k, int threads,
               float* c) {
#pragma omp parallel for num_threads(threads) schedule(dynamic, 64)
  for (int64_t row = 0; row < s.rows; ++row) {
    float* const to = c + row * k;
    for (int64_t j = 0; j < k; ++j) to[j] = 0;
    for (int64_t p = s.row_offsets[row]; p < s.row_offsets[row + 1]; ++p) {
      const float* const from = b + s.column_indices[p] * k;
#pragma omp simd
      for (int64_t j = 0; j < k; ++j) to[j] += values[p] * from[j];
    }
  }
}

void PlainSddmm(const CsrView& s, const float* values, const float* a, const float* b, int64_t k,
                int threads, float* out) {
#pragma omp parallel for num_threads(threads) schedule(dynamic, 64)
  for (int64_t row = 0; row < s.rows; ++row) {
    for (int64_t p = s.row_offsets[row]; p < s.row_offsets[row + 1]; ++p) {
      const float* const x = a + row * k;
      const float* const y = b + s.column_indices[p] * k;
      float dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int64_t j = 0; j < k; ++j) dot += x[j] * y[j];
      out[p] = values[p] * dot;
    }
  }
}

void StreamScale(const float* from, float factor, int64_t count, int threads, float* to) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < count; ++i) to[i] = factor * from[i];
}

}  // namespace sparsed::rivals
