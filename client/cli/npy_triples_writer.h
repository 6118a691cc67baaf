// Arrays of entries, as npy_triples.h reads them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "client/cli/matrix_writer.h"

namespace sparsed::cli {

/// nnz x 3 float64: row, column, value, indices counted from 0. It cannot say how large the matrix
/// is.
class NpyTriplesWriter : public MatrixWriter {
 public:
  static absl::StatusOr<NpyTriplesWriter> Open(const std::string& path);

  absl::Status Add(const RowBlock& block) override;
  absl::Status Finish(int64_t rows, int64_t cols, int64_t nnz) override;
  std::string Note() const override { return note_; }

 private:
  explicit NpyTriplesWriter(PackedFile file) : file_(std::move(file)) {}

  PackedFile file_;
  int64_t greatest_ = -1;  ///< index
  std::string note_;
};

}  // namespace sparsed::cli
