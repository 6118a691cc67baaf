// S * S by the server's kernel for the CPU, and what undoing a symmetric permutation of S costs.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/formats/csr.h"
#include "tools/matrix_file.h"

namespace sparsed::tools {

CsrView ViewOf(const SparseMatrix& matrix);

/// Row and column r are row and column order[r] of `matrix`, which is square.
SparseMatrix PermuteSymmetrically(const SparseMatrix& matrix, const std::vector<int32_t>& order);

struct Square {
  SparseMatrix result;
  double seconds = 0;
};
/// Errors: RESOURCE_EXHAUSTED.
absl::StatusOr<Square> MultiplyBySelf(const SparseMatrix& matrix, int threads);

/// The square of a permuted matrix as that of the matrix itself: rows in their places, columns
/// renamed and each row sorted again.
Square PutBack(const SparseMatrix& square, const std::vector<int32_t>& order, int threads);

}  // namespace sparsed::tools
