#include "client/cli/csr_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "client/cli/machine.h"
#include "client/cli/number_range.h"

namespace sparsed::cli {
namespace {

/// A number of rows costs memory whatever entries there are, and it is the file's word alone.
absl::Status CheckRows(int64_t rows) {
  return CheckFitsMemory(fmt::format("the offsets of {} rows", rows),
                         static_cast<double>(rows + 1) * sizeof(int64_t),
                         "leave out rows without entries");
}

/// Sums neighbours with the same column; how many are left.
template <typename Entry>
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

absl::Status Beyond(const CsrMatrix& matrix, size_t at, double value, int first_index) {
  const auto row = std::ranges::upper_bound(matrix.row_offsets, static_cast<int64_t>(at)) -
                   matrix.row_offsets.begin() - 1;
  return absl::InvalidArgumentError(fmt::format("row {}, column {}: {}", row + first_index,
                                                int64_t{matrix.column_indices[at]} + first_index,
                                                BeyondRange(value, matrix.type())));
}

}  // namespace

void CsrBuilder::TakeCanonical(CsrMatrix& matrix, std::vector<double>& values) {
  row_ = {};
  matrix.column_indices = std::move(col_);
  values = std::move(value_);
}

void CsrBuilder::SortAndSum(CsrMatrix& matrix, std::vector<double>& values) {
  std::vector<int64_t>& offsets = matrix.row_offsets;
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
  for (int64_t row = 0; row < matrix.rows; ++row) {
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
  offsets[matrix.rows] = static_cast<int64_t>(kept);

  matrix.column_indices.resize(kept);
  values.resize(kept);
  for (size_t i = 0; i < kept; ++i) {
    matrix.column_indices[i] = entries[i].col;
    values[i] = entries[i].value;
  }
}

absl::StatusOr<CsrMatrix> CsrBuilder::Build(int64_t rows, int64_t cols, ValueType type,
                                            int first_index) {
  if (absl::Status status = CheckRows(rows); !status.ok()) return status;
  CsrMatrix matrix;
  matrix.rows = rows;
  matrix.cols = cols;
  std::vector<int64_t>& offsets = matrix.row_offsets;
  offsets.assign(static_cast<size_t>(rows) + 1, 0);
  for (const int32_t row : row_) ++offsets[row + 1];
  for (int64_t row = 0; row < rows; ++row) offsets[row + 1] += offsets[row];

  std::vector<double> exact;  // empty: ones
  if (canonical_) {
    TakeCanonical(matrix, exact);
  } else {
    SortAndSum(matrix, exact);
  }
  const size_t nnz = matrix.column_indices.size();
  matrix.values = ZeroValues(type, nnz);
  size_t beyond = nnz;  // the first that is
  std::visit(
      [&]<typename T>(std::vector<T>& values) {
        if (exact.empty()) std::fill(values.begin(), values.end(), static_cast<T>(1.0F));
        for (size_t i = 0; i < exact.size(); ++i) {
          values[i] = static_cast<T>(exact[i]);
          if (Overflowed(exact[i], values[i])) beyond = std::min(beyond, i);
        }
      },
      matrix.values);
  if (beyond < nnz) return Beyond(matrix, beyond, exact[beyond], first_index);
  return matrix;
}

}  // namespace sparsed::cli
