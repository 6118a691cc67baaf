#include "kernels/row_softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/half.h"

namespace sparsed {
namespace {

/// Rows are of very different lengths; as many at once as make a piece worth taking.
constexpr int kRowsAtOnce = 256;

/// A column of values of nonzeros.
template <typename T>
class Column {
 public:
  Column(const void* data, int64_t leading_dimension, int64_t column)
      : data_(static_cast<T*>(const_cast<void*>(data)) + column), step_(leading_dimension) {}
  SumOf<T> operator[](int64_t i) const { return static_cast<SumOf<T>>(data_[i * step_]); }
  void Set(int64_t i, SumOf<T> value) const { data_[i * step_] = static_cast<T>(value); }

 private:
  T* data_;
  int64_t step_;
};

/// Calls of_row(begin, end, column) for the nonzeros of each row and each of `columns`.
template <typename OfRow>
void ForEachRow(std::span<const int64_t> row_offsets, int64_t columns, int threads, OfRow of_row) {
  const auto rows = static_cast<int64_t>(row_offsets.size()) - 1;
#pragma omp parallel for num_threads(threads) schedule(dynamic, kRowsAtOnce)
  for (int64_t row = 0; row < rows; ++row) {
    if (row_offsets[row] == row_offsets[row + 1]) continue;
    for (int64_t column = 0; column < columns; ++column) {
      of_row(row_offsets[row], row_offsets[row + 1], column);
    }
  }
}

}  // namespace

void RowSoftmax(std::span<const int64_t> row_offsets, ElementType type, double scale,
                const ConstDense& x, const Dense& y, int threads) {
  VisitFloat(type, [&]<typename T>(T) {
    using Wide = SumOf<T>;
    const auto factor = static_cast<Wide>(scale);
    ForEachRow(row_offsets, x.cols, threads, [&](int64_t begin, int64_t end, int64_t column) {
      const Column<T> from(x.data, x.leading_dimension, column);
      const Column<T> to(y.data, y.leading_dimension, column);
      Wide greatest = -std::numeric_limits<Wide>::infinity();
      for (int64_t i = begin; i < end; ++i) greatest = std::max(greatest, factor * from[i]);
      Wide sum = 0;
      for (int64_t i = begin; i < end; ++i) sum += std::exp(factor * from[i] - greatest);
      const Wide share = 1 / sum;
      for (int64_t i = begin; i < end; ++i) {
        to.Set(i, std::exp(factor * from[i] - greatest) * share);
      }
    });
  });
}

void RowSoftmaxGradient(std::span<const int64_t> row_offsets, ElementType type, double scale,
                        const ConstDense& y, const ConstDense& dy, const Dense& dx, int threads) {
  VisitFloat(type, [&]<typename T>(T) {
    using Wide = SumOf<T>;
    const auto factor = static_cast<Wide>(scale);
    ForEachRow(row_offsets, y.cols, threads, [&](int64_t begin, int64_t end, int64_t column) {
      const Column<T> result(y.data, y.leading_dimension, column);
      const Column<T> gradient(dy.data, dy.leading_dimension, column);
      const Column<T> to(dx.data, dx.leading_dimension, column);
      Wide sum = 0;
      for (int64_t i = begin; i < end; ++i) sum += result[i] * gradient[i];
      for (int64_t i = begin; i < end; ++i) {
        to.Set(i, factor * result[i] * (gradient[i] - sum));
      }
    });
  });
}

}  // namespace sparsed
