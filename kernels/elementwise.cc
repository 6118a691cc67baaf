#include "kernels/elementwise.h"

#include <algorithm>

#include "kernels/half.h"

namespace sparsed {

void WeightedSum(std::span<const WeightedTerm> terms, ElementType type, const Dense& to,
                 int threads) {
  VisitFloat(type, [&]<typename T>(T) {
    using Wide = SumOf<T>;
    // So many columns at once that their sums stay in registers or the nearest cache.
    constexpr int64_t kColumns = 256;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < to.rows; ++row) {
      T* const result = static_cast<T*>(to.data) + row * to.leading_dimension;
      for (int64_t first = 0; first < to.cols; first += kColumns) {
        const int64_t count = std::min(kColumns, to.cols - first);
        Wide sums[kColumns] = {};
        for (const WeightedTerm& term : terms) {
          const auto factor = static_cast<Wide>(term.factor);
          const T* const from =
              static_cast<const T*>(term.dense.data) + row * term.dense.leading_dimension + first;
#pragma omp simd
          for (int64_t j = 0; j < count; ++j) sums[j] += factor * static_cast<Wide>(from[j]);
        }
        for (int64_t j = 0; j < count; ++j) result[first + j] = static_cast<T>(sums[j]);
      }
    }
  });
}

}  // namespace sparsed
