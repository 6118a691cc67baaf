#include "tests/matrix_market.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string_view>

namespace sparsed::test {
namespace {

struct Close {
  void operator()(gzFile file) const { gzclose(file); }
};

struct Entry {
  int32_t row;
  int32_t column;
  double value;
};

Matrix FromEntries(int64_t rows, int64_t cols, const std::vector<Entry>& entries) {
  std::vector<int64_t> order(entries.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return std::pair(entries[a].row, entries[a].column) <
           std::pair(entries[b].row, entries[b].column);
  });
  Matrix matrix;
  matrix.pattern.rows = rows;
  matrix.pattern.cols = cols;
  matrix.pattern.row_offsets.assign(rows + 1, 0);
  for (const int64_t i : order) {
    ++matrix.pattern.row_offsets[entries[i].row + 1];
    matrix.pattern.column_indices.push_back(entries[i].column);
    matrix.values.push_back(entries[i].value);
  }
  std::partial_sum(matrix.pattern.row_offsets.begin(), matrix.pattern.row_offsets.end(),
                   matrix.pattern.row_offsets.begin());
  return matrix;
}

}  // namespace

Matrix WithRandomValues(Pattern pattern, uint64_t seed) {
  std::vector<double> values = RandomValues(pattern.nnz(), seed);
  return {std::move(pattern), std::move(values)};
}

std::optional<Matrix> ReadMatrixMarket(const std::string& path) {
  const std::unique_ptr<gzFile_s, Close> file(gzopen(path.c_str(), "rb"));
  if (file == nullptr) return std::nullopt;
  gzbuffer(file.get(), 1 << 18);
  std::array<char, 4096> line;
  if (gzgets(file.get(), line.data(), line.size()) == nullptr) return std::nullopt;
  const std::string banner = line.data();
  auto says = [&](std::string_view word) { return banner.find(word) != std::string::npos; };
  if (!says("coordinate") || says("complex") || says("hermitian")) return std::nullopt;
  do {
    if (gzgets(file.get(), line.data(), line.size()) == nullptr) return std::nullopt;
  } while (line[0] == '%' || line[0] == '\n');
  char* at = line.data();
  const int64_t rows = std::strtoll(at, &at, 10);
  const int64_t cols = std::strtoll(at, &at, 10);
  const int64_t count = std::strtoll(at, &at, 10);
  std::vector<Entry> entries;
  entries.reserve(count);
  for (int64_t i = 0; i < count && gzgets(file.get(), line.data(), line.size()) != nullptr; ++i) {
    at = line.data();
    const auto row = static_cast<int32_t>(std::strtol(at, &at, 10) - 1);
    const auto column = static_cast<int32_t>(std::strtol(at, &at, 10) - 1);
    const double value = says("pattern") ? 1 : std::strtod(at, &at);
    entries.push_back({row, column, value});
    if (says("symmetric") && row != column) {
      entries.push_back({column, row, says("skew-symmetric") ? -value : value});
    }
  }
  return FromEntries(rows, cols, entries);
}

}  // namespace sparsed::test
