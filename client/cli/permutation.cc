#include "client/cli/permutation.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "client/cli/line_reader.h"

namespace sparsed::cli {

absl::StatusOr<std::vector<int32_t>> ReadPermutation(const std::string& path, int64_t rows) {
  absl::StatusOr<LineReader> file = LineReader::Open(path);
  if (!file.ok()) return file.status();
  std::vector<int32_t> order;
  std::vector<bool> seen(static_cast<size_t>(rows));
  while (const std::optional<std::string_view> line = file->Next()) {
    int64_t row = 0;
    const char* const end = line->data() + line->size();
    const auto [parsed, error] = std::from_chars(line->data(), end, row);
    if (error != std::errc() || parsed != end || row < 0 || row >= rows) {
      return file->Error(
          fmt::format("expected a row in [0, {}), found \"{}\"", rows, line->substr(0, 40)));
    }
    if (seen[row]) return file->Error(fmt::format("row {} comes twice", row));
    seen[row] = true;
    order.push_back(static_cast<int32_t>(row));
  }
  if (!file->status().ok()) return file->status();
  if (static_cast<int64_t>(order.size()) != rows) {
    return absl::InvalidArgumentError(
        fmt::format("{} has {} rows, the matrix {}", path, order.size(), rows));
  }
  return order;
}

absl::StatusOr<CsrMatrix> PermuteSymmetrically(const CsrMatrix& matrix,
                                               const std::vector<int32_t>& order) {
  if (matrix.rows != matrix.cols) {
    return absl::InvalidArgumentError(
        fmt::format("the matrix is {} x {}: its rows and columns cannot have one order",
                    matrix.rows, matrix.cols));
  }
  std::vector<int32_t> name_of(order.size());
  for (size_t r = 0; r < order.size(); ++r) name_of[order[r]] = static_cast<int32_t>(r);
  CsrMatrix permuted{matrix.rows, matrix.cols, {0}, {}, ZeroValues(matrix.type())};
  permuted.row_offsets.reserve(order.size() + 1);
  permuted.column_indices.reserve(matrix.column_indices.size());
  std::visit(
      [&]<typename T>(std::vector<T>& values) {
        const auto& old_values = std::get<std::vector<T>>(matrix.values);
        values.reserve(old_values.size());
        std::vector<std::pair<int32_t, T>> row;
        for (const int32_t old_row : order) {
          row.clear();
          for (int64_t i = matrix.row_offsets[old_row]; i < matrix.row_offsets[old_row + 1]; ++i) {
            row.emplace_back(name_of[matrix.column_indices[i]], old_values[i]);
          }
          std::sort(row.begin(), row.end(),
                    [](const auto& a, const auto& b) { return a.first < b.first; });
          for (const auto& [column, value] : row) {
            permuted.column_indices.push_back(column);
            values.push_back(value);
          }
          permuted.row_offsets.push_back(static_cast<int64_t>(permuted.column_indices.size()));
        }
      },
      permuted.values);
  return permuted;
}

}  // namespace sparsed::cli
