#include "client/cli/csr_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "client/cli/number_range.h"

namespace sparsed::cli {
namespace {

struct Entry {
  int32_t col;
  double value;
};

/// Sums neighbours with the same column; how many are left.
size_t SumDuplicates(Entry* row, size_t count) {
  size_t kept = 0;
  for (size_t i = 1; i < count; ++i) {
    if (row[i].col == row[kept].col) {
      row[kept].value += row[i].value;
    } else {
      row[++kept] = row[i];
    }
  }
  return kept + 1;
}

}  // namespace

absl::StatusOr<CsrMatrix> CsrBuilder::Build(ValueType type) {
  CsrMatrix matrix;
  matrix.rows = rows_;
  matrix.cols = cols_;
  std::vector<int64_t>& offsets = matrix.row_offsets;
  offsets.assign(static_cast<size_t>(rows_) + 1, 0);
  for (const int32_t row : row_) ++offsets[row + 1];
  for (int64_t row = 0; row < rows_; ++row) offsets[row + 1] += offsets[row];

  std::vector<Entry> entries(row_.size());
  for (size_t i = 0; i < row_.size(); ++i) {
    entries[offsets[row_[i]]++] = {col_[i], pattern_ ? 1.0 : value_[i]};
  }
  row_ = {};
  col_ = {};
  value_ = {};

  // offsets[row] is now the end of that row's entries.
  const auto by_column = [](const Entry& a, const Entry& b) { return a.col < b.col; };
  int64_t begin = 0;
  size_t kept = 0;
  for (int64_t row = 0; row < rows_; ++row) {
    const int64_t end = offsets[row];
    offsets[row] = static_cast<int64_t>(kept);
    Entry* const first = entries.data() + begin;
    Entry* const last = entries.data() + end;
    if (!std::is_sorted(first, last, by_column)) std::stable_sort(first, last, by_column);
    const size_t count =
        first == last ? 0 : SumDuplicates(first, static_cast<size_t>(last - first));
    std::copy(first, first + count, entries.data() + kept);
    kept += count;
    begin = end;
  }
  offsets[rows_] = static_cast<int64_t>(kept);
  entries.resize(kept);

  matrix.column_indices.resize(kept);
  for (size_t i = 0; i < kept; ++i) matrix.column_indices[i] = entries[i].col;
  matrix.values = ZeroValues(type, kept);
  size_t beyond = kept;  // the first that is
  std::visit(
      [&]<typename T>(std::vector<T>& values) {
        for (size_t i = 0; i < values.size(); ++i) {
          values[i] = static_cast<T>(entries[i].value);
          if (Overflowed(entries[i].value, values[i])) beyond = std::min(beyond, i);
        }
      },
      matrix.values);
  if (beyond < kept) {
    const auto row = std::ranges::upper_bound(offsets, static_cast<int64_t>(beyond));
    return absl::InvalidArgumentError(fmt::format("row {}, column {}: {}", row - offsets.begin(),
                                                  entries[beyond].col + 1,
                                                  BeyondRange(entries[beyond].value, type)));
  }
  return matrix;
}

}  // namespace sparsed::cli
