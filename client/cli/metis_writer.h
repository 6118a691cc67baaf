// METIS's graph files, as metis.h reads them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "client/cli/matrix_writer.h"

namespace sparsed::cli {

/// Vertices with their neighbours and the edges' weights. INVALID_ARGUMENT if the matrix is no
/// graph of METIS's: it has to be square and symmetric, without a diagonal, and its values positive
/// integers.
class MetisWriter : public MatrixWriter {
 public:
  static absl::StatusOr<MetisWriter> Open(const std::string& path);

  absl::Status Add(const RowBlock& block) override;
  absl::Status Finish(int64_t rows, int64_t cols, int64_t nnz) override;

 private:
  explicit MetisWriter(std::string path, PackedFile file)
      : path_(std::move(path)), file_(std::move(file)) {}
  absl::Status Add(int64_t row, int64_t col, double value, std::string& text);

  std::string path_;
  PackedFile file_;
  int64_t rows_ = 0;  ///< so far
  /// Sum of a hash of each entry above the diagonal, less that of its mirror image of each below:
  /// 0 if the matrix is symmetric, and else only by an accident in 2^64.
  uint64_t asymmetry_ = 0;
};

}  // namespace sparsed::cli
