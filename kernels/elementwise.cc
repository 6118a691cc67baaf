#include "kernels/elementwise.h"

#include <algorithm>

#include "kernels/half.h"

namespace sparsed {

void WeightedSum(std::span<const WeightedTerm> terms, ElementType type, const Dense& to,
                 int threads) {
  const bool no_gaps =
      to.leading_dimension == to.cols && std::ranges::all_of(terms, [&](const WeightedTerm& term) {
        return term.dense.leading_dimension == to.cols;
      });
  const int64_t rows = no_gaps ? 1 : to.rows, cols = no_gaps ? to.rows * to.cols : to.cols;
  VisitFloat(type, [&]<typename T>(T) {
    using Wide = SumOf<T>;
    // So many columns at once that their sums stay in the nearest cache.
    constexpr int64_t kColumns = 1024;
    const int64_t pieces = (cols + kColumns - 1) / kColumns;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < rows * pieces; ++i) {
      const int64_t row = i / pieces, first = i % pieces * kColumns;
      const int64_t count = std::min(kColumns, cols - first);
      Wide sums[kColumns];
      for (size_t t = 0; t < terms.size(); ++t) {
        const auto factor = static_cast<Wide>(terms[t].factor);
        const T* const from = static_cast<const T*>(terms[t].dense.data) +
                              row * terms[t].dense.leading_dimension + first;
        if (t == 0) {
#pragma omp simd
          for (int64_t j = 0; j < count; ++j) sums[j] = factor * static_cast<Wide>(from[j]);
        } else {
#pragma omp simd
          for (int64_t j = 0; j < count; ++j) sums[j] += factor * static_cast<Wide>(from[j]);
        }
      }
      T* const result = static_cast<T*>(to.data) + row * to.leading_dimension + first;
      for (int64_t j = 0; j < count; ++j) result[j] = static_cast<T>(sums[j]);
    }
  });
}

}  // namespace sparsed
