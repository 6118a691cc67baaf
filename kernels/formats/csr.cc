#include "kernels/formats/csr.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace sparsed {
namespace {

/// Runs `first_bad(begin, end)` over `threads` ascending parts of [0, count) and returns the lowest
/// position that it reported, or -1. `first_bad` returns the lowest bad position of its part or -1.
template <typename FirstBad>
int64_t LowestBad(int64_t count, int threads, FirstBad first_bad) {
  std::vector<int64_t> found(threads, -1);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int part = 0; part < threads; ++part) {
    found[part] = first_bad(count * part / threads, count * (part + 1) / threads);
  }
  for (int64_t position : found) {
    if (position >= 0) return position;
  }
  return -1;
}

/// The row that holds nonzero `position`; offsets must be valid.
int64_t RowOf(std::span<const int64_t> row_offsets, int64_t position) {
  return std::upper_bound(row_offsets.begin(), row_offsets.end(), position) - row_offsets.begin() -
         1;
}

absl::Status ValidateOffsets(const CsrView& csr, int threads) {
  const auto offsets = csr.row_offsets;
  if (static_cast<int64_t>(offsets.size()) != csr.rows + 1) {
    return absl::InvalidArgumentError(fmt::format(
        "row_offsets has {} elements, expected rows + 1 = {}", offsets.size(), csr.rows + 1));
  }
  if (offsets[0] != 0) {
    return absl::InvalidArgumentError(fmt::format("row_offsets[0] = {}, expected 0", offsets[0]));
  }
  const int64_t bad = LowestBad(csr.rows, threads, [&](int64_t begin, int64_t end) -> int64_t {
    for (int64_t row = begin; row < end; ++row) {
      if (offsets[row + 1] < offsets[row]) return row;
    }
    return -1;
  });
  if (bad >= 0) {
    return absl::InvalidArgumentError(
        fmt::format("row_offsets[{}] = {} is below row_offsets[{}] = {}: offsets must not decrease",
                    bad + 1, offsets[bad + 1], bad, offsets[bad]));
  }
  if (offsets[csr.rows] != csr.nnz()) {
    return absl::InvalidArgumentError(
        fmt::format("row_offsets[{}] = {}, expected {}, the number of column indices", csr.rows,
                    offsets[csr.rows], csr.nnz()));
  }
  return absl::OkStatus();
}

absl::Status ValidateColumns(const CsrView& csr, bool ascending, int threads) {
  const auto offsets = csr.row_offsets;
  const auto columns = csr.column_indices;
  const int64_t bad = LowestBad(csr.nnz(), threads, [&](int64_t begin, int64_t end) -> int64_t {
    if (begin == end) return -1;
    int64_t row = RowOf(offsets, begin);
    for (int64_t p = begin; p < end; ++p) {
      while (p >= offsets[row + 1]) ++row;
      if (columns[p] < 0 || columns[p] >= csr.cols) return p;
      if (ascending && p > offsets[row] && columns[p] <= columns[p - 1]) return p;
    }
    return -1;
  });
  if (bad < 0) return absl::OkStatus();
  const int64_t row = RowOf(offsets, bad);
  if (columns[bad] < 0 || columns[bad] >= csr.cols) {
    return absl::InvalidArgumentError(
        fmt::format("column_indices[{}] = {} in row {} is out of range [0, {})", bad, columns[bad],
                    row, csr.cols));
  }
  if (columns[bad] == columns[bad - 1]) {
    return absl::InvalidArgumentError(
        fmt::format("column_indices[{}] = {} in row {} is a duplicate of the entry before it", bad,
                    columns[bad], row));
  }
  return absl::InvalidArgumentError(
      fmt::format("column_indices[{}] = {} in row {} comes after {}: columns must ascend in a row",
                  bad, columns[bad], row, columns[bad - 1]));
}

absl::Status Validate(const CsrView& csr, bool ascending, int threads) {
  // Rows are bounded as columns are: both become 32-bit indices in a transposed layout.
  constexpr int64_t kLimit = int64_t{1} << 31;
  if (csr.rows < 0 || csr.rows >= kLimit) {
    return absl::InvalidArgumentError(
        fmt::format("rows = {} is out of range [0, {})", csr.rows, kLimit));
  }
  if (csr.cols < 0 || csr.cols >= kLimit) {
    return absl::InvalidArgumentError(
        fmt::format("cols = {} is out of range [0, {})", csr.cols, kLimit));
  }
  threads = std::max(threads, 1);
  if (absl::Status status = ValidateOffsets(csr, threads); !status.ok()) return status;
  return ValidateColumns(csr, ascending, threads);
}

}  // namespace

CsrView ViewCsr(const Layout& layout) {
  CsrView view;
  view.rows = layout.rows;
  view.cols = layout.cols;
  view.row_offsets = layout.Elements<int64_t>("row_offsets");
  view.column_indices = layout.Elements<int32_t>("column_indices");
  view.row_order = layout.Elements<int32_t>("row_order");
  return view;
}

Layout MakeCsrLayout(int64_t rows, int64_t cols, Array row_offsets, Array column_indices) {
  row_offsets.name = "row_offsets";
  column_indices.name = "column_indices";
  Layout layout;
  layout.kind = kCsr;
  layout.pipeline = kCsr;
  layout.rows = rows;
  layout.cols = cols;
  layout.nnz = column_indices.length;
  layout.value_slots = layout.nnz;
  layout.arrays = {std::move(row_offsets), std::move(column_indices)};
  return layout;
}

int64_t LongestRow(std::span<const int64_t> row_offsets) {
  int64_t longest = 0;
  for (size_t row = 1; row < row_offsets.size(); ++row) {
    longest = std::max(longest, row_offsets[row] - row_offsets[row - 1]);
  }
  return longest;
}

Layout MakeHostCsrLayout(int64_t rows, int64_t cols, Array row_offsets, Array column_indices) {
  const int64_t longest = LongestRow(row_offsets.As<int64_t>());
  Layout layout = MakeCsrLayout(rows, cols, std::move(row_offsets), std::move(column_indices));
  layout.longest_row = longest;
  return layout;
}

absl::Status ValidateCsr(const CsrView& csr, int threads) {
  return Validate(csr, /*ascending=*/true, threads);
}

absl::Status ValidateUnsortedCsr(const CsrView& csr, int threads) {
  return Validate(csr, /*ascending=*/false, threads);
}

}  // namespace sparsed
