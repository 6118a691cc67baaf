#include "tests/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace sparsed::test {
namespace {

/// The standard's engine with distributions of our own: those of the standard differ between
/// libraries.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t Below(int64_t n) { return static_cast<int64_t>(Unit() * static_cast<double>(n)); }
  double Unit() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }

 private:
  std::mt19937_64 engine_;
};

std::vector<int32_t> Shuffled(int64_t count, Random& random) {
  std::vector<int32_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  for (int64_t i = count - 1; i > 0; --i) std::swap(order[i], order[random.Below(i + 1)]);
  return order;
}

/// Appends a row; `columns` may be unsorted and have duplicates.
void AppendRow(Pattern& pattern, std::vector<int32_t>& columns) {
  std::sort(columns.begin(), columns.end());
  columns.erase(std::unique(columns.begin(), columns.end()), columns.end());
  pattern.column_indices.insert(pattern.column_indices.end(), columns.begin(), columns.end());
  pattern.row_offsets.push_back(pattern.nnz());
}

}  // namespace

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

Pattern Band(int64_t rows, int64_t half_bandwidth) {
  Pattern pattern{rows, rows, {0}, {}};
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t end = std::min(row + half_bandwidth + 1, rows);
    for (int64_t column = std::max<int64_t>(row - half_bandwidth, 0); column < end; ++column) {
      pattern.column_indices.push_back(static_cast<int32_t>(column));
    }
    pattern.row_offsets.push_back(pattern.nnz());
  }
  return pattern;
}

Pattern Stencil(int64_t width, int64_t height) {
  Pattern pattern{width * height, width * height, {0}, {}};
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      const auto point = static_cast<int32_t>(y * width + x);
      const auto step = static_cast<int32_t>(width);
      if (y > 0) pattern.column_indices.push_back(point - step);
      if (x > 0) pattern.column_indices.push_back(point - 1);
      pattern.column_indices.push_back(point);
      if (x + 1 < width) pattern.column_indices.push_back(point + 1);
      if (y + 1 < height) pattern.column_indices.push_back(point + step);
      pattern.row_offsets.push_back(pattern.nnz());
    }
  }
  return pattern;
}

Pattern Uniform(int64_t rows, int64_t cols, int64_t row_nnz, uint64_t seed) {
  Random random(seed);
  Pattern pattern{rows, cols, {0}, {}};
  std::vector<int32_t> columns;
  for (int64_t row = 0; row < rows; ++row) {
    columns.clear();
    while (static_cast<int64_t>(columns.size()) < row_nnz) {
      const auto column = static_cast<int32_t>(random.Below(cols));
      if (std::find(columns.begin(), columns.end(), column) == columns.end()) {
        columns.push_back(column);
      }
    }
    AppendRow(pattern, columns);
  }
  return pattern;
}

Pattern Rmat(int scale, int64_t edge_factor, uint64_t seed) {
  constexpr double kA = 0.57, kB = 0.19, kC = 0.19;
  Random random(seed);
  const int64_t rows = int64_t{1} << scale;
  const std::vector<int32_t> id = Shuffled(rows, random);
  std::vector<std::pair<int32_t, int32_t>> edges(edge_factor * rows);
  for (auto& edge : edges) {
    int64_t row = 0, column = 0;
    for (int bit = 0; bit < scale; ++bit) {
      const double u = random.Unit();
      row = 2 * row + (u >= kA + kB);
      column = 2 * column + ((u >= kA && u < kA + kB) || u >= kA + kB + kC);
    }
    edge = {id[row], id[column]};
  }
  return FromCoordinates(rows, rows, std::move(edges));
}

Pattern PowerLaw(int64_t rows, int64_t edges, double exponent, uint64_t seed) {
  Random random(seed);
  const std::vector<int32_t> id = Shuffled(rows, random);
  // Expected degrees i^(-1 / (exponent - 1)): their distribution function inverts in closed form.
  const double power = (exponent - 1) / (exponent - 2);
  auto draw = [&] {
    const double u = std::pow(random.Unit(), power) * static_cast<double>(rows);
    return id[std::min(static_cast<int64_t>(u), rows - 1)];
  };
  std::vector<std::pair<int32_t, int32_t>> coordinates(edges);
  for (auto& [row, column] : coordinates) {
    row = draw();
    column = draw();
  }
  return FromCoordinates(rows, rows, std::move(coordinates));
}

