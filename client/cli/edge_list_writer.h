// Edge lists, as edge_list.h reads them.
#pragma once

#include <string>
#include <utility>

#include "client/cli/matrix_writer.h"

namespace sparsed::cli {

/// Row, column and value of an entry a line, counted from 0: between blanks, or between commas or
/// tabs if the name ends in .csv or .tsv. A comment says how large the matrix is.
class EdgeListWriter : public MatrixWriter {
 public:
  static absl::StatusOr<EdgeListWriter> Open(const std::string& path);

  absl::Status Add(const RowBlock& block) override;
  absl::Status Finish(int64_t rows, int64_t cols, int64_t nnz) override;

 private:
  EdgeListWriter(PackedFile file, char delimiter) : file_(std::move(file)), delimiter_(delimiter) {}

  PackedFile file_;
  char delimiter_;
};

}  // namespace sparsed::cli
