#include "tools/corpus/derived.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "tools/corpus/assemble.h"
#include "tools/corpus/random.h"

namespace sparsed::corpus {
namespace {

/// Row r is row rows[r] of the pattern; column c becomes place[c], or goes if that is negative.
Pattern Rearranged(const Pattern& pattern, const std::vector<int32_t>& rows, int64_t cols,
                   const std::vector<int32_t>& place) {
  const auto count = static_cast<int64_t>(rows.size());
  std::vector<int64_t> row_begin = {0}, row_lengths;
  std::vector<int32_t> columns;
  for (const int32_t row : rows) {
    for (int64_t p = pattern.row_offsets[row]; p < pattern.row_offsets[row + 1]; ++p) {
      const int32_t column = place[pattern.column_indices[p]];
      if (column >= 0) columns.push_back(column);
    }
    const auto end = static_cast<int64_t>(columns.size());
    row_lengths.push_back(end - row_begin.back());
    row_begin.push_back(end);
  }
  return Compact(count, cols, row_begin, columns, std::move(row_lengths));
}

std::vector<int32_t> Identity(int64_t count) {
  std::vector<int32_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

/// Where each of `all` is in `chosen`; -1: nowhere.
std::vector<int32_t> PlacesOf(const std::vector<int32_t>& chosen, int64_t all) {
  std::vector<int32_t> places(all, -1);
  for (size_t i = 0; i < chosen.size(); ++i) places[chosen[i]] = static_cast<int32_t>(i);
  return places;
}

/// `permille` of [0, all), ascending: selection sampling (Knuth, algorithm S).
std::vector<int32_t> Chosen(int64_t all, int permille, uint64_t seed) {
  const Dice dice(seed);
  int64_t wanted = all * permille / 1000;
  std::vector<int32_t> chosen;
  for (int64_t i = 0; i < all && wanted > 0; ++i) {
    if (dice.Below(all - i, i) >= wanted) continue;
    chosen.push_back(static_cast<int32_t>(i));
    --wanted;
  }
  return chosen;
}

}  // namespace

Pattern ShuffledRows(const Pattern& pattern, uint64_t seed) {
  Random random(seed);
  return Rearranged(pattern, Shuffled(pattern.rows, random), pattern.cols, Identity(pattern.cols));
}

Pattern ShuffledColumns(const Pattern& pattern, uint64_t seed) {
  Random random(seed);
  return Rearranged(pattern, Identity(pattern.rows), pattern.cols, Shuffled(pattern.cols, random));
}

Pattern ShuffledBoth(const Pattern& pattern, uint64_t seed) {
  Random random(seed);
  const std::vector<int32_t> rows = Shuffled(pattern.rows, random);
  const std::vector<int32_t> columns =
      pattern.rows == pattern.cols ? rows : Shuffled(pattern.cols, random);
  return Rearranged(pattern, rows, pattern.cols, PlacesOf(columns, pattern.cols));
}

Pattern Window(const Pattern& pattern, int64_t row, int64_t rows, int64_t col, int64_t cols) {
  std::vector<int32_t> chosen_rows(rows), chosen_cols(cols);
  std::iota(chosen_rows.begin(), chosen_rows.end(), static_cast<int32_t>(row));
  std::iota(chosen_cols.begin(), chosen_cols.end(), static_cast<int32_t>(col));
  return Rearranged(pattern, chosen_rows, cols, PlacesOf(chosen_cols, pattern.cols));
}

Pattern Sampled(const Pattern& pattern, int permille, uint64_t seed) {
  const std::vector<int32_t> rows = Chosen(pattern.rows, permille, seed);
  const std::vector<int32_t> columns =
      pattern.rows == pattern.cols ? rows : Chosen(pattern.cols, permille, seed + 1);
  return Rearranged(pattern, rows, static_cast<int64_t>(columns.size()),
                    PlacesOf(columns, pattern.cols));
}

Pattern Ball(const Pattern& pattern, int64_t vertices, uint64_t seed) {
  std::vector<int32_t> met;
  std::vector<bool> seen(pattern.rows, false);
  auto next = static_cast<int32_t>(Dice(seed).Below(pattern.rows, 0));
  const auto meet = [&](int32_t vertex) {
    if (seen[vertex] || static_cast<int64_t>(met.size()) == vertices) return;
    seen[vertex] = true;
    met.push_back(vertex);
  };
  for (size_t i = 0; static_cast<int64_t>(met.size()) < std::min(vertices, pattern.rows);) {
    if (i == met.size()) {
      while (seen[next]) next = static_cast<int32_t>((next + 1) % pattern.rows);
      meet(next);
    }
    const int32_t vertex = met[i++];
    for (int64_t p = pattern.row_offsets[vertex]; p < pattern.row_offsets[vertex + 1]; ++p) {
      meet(pattern.column_indices[p]);
    }
  }
  return Rearranged(pattern, met, static_cast<int64_t>(met.size()), PlacesOf(met, pattern.cols));
}

}  // namespace sparsed::corpus
