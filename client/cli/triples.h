// Entries whose matrix does not say how large it is: of edge lists and of .npy arrays.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/csr_builder.h"
#include "client/cli/matrix_file.h"

namespace sparsed::cli {

/// The end of a command for the shell that numbers the nodes of a text's edges, whatever they are
/// called, in the order in which they come: awk's program behind its pattern, and the upload.
/// Columns stay where they are and count on from where the options say, so that these hold again.
std::string NumberNodes(const ReadOptions& options);

class Triples {
 public:
  /// `options` has to outlive it.
  Triples(const ReadOptions& options, bool pattern)
      : options_(options), builder_(pattern), shape_(options.shape) {
    Bound();
  }

  /// What the file itself says, before its first entry; the caller's word counts for more.
  void SetShape(MatrixShape shape) {
    if (!shape_) shape_ = shape;
    Bound();
  }

  /// An entry as the file has it. False, with Refusal() to say why, if there is no such place.
  bool Add(int64_t row, int64_t col, double value) {
    row -= first_;
    col -= first_;
    if (row < 0 || row >= most_rows_ || col < 0 || col >= most_cols_) return false;
    greatest_row_ = row > greatest_row_ ? row : greatest_row_;
    greatest_col_ = col > greatest_col_ ? col : greatest_col_;
    zero_ = zero_ || row == 0 || col == 0;
    builder_.Add(static_cast<int32_t>(row), static_cast<int32_t>(col), value);
    if (options_.undirected && row != col) {
      builder_.Add(static_cast<int32_t>(col), static_cast<int32_t>(row), value);
    }
    return true;
  }
  /// A sentence about a place that Add() refused.
  std::string Refusal(int64_t row, int64_t col) const;

  /// The matrix: square, up to the greatest index, unless somebody said otherwise.
  absl::StatusOr<MatrixFile> Build(FileFormat format, ValueType type, std::string_view file);

 private:
  void Bound();

  const ReadOptions& options_;
  CsrBuilder builder_;
  std::optional<MatrixShape> shape_;
  int64_t first_ = 0;
  int64_t most_rows_ = 0, most_cols_ = 0;
  int64_t greatest_row_ = -1, greatest_col_ = -1;
  bool zero_ = false;  ///< there is an entry of the first row or column
};

}  // namespace sparsed::cli
