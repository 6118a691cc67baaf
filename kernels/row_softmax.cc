#include "kernels/row_softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/half.h"

namespace sparsed {
namespace {

/// Rows are of very different lengths; as many at once as make a piece worth taking.
constexpr int kRowsAtOnce = 256;

}  // namespace

void RowSoftmax(std::span<const int64_t> row_offsets, ElementType type, double scale, const void* x,
                void* y, int threads) {
  const auto rows = static_cast<int64_t>(row_offsets.size()) - 1;
  VisitFloat(type, [&]<typename T>(T) {
    using Wide = SumOf<T>;
    const T* const from = static_cast<const T*>(x);
    T* const to = static_cast<T*>(y);
    const auto factor = static_cast<Wide>(scale);
#pragma omp parallel for num_threads(threads) schedule(dynamic, kRowsAtOnce)
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t begin = row_offsets[row], end = row_offsets[row + 1];
      Wide greatest = -std::numeric_limits<Wide>::infinity();
      for (int64_t i = begin; i < end; ++i) {
        greatest = std::max(greatest, factor * static_cast<Wide>(from[i]));
      }
      Wide sum = 0;
      for (int64_t i = begin; i < end; ++i) {
        sum += std::exp(factor * static_cast<Wide>(from[i]) - greatest);
      }
      const Wide share = 1 / sum;
      for (int64_t i = begin; i < end; ++i) {
        to[i] = static_cast<T>(std::exp(factor * static_cast<Wide>(from[i]) - greatest) * share);
      }
    }
  });
}

void RowSoftmaxGradient(std::span<const int64_t> row_offsets, ElementType type, double scale,
                        const void* y, const void* dy, void* dx, int threads) {
  const auto rows = static_cast<int64_t>(row_offsets.size()) - 1;
  VisitFloat(type, [&]<typename T>(T) {
    using Wide = SumOf<T>;
    const T* const result = static_cast<const T*>(y);
    const T* const gradient = static_cast<const T*>(dy);
    T* const to = static_cast<T*>(dx);
    const auto factor = static_cast<Wide>(scale);
#pragma omp parallel for num_threads(threads) schedule(dynamic, kRowsAtOnce)
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t begin = row_offsets[row], end = row_offsets[row + 1];
      Wide sum = 0;
      for (int64_t i = begin; i < end; ++i) {
        sum += static_cast<Wide>(result[i]) * static_cast<Wide>(gradient[i]);
      }
      for (int64_t i = begin; i < end; ++i) {
        to[i] = static_cast<T>(factor * static_cast<Wide>(result[i]) *
                               (static_cast<Wide>(gradient[i]) - sum));
      }
    }
  });
}

}  // namespace sparsed
