#include "client/cli/permutation.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "client/cli/line_reader.h"

namespace sparsed::cli {

namespace {

/// A number of [0, bound) on each line, one for each row. `what` it is; `fits(number)`: what is
/// wrong with one more, empty: nothing.
template <typename Fits>
absl::StatusOr<std::vector<int32_t>> ReadNumbers(const std::string& path, int64_t rows,
                                                 int64_t bound, const char* what,
                                                 const Fits& fits) {
  absl::StatusOr<LineReader> file = LineReader::Open(path);
  if (!file.ok()) return file.status();
  std::vector<int32_t> numbers;
  while (const std::optional<std::string_view> line = file->Next()) {
    int64_t number = 0;
    const char* const end = line->data() + line->size();
    const auto [parsed, error] = std::from_chars(line->data(), end, number);
    if (error != std::errc() || parsed != end || number < 0 || number >= bound) {
      return file->Error(
          fmt::format("expected a {} in [0, {}), found \"{}\"", what, bound, line->substr(0, 40)));
    }
    if (const std::string wrong = fits(number); !wrong.empty()) return file->Error(wrong);
    numbers.push_back(static_cast<int32_t>(number));
  }
  if (!file->status().ok()) return file->status();
  if (static_cast<int64_t>(numbers.size()) != rows) {
    return absl::InvalidArgumentError(
        fmt::format("{} has {} rows, the matrix {}", path, numbers.size(), rows));
  }
  return numbers;
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> ReadPermutation(const std::string& path, int64_t rows) {
  std::vector<bool> seen(static_cast<size_t>(rows));
  return ReadNumbers(path, rows, rows, "row", [&seen](int64_t row) -> std::string {
    if (seen[row]) return fmt::format("row {} comes twice", row);
    seen[row] = true;
    return {};
  });
}

absl::StatusOr<std::vector<int32_t>> ReadPartition(const std::string& path, int64_t rows,
                                                   int parts) {
  int64_t left = rows;
  return ReadNumbers(path, rows, parts, "shard", [&](int64_t /*part*/) -> std::string {
    return left-- > 0 ? "" : fmt::format("expected {} lines, one for each row", rows);
  });
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
