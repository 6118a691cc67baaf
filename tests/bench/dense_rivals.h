// What others would do: the SpMM and SDDMM that our kernels are measured against. Compiled with all
// that the compiler has for this machine.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/formats/csr.h"

namespace sparsed::rivals {

/// Eigen's product of a row-major sparse and a row-major dense matrix, with its OpenMP threads.
class EigenSpmm {
 public:
  /// With S^T if `transposed`: a transposed copy is made here, Eigen's best case. Keeps references.
  EigenSpmm(const CsrView& s, const float* values, bool transposed);
  ~EigenSpmm();
  /// C = op(S) * B; B and C have k columns.
  void Run(const float* b, int64_t k, int threads, float* c) const;

  /// Whether Eigen was there to build against.
  static bool Available();

 private:
  struct Matrix;
  std::unique_ptr<Matrix> matrix_;
};

/// C = S * B by plain OpenMP loops.
void PlainSpmm(const CsrView& s, const float* values, const float* b, int64_t k, int threads,
               float* c);

/// O = S .* (A * B^T) by plain OpenMP loops, the inner one vectorised.
void PlainSddmm(const CsrView& s, const float* values, const float* a, const float* b, int64_t k,
                int threads, float* out);

/// to = factor * from, the bandwidth test of STREAM called "scale".
void StreamScale(const float* from, float factor, int64_t count, int threads, float* to);

}  // namespace sparsed::rivals
