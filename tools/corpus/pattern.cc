#include "tools/corpus/pattern.h"

#include <algorithm>
#include <numeric>

namespace sparsed::corpus {

Pattern FromCoordinates(int64_t rows, int64_t cols,
                        std::vector<std::pair<int32_t, int32_t>> coordinates) {
  std::sort(coordinates.begin(), coordinates.end());
  coordinates.erase(std::unique(coordinates.begin(), coordinates.end()), coordinates.end());
  Pattern pattern{rows, cols, std::vector<int64_t>(rows + 1, 0), {}};
  pattern.column_indices.reserve(coordinates.size());
  for (const auto& [row, column] : coordinates) {
    ++pattern.row_offsets[row + 1];
    pattern.column_indices.push_back(column);
  }
  std::partial_sum(pattern.row_offsets.begin(), pattern.row_offsets.end(),
                   pattern.row_offsets.begin());
  return pattern;
}

Pattern FromRows(int64_t cols, const std::vector<std::vector<int32_t>>& rows) {
  std::vector<std::pair<int32_t, int32_t>> coordinates;
  for (size_t row = 0; row < rows.size(); ++row) {
    for (const int32_t column : rows[row]) coordinates.emplace_back(row, column);
  }
  return FromCoordinates(static_cast<int64_t>(rows.size()), cols, std::move(coordinates));
}

Pattern Transpose(const Pattern& pattern, std::vector<int64_t>* value_source) {
  Pattern result{pattern.cols, pattern.rows, std::vector<int64_t>(pattern.cols + 1, 0),
                 std::vector<int32_t>(pattern.nnz())};
  for (int32_t column : pattern.column_indices) ++result.row_offsets[column + 1];
  std::partial_sum(result.row_offsets.begin(), result.row_offsets.end(),
                   result.row_offsets.begin());
  std::vector<int64_t> next(result.row_offsets.begin(), result.row_offsets.end() - 1);
  if (value_source != nullptr) value_source->resize(pattern.nnz());
  for (int64_t row = 0; row < pattern.rows; ++row) {
    for (int64_t p = pattern.row_offsets[row]; p < pattern.row_offsets[row + 1]; ++p) {
      const int64_t slot = next[pattern.column_indices[p]]++;
      result.column_indices[slot] = static_cast<int32_t>(row);
      if (value_source != nullptr) (*value_source)[slot] = p;
    }
  }
  return result;
}

}  // namespace sparsed::corpus
