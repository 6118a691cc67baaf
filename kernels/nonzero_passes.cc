#include "kernels/nonzero_passes.h"

#include <algorithm>
#include <vector>

#include "kernels/formats/csr.h"
#include "kernels/value_source.h"

namespace sparsed {
namespace {

/// Rows are of very different lengths; as many at once as make a piece worth taking.
constexpr int kRowsAtOnce = 256;
constexpr int64_t kNonzerosAtOnce = 4096;

/// A dense matrix's rows, or ones.
template <typename T>
class Factors {
 public:
  explicit Factors(const ConstDense& dense)
      : data_(static_cast<const T*>(dense.data)),
        stride_(dense.leading_dimension),
        step_(dense.cols > 1 ? 1 : 0) {}
  SumOf<T> At(int64_t row, int64_t column) const {
    return data_ == nullptr ? SumOf<T>(1)
                            : static_cast<SumOf<T>>(data_[row * stride_ + column * step_]);
  }

 private:
  const T* data_;
  int64_t stride_, step_;
};

}  // namespace

void ScaleNonzeros(const NonzeroScaling& scaling, ElementType type, int threads) {
  const CsrView csr = ViewCsr(scaling.layout);
  VisitFloat(type, [&]<typename T>(T) {
    const Factors<T> rows(scaling.rows), cols(scaling.cols);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t first = 0; first < csr.nnz(); first += kNonzerosAtOnce) {
      const int64_t last = std::min(first + kNonzerosAtOnce, csr.nnz());
      int64_t row = std::upper_bound(csr.row_offsets.begin(), csr.row_offsets.end(), first) -
                    csr.row_offsets.begin() - 1;
      for (int64_t p = first; p < last; ++p) {
        while (csr.row_offsets[row + 1] <= p) ++row;
        const T* const x = static_cast<const T*>(scaling.x.data) + p * scaling.x.leading_dimension;
        T* const y = static_cast<T*>(scaling.y.data) + p * scaling.y.leading_dimension;
        for (int64_t h = 0; h < scaling.y.cols; ++h) {
          y[h] = static_cast<T>(rows.At(row, h) * static_cast<SumOf<T>>(x[h]) *
                                cols.At(csr.column_indices[p], h));
        }
      }
    }
  });
}

void TotalNonzeros(const NonzeroTotals& totals, ElementType type, int threads) {
  const CsrView csr = ViewCsr(totals.layout);
  const ValueSource source = totals.x_by_slot ? ValueSource() : ValueSource(totals.layout);
  VisitFloat(type, [&]<typename T>(T) {
    using Wide = SumOf<T>;
#pragma omp parallel num_threads(threads)
    {
      std::vector<Wide> sums(static_cast<size_t>(totals.y.cols));
#pragma omp for schedule(dynamic, kRowsAtOnce)
      for (int64_t row = 0; row < csr.rows; ++row) {
        std::ranges::fill(sums, Wide(0));
        for (int64_t slot = csr.row_offsets[row]; slot < csr.row_offsets[row + 1]; ++slot) {
          const T* const x =
              static_cast<const T*>(totals.x.data) + source[slot] * totals.x.leading_dimension;
          for (size_t h = 0; h < sums.size(); ++h) sums[h] += static_cast<Wide>(x[h]);
        }
        T* const y = static_cast<T*>(totals.y.data) + row * totals.y.leading_dimension;
        for (size_t h = 0; h < sums.size(); ++h) y[h] = static_cast<T>(sums[h]);
      }
    }
  });
}

}  // namespace sparsed
