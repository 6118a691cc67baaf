// Sparse patterns and values for tests and benchmarks: the same ones for the same seed, everywhere.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/layout.h"
#include "tools/corpus/pattern.h"
#include "tools/corpus/systems.h"

namespace sparsed::test {

using corpus::Band;
using corpus::FromCoordinates;
using corpus::FromRows;
using corpus::Pattern;
using corpus::Transpose;

struct NamedPattern {
  std::string name;
  Pattern pattern;
};

/// 2-D 5-point stencil on a width x height grid.
Pattern Stencil(int64_t width, int64_t height);

/// `row_nnz` distinct columns in every row, uniformly drawn; row_nnz <= cols.
Pattern Uniform(int64_t rows, int64_t cols, int64_t row_nnz, uint64_t seed);

/// Rows with three runs of near columns at random places, each of 1 to `longest` columns.
Pattern Runs(int32_t rows, int32_t cols, int32_t longest, uint64_t seed);

/// A dense block of height x width in the place of each nonzero, as several unknowns a vertex make.
Pattern InBlocks(const Pattern& places, int32_t height, int32_t width);

/// Graph500's R-MAT: 2^scale rows, edge_factor << scale edges drawn with a, b, c = .57, .19, .19,
/// ids permuted, duplicates merged.
Pattern Rmat(int scale, int64_t edge_factor, uint64_t seed);

/// Chung-Lu: `edges` draws of row and column, each with probability proportional to the expected
/// degree, which follows a power law of `exponent` (> 2); ids permuted, duplicates merged.
Pattern PowerLaw(int64_t rows, int64_t edges, double exponent, uint64_t seed);

/// Groups of similar rows in random order: each of `clusters` groups of `cluster_rows` rows has a
/// pool of `pool` columns; each of its rows takes `row_nnz` of them, and `noise` columns from
/// anywhere.
Pattern ShuffledClusters(int64_t clusters, int64_t cluster_rows, int64_t cols, int64_t pool,
                         int64_t row_nnz, int64_t noise, uint64_t seed);

/// Factors S, T of products S * T: empty, of one row or column, with empty rows, of odd sizes.
std::vector<std::pair<Pattern, Pattern>> OddFactors();

/// `count` values uniform in [-1, 1).
std::vector<double> RandomValues(int64_t count, uint64_t seed);

/// A copy of `values` as an array named `name`, from the heap.
template <typename T>
Array MakeArray(std::string_view name, const std::vector<T>& values) {
  Array array =
      AllocateArray(HeapMemory(), name, ElementTypeOf<T>(), static_cast<int64_t>(values.size()))
          .value();
  std::copy(values.begin(), values.end(), array.MutableAs<T>().begin());
  return array;
}

/// The plain "csr" layout of the pattern.
Layout PlainLayout(const Pattern& pattern);

/// A "csr" layout with the rows in `row_order`; `transposed` makes it one of S^T (row_order then
/// orders S^T's rows). An empty row_order is the identity.
Layout PermutedLayout(const Pattern& pattern, const std::vector<int32_t>& row_order,
                      bool transposed = false);

/// A random order of [0, count).
std::vector<int32_t> RandomOrder(int64_t count, uint64_t seed);

/// Small integers, so that products are exact in 16 bits.
template <typename T>
std::vector<T> SmallIntegers(int64_t count, int64_t step) {
  std::vector<T> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = T(static_cast<float>(i * step % 7 - 3));
  return values;
}

/// 16-bit values as the numbers that they are.
template <typename Range>
std::vector<double> Widened(const Range& values) {
  std::vector<double> wide;
  for (const auto value : values) wide.push_back(static_cast<float>(value));
  return wide;
}

}  // namespace sparsed::test
