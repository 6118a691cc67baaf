#include "client/cli/triples.h"

#include <fmt/format.h>

#include <algorithm>

namespace sparsed::cli {
namespace {

std::string Renumber(const ReadOptions& options) {
  return fmt::format(
      "renumber them: awk '!/^[#%]|^$/ {} (a list with commas: awk -F, -v OFS=, ...)",
      NumberNodes(options));
}

}  // namespace

std::string NumberNodes(const ReadOptions& options) {
  return fmt::format(
      "{{for (i = 1; i < 3; i++) {{if (!($i in n)) n[$i] = {}; $i = n[$i]}} print}}' FILE | "
      "sparsectl upload - --name=NAME",
      options.one_based ? "++c" : "c++");
}

void Triples::Bound() {
  first_ = options_.one_based ? 1 : 0;
  most_rows_ = shape_ ? shape_->rows : options_.max_dimension;
  most_cols_ = shape_ ? shape_->cols : options_.max_dimension;
  if (options_.undirected) most_rows_ = most_cols_ = std::min(most_rows_, most_cols_);
}

std::string Triples::Refusal(int64_t row, int64_t col) const {
  const bool bad_row = row < first_ || row - first_ >= most_rows_;
  const int64_t index = bad_row ? row : col;
  const char* const what = bad_row ? "row" : "column";
  if (index < first_) {
    return fmt::format("{} {} is out of range: indices count from {}{}", what, index, first_,
                       index == 0 ? ", as --one-based says" : "");
  }
  if (shape_ && (shape_->rows == 0 || shape_->cols == 0)) {
    return fmt::format("a matrix of {} x {} has no entries", shape_->rows, shape_->cols);
  }
  if (shape_) {
    const int64_t most = bad_row ? most_rows_ : most_cols_;
    return fmt::format("{} {} is out of range, expected {} to {}: the matrix is {} x {}{}", what,
                       index, first_, most - 1 + first_, shape_->rows, shape_->cols,
                       index == most ? "; do indices count from 1 (--one-based)?" : "");
  }
  return fmt::format("{} {} is too large: rows and columns can be {} at most; {}", what, index,
                     options_.max_dimension, Renumber(options_));
}

absl::StatusOr<MatrixFile> Triples::Build(FileFormat format, ValueType type,
                                          std::string_view file) {
  const int64_t count = std::max(greatest_row_, greatest_col_) + 1;
  // Such a list numbers its nodes by something else.
  if (!shape_ && IsMostlyOffsets(count, builder_.entries())) {
    return absl::InvalidArgumentError(fmt::format(
        "{}: the greatest index is {}, but there are {} entries only; if the matrix is "
        "as large as that, say so by --shape={}x{}, else {}",
        file, count - 1 + first_, builder_.entries(), count, count, Renumber(options_)));
  }
  const MatrixShape shape = shape_.value_or(MatrixShape{count, count});
  absl::StatusOr<MatrixFile> read = Built(builder_, shape, type, static_cast<int>(first_), file);
  if (!read.ok()) return read;
  read->format = format;
  if (count > 0 && !zero_ && !options_.one_based && !shape_) {
    read->notes.push_back(
        "row 0 and column 0 are empty: if indices count from 1, say so by --one-based");
  }
  if (options_.undirected && read->duplicates > 0) {
    read->notes.push_back(
        "some edges come more than once, or in both directions, and count as often: a list that "
        "has both directions is uploaded without --undirected");
  }
  return read;
}

}  // namespace sparsed::cli
