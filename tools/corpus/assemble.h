// Patterns out of functions that give rows or entries, on all threads: the same whatever their
// number.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "tools/corpus/pattern.h"

namespace sparsed::corpus {

/// Row and column.
using Edge = std::pair<int32_t, int32_t>;

/// Sorts the rows, drops duplicates and closes the gaps. `row_begin` has where each row's columns
/// begin and, at its end, where the last one's end.
Pattern Compact(int64_t rows, int64_t cols, const std::vector<int64_t>& row_begin,
                std::vector<int32_t>& columns, std::vector<int64_t> row_lengths);

/// Rows of at most `most` columns; `fill(row, columns)` writes them, in any order, and returns how
/// many.
template <typename Fill>
Pattern FillRows(int64_t rows, int64_t cols, int64_t most, Fill fill) {
  std::vector<int64_t> row_begin(rows + 1), row_lengths(rows);
  std::vector<int32_t> columns(rows * most);
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    row_begin[row + 1] = (row + 1) * most;
    row_lengths[row] = fill(row, columns.data() + row * most);
  }
  return Compact(rows, cols, row_begin, columns, std::move(row_lengths));
}

/// `count` entries, each `edge(i)`; duplicates merged.
template <typename Draw>
Pattern FromEdges(int64_t rows, int64_t cols, int64_t count, Draw edge) {
  std::vector<Edge> edges(count);
  std::vector<int64_t> row_lengths(rows, 0);
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < count; ++i) {
    edges[i] = edge(i);
#pragma omp atomic
    ++row_lengths[edges[i].first];
  }
  std::vector<int64_t> row_begin(rows + 1, 0);
  std::partial_sum(row_lengths.begin(), row_lengths.end(), row_begin.begin() + 1);
  std::vector<int64_t> next(row_begin.begin(), row_begin.end() - 1);
  std::vector<int32_t> columns(count);
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < count; ++i) {
    int64_t slot;
#pragma omp atomic capture
    slot = next[edges[i].first]++;
    columns[slot] = edges[i].second;
  }
  return Compact(rows, cols, row_begin, columns, std::move(row_lengths));
}

}  // namespace sparsed::corpus
