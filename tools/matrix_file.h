// Matrices and orders in files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sparsed::tools {

/// In canonical CSR, of double values.
struct SparseMatrix {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<int64_t> row_offsets = {0};
  std::vector<int32_t> column_indices;
  std::vector<double> values;

  int64_t nnz() const { return static_cast<int64_t>(column_indices.size()); }
};

/// A Matrix Market file, plain or .gz. INVALID_ARGUMENT, NOT_FOUND with file and line.
absl::StatusOr<SparseMatrix> ReadMatrix(const std::string& path);

/// A row's number a line, from 0: line r says which row becomes row r.
absl::Status WriteOrder(const std::string& path, const std::vector<int32_t>& order);

}  // namespace sparsed::tools
