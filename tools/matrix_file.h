// Matrices and orders in files, for tools: no types of the client library, whose names are those of
// kernels/ too.
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

/// A Matrix Market or .npz file, plain or compressed, or another of docs/formats.md.
/// INVALID_ARGUMENT, NOT_FOUND with file and place.
absl::StatusOr<SparseMatrix> ReadMatrix(const std::string& path);

/// Whether the name ends as those of Matrix Market and .npz files do.
bool IsMatrixFile(const std::string& path);
/// The name of what is in a file: without folders, compression, and the ending of its format.
std::string NameOfMatrixFile(const std::string& path);

/// Writes a matrix of the format that the name's ending stands for: all values are 1.
/// INVALID_ARGUMENT for an ending that stands for none, or if the file cannot be written.
absl::Status WritePattern(const std::string& path, int64_t rows, int64_t cols,
                          std::vector<int64_t> row_offsets, std::vector<int32_t> column_indices);

/// A row's number a line, from 0: line r says which row becomes row r.
absl::Status WriteOrder(const std::string& path, const std::vector<int32_t>& order);

}  // namespace sparsed::tools
