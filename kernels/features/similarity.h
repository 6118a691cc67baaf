// How alike rows are.
#pragma once

#include <cstdint>

#include "kernels/formats/csr.h"

namespace sparsed {

/// Jaccard similarity of rows a and b of the pattern: columns in both over columns in either; 0 if
/// both are empty.
inline float JaccardSimilarity(const CsrView& csr, int64_t a, int64_t b) {
  int64_t i = csr.row_offsets[a];
  int64_t j = csr.row_offsets[b];
  const int64_t a_end = csr.row_offsets[a + 1];
  const int64_t b_end = csr.row_offsets[b + 1];
  const int64_t total = (a_end - i) + (b_end - j);
  int64_t common = 0;
  while (i < a_end && j < b_end) {
    const int32_t left = csr.column_indices[i];
    const int32_t right = csr.column_indices[j];
    common += left == right;
    i += left <= right;
    j += right <= left;
  }
  return total == 0 ? 0.0F : static_cast<float>(common) / static_cast<float>(total - common);
}

/// Mean Jaccard similarity of consecutive rows (in csr.row_order, if there is one): the paper's
/// measure of how well rows are clustered already (Jiang, Hong, Agrawal, PPoPP'20, section 4). A
/// pair of empty rows counts as 0. 0 for fewer than two rows.
double AverageConsecutiveSimilarity(const CsrView& csr, int threads);

}  // namespace sparsed
