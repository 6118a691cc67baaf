#include "tests/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "tools/corpus/meshes.h"
#include "tools/corpus/random.h"

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

/// Appends a row; `columns` may be unsorted and have duplicates.
void AppendRow(Pattern& pattern, std::vector<int32_t>& columns) {
  std::sort(columns.begin(), columns.end());
  columns.erase(std::unique(columns.begin(), columns.end()), columns.end());
  pattern.column_indices.insert(pattern.column_indices.end(), columns.begin(), columns.end());
  pattern.row_offsets.push_back(pattern.nnz());
}

}  // namespace

Pattern Stencil(int64_t width, int64_t height) {
  return corpus::Stencil({width, height}, corpus::Neighbours::kStar);
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
  const std::vector<int32_t> id = corpus::Shuffled(rows, random);
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
  const std::vector<int32_t> id = corpus::Shuffled(rows, random);
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
  const std::vector<int32_t> order = corpus::Shuffled(rows, random);
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

Pattern InBlocks(const Pattern& places, int32_t height, int32_t width) {
  std::vector<std::vector<int32_t>> rows(places.rows * height);
  for (int64_t row = 0; row < places.rows * height; ++row) {
    const int64_t of = row / height;
    for (int64_t p = places.row_offsets[of]; p < places.row_offsets[of + 1]; ++p) {
      for (int32_t i = 0; i < width; ++i) {
        rows[row].push_back(places.column_indices[p] * width + i);
      }
    }
  }
  return FromRows(places.cols * width, rows);
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
  return MakeHostCsrLayout(pattern.rows, pattern.cols,
                           MakeArray("row_offsets", pattern.row_offsets),
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
  layout.pipeline = transposed ? "transpose" : "permuted";
  layout.transposed = transposed;
  if (!row_order.empty()) layout.arrays.push_back(MakeArray("row_order", row_order));
  layout.arrays.push_back(MakeArray(kValueSource, value_source));
  return layout;
}

std::vector<int32_t> RandomOrder(int64_t count, uint64_t seed) {
  Random random(seed);
  return corpus::Shuffled(count, random);
}

}  // namespace sparsed::test