Pattern ShuffledClusters(int64_t clusters, int64_t cluster_rows, int64_t cols, int64_t pool,
                         int64_t row_nnz, int64_t noise, uint64_t seed) {
  Random random(seed);
  std::vector<std::vector<int32_t>> pools(clusters);
  for (auto& columns : pools) {
    for (int64_t i = 0; i < pool; ++i) {
      columns.push_back(static_cast<int32_t>(random.Below(cols)));
    }
  }
  const int64_t rows = clusters * cluster_rows;
  const std::vector<int32_t> order = Shuffled(rows, random);
  Pattern pattern{rows, cols, {0}, {}};
  std::vector<int32_t> columns;
  for (int64_t row = 0; row < rows; ++row) {
    const std::vector<int32_t>& from = pools[order[row] / cluster_rows];
    columns.clear();
    for (int64_t i = 0; i < row_nnz; ++i) columns.push_back(from[random.Below(pool)]);
    for (int64_t i = 0; i < noise; ++i) {
      columns.push_back(static_cast<int32_t>(random.Below(cols)));
    }
    AppendRow(pattern, columns);
  }
  return pattern;
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

Pattern Runs(int32_t rows, int32_t cols, int32_t longest, uint64_t seed) {
  const Pattern places = Uniform(rows, cols, 3, seed);
  std::vector<std::pair<int32_t, int32_t>> entries;
  for (int32_t row = 0; row < rows; ++row) {
    for (int64_t p = places.row_offsets[row]; p < places.row_offsets[row + 1]; ++p) {
      const int32_t column = places.column_indices[p];
      const int32_t length = 1 + (row * 7 + static_cast<int32_t>(p)) % longest;
      for (int32_t i = 0; i < length && column + i < cols; ++i) {
        entries.emplace_back(row, column + i);
      }
    }
  }
  return FromCoordinates(rows, cols, std::move(entries));
}

std::vector<std::pair<Pattern, Pattern>> OddFactors() {
  std::vector<std::pair<Pattern, Pattern>> factors;
  for (const Pattern& square : {FromRows(0, {}), FromRows(1, {{}}), FromRows(1, {{0}}),
                                FromRows(5, {{}, {}, {}, {}, {}})}) {
    factors.emplace_back(square, square);
  }
  factors.emplace_back(FromRows(0, {{}, {}, {}}), FromRows(4, {}));
  factors.emplace_back(FromRows(3, {}), FromRows(4, {{0}, {1}, {2, 3}}));
  factors.emplace_back(FromRows(1, {{0}, {}, {0}}), FromRows(7, {{1, 3, 6}}));
  factors.emplace_back(FromRows(2, {{0, 1}, {1}, {0}}), FromRows(7, {{}, {1, 3, 6}}));
  factors.emplace_back(Uniform(1, 300, 40, 1), Uniform(300, 1, 1, 2));
  factors.emplace_back(Uniform(300, 1, 1, 3), Uniform(1, 300, 33, 4));
  factors.emplace_back(Uniform(17, 33, 5, 5), Uniform(33, 65, 9, 6));
  factors.emplace_back(Uniform(65, 33, 33, 7), Uniform(33, 17, 17, 8));
  return factors;
}

std::vector<double> RandomValues(int64_t count, uint64_t seed) {
  Random random(seed);
  std::vector<double> values(count);
  for (double& value : values) value = 2 * random.Unit() - 1;
  return values;
}

Layout PlainLayout(const Pattern& pattern) {
  return MakeCsrLayout(pattern.rows, pattern.cols, MakeArray("row_offsets", pattern.row_offsets),
                       MakeArray("column_indices", pattern.column_indices));
}

Layout PermutedLayout(const Pattern& pattern, const std::vector<int32_t>& row_order,
                      bool transposed) {
  std::vector<int64_t> source(pattern.nnz());
  std::iota(source.begin(), source.end(), int64_t{0});
  const Pattern base = transposed ? Transpose(pattern, &source) : pattern;
  Pattern permuted{base.rows, base.cols, {0}, {}};
  std::vector<int32_t> value_source;
  for (int64_t r = 0; r < base.rows; ++r) {
    const int64_t row = row_order.empty() ? r : row_order[r];
    for (int64_t p = base.row_offsets[row]; p < base.row_offsets[row + 1]; ++p) {
      permuted.column_indices.push_back(base.column_indices[p]);
      value_source.push_back(static_cast<int32_t>(source[p]));
    }
    permuted.row_offsets.push_back(permuted.nnz());
  }
  Layout layout = PlainLayout(permuted);
  layout.recipe = transposed ? "transpose" : "permuted";
  layout.transposed = transposed;
  if (!row_order.empty()) layout.arrays.push_back(MakeArray("row_order", row_order));
  layout.arrays.push_back(MakeArray(kValueSource, value_source));
  return layout;
}

std::vector<int32_t> RandomOrder(int64_t count, uint64_t seed) {
  Random random(seed);
  return Shuffled(count, random);
}

}  // namespace sparsed::test
