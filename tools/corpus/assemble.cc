#include "tools/corpus/assemble.h"

namespace sparsed::corpus {

Pattern Compact(int64_t rows, int64_t cols, const std::vector<int64_t>& row_begin,
                std::vector<int32_t>& columns, std::vector<int64_t> row_lengths) {
#pragma omp parallel for schedule(dynamic, 1024)
  for (int64_t row = 0; row < rows; ++row) {
    const auto begin = columns.begin() + row_begin[row];
    const auto end = begin + row_lengths[row];
    std::sort(begin, end);
    row_lengths[row] = std::unique(begin, end) - begin;
  }
  Pattern pattern{rows, cols, std::vector<int64_t>(rows + 1, 0), {}};
  std::partial_sum(row_lengths.begin(), row_lengths.end(), pattern.row_offsets.begin() + 1);
  pattern.column_indices.resize(pattern.row_offsets.back());
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    std::copy_n(columns.begin() + row_begin[row], row_lengths[row],
                pattern.column_indices.begin() + pattern.row_offsets[row]);
  }
  return pattern;
}

}  // namespace sparsed::corpus
