// Sparse patterns that own their arrays.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/formats/csr.h"

namespace sparsed::corpus {

/// A canonical CSR pattern that owns its arrays.
struct Pattern {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<int64_t> row_offsets = {0};
  std::vector<int32_t> column_indices;

  int64_t nnz() const { return static_cast<int64_t>(column_indices.size()); }
  CsrView view() const { return {rows, cols, row_offsets, column_indices, {}}; }
};

/// Sorts (row, column) pairs and merges duplicates.
Pattern FromCoordinates(int64_t rows, int64_t cols,
                        std::vector<std::pair<int32_t, int32_t>> coordinates);

/// Rows of the given columns.
Pattern FromRows(int64_t cols, const std::vector<std::vector<int32_t>>& rows);

/// The pattern of S^T; `value_source`, if not null, receives for each nonzero where it was in S.
Pattern Transpose(const Pattern& pattern, std::vector<int64_t>* value_source = nullptr);

}  // namespace sparsed::corpus
