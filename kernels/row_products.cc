#include "kernels/row_products.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "kernels/formats/csr.h"
#include "kernels/value_source.h"

namespace sparsed {
namespace {

/// So many columns at once that what becomes of them stays in the nearest cache.
constexpr int64_t kColumns = 256;
/// Nonzeros: longer rows are shared out by columns, one row after the other.
constexpr int64_t kLongRow = 1 << 14;
/// Columns of a long row for one thread: a line of the cache and more.
constexpr int64_t kColumnsOfLong = 32;
/// Rows are of very different lengths; as many at once as make a piece worth taking.
constexpr int kRowsAtOnce = 64;
constexpr int64_t kNonzerosAtOnce = 1024;

template <typename T>
class Rows {
 public:
  using Wide = SumOf<T>;

  explicit Rows(const RowProducts& products)
      : p_(products),
        csr_(ViewCsr(products.layout)),
        source_(products.layout),
        width_(products.b.cols / products.heads()) {}

  int64_t Length(int64_t row) const { return csr_.row_offsets[row + 1] - csr_.row_offsets[row]; }

  /// Columns [first, end) of a row of C.
  void Compute(int64_t row, int64_t first, int64_t end) const {
    for (; first < end; first += kColumns) {
      const int64_t count = std::min(kColumns, end - first);
      if (p_.reduction == Reduction::kSum || p_.reduction == Reduction::kMean) {
        Add(row, first, count);
      } else {
        FindBest(row, first, count);
      }
    }
  }

 private:
  T* ResultOf(int64_t row, int64_t first) const {
    return static_cast<T*>(p_.c.data) + row * p_.c.leading_dimension + first;
  }

  /// Calls part(s, from, to, b) for the columns [from, to) of `count` from `first` on that the
  /// nonzero's value s goes with; b is of column `first`.
  template <typename Part>
  void ForEachPart(int64_t slot, int64_t first, int64_t count, Part part) const {
    const T* const b = static_cast<const T*>(p_.b.data) +
                       csr_.column_indices[slot] * p_.b.leading_dimension + first;
    if (p_.values.data == nullptr) return part(Wide(1), 0, count, b);
    const int64_t at = p_.values_by_slot ? slot : source_[slot];
    const T* const values =
        static_cast<const T*>(p_.values.data) + at * p_.values.leading_dimension;
    int64_t head = first / width_;
    for (int64_t from = 0; from < count; ++head) {
      const int64_t to = std::min((head + 1) * width_ - first, count);
      part(static_cast<Wide>(values[head]), from, to, b);
      from = to;
    }
  }

  void Add(int64_t row, int64_t first, int64_t count) const {
    Wide sums[kColumns] = {};
    for (int64_t slot = csr_.row_offsets[row]; slot < csr_.row_offsets[row + 1]; ++slot) {
      ForEachPart(slot, first, count, [&](Wide s, int64_t from, int64_t to, const T* b) {
#pragma omp simd
        for (int64_t j = from; j < to; ++j) sums[j] += s * static_cast<Wide>(b[j]);
      });
    }
    T* const result = ResultOf(row, first);
    if (p_.reduction == Reduction::kMean) {
      const Wide length = static_cast<Wide>(std::max<int64_t>(Length(row), 1));
      for (int64_t j = 0; j < count; ++j) result[j] = static_cast<T>(sums[j] / length);
      return;
    }
    const auto alpha = static_cast<Wide>(p_.alpha), beta = static_cast<Wide>(p_.beta);
    for (int64_t j = 0; j < count; ++j) {
      const Wide old = beta == 0 ? Wide(0) : beta * static_cast<Wide>(result[j]);
      result[j] = static_cast<T>(alpha * sums[j] + old);
    }
  }

  void FindBest(int64_t row, int64_t first, int64_t count) const {
    // The least is the greatest of what is negated.
    const Wide sign = p_.reduction == Reduction::kMax ? Wide(1) : Wide(-1);
    const int64_t begin = csr_.row_offsets[row], end = csr_.row_offsets[row + 1];
    Wide best[kColumns] = {};
    int32_t which[kColumns];
    std::fill_n(which, count, -1);
    for (int64_t slot = begin; slot < end; ++slot) {
      const auto number = static_cast<int32_t>(slot - begin);
      ForEachPart(slot, first, count, [&](Wide s, int64_t from, int64_t to, const T* b) {
#pragma omp simd
        for (int64_t j = from; j < to; ++j) {
          const Wide product = sign * (s * static_cast<Wide>(b[j]));
          // A NaN is taken, and stays.
          const bool better = which[j] < 0 || (!(product <= best[j]) && best[j] == best[j]);
          best[j] = better ? product : best[j];
          which[j] = better ? number : which[j];
        }
      });
    }
    T* const result = ResultOf(row, first);
    for (int64_t j = 0; j < count; ++j) {
      result[j] = static_cast<T>(which[j] < 0 ? Wide(0) : sign * best[j]);
    }
    if (p_.arguments.data == nullptr) return;
    auto* const arguments =
        static_cast<int64_t*>(p_.arguments.data) + row * p_.arguments.leading_dimension + first;
    for (int64_t j = 0; j < count; ++j) {
      const int64_t at = which[j] < 0 ? -1 : source_[begin + which[j]];
      arguments[j] = at < 0 || p_.positions.empty() ? at : p_.positions[at];
    }
  }

  const RowProducts& p_;
  const CsrView csr_;
  const ValueSource source_;
  const int64_t width_;  ///< of a head
};

}  // namespace

std::string_view Name(Reduction reduction) {
  switch (reduction) {
    case Reduction::kMean:
      return "mean";
    case Reduction::kMax:
      return "max";
    case Reduction::kMin:
      return "min";
    case Reduction::kSum:
      break;
  }
  return "sum";
}

void ComputeRowProducts(const RowProducts& products, ElementType type, int threads) {
  const int64_t count = products.layout.rows, columns = products.c.cols;
  VisitFloat(type, [&]<typename T>(T) {
    const Rows<T> rows(products);
    std::mutex mutex;
    std::vector<int64_t> long_rows;
#pragma omp parallel for num_threads(threads) schedule(dynamic, kRowsAtOnce)
    for (int64_t row = 0; row < count; ++row) {
      if (threads > 1 && rows.Length(row) > kLongRow) {
        const std::lock_guard lock(mutex);
        long_rows.push_back(row);
      } else {
        rows.Compute(row, 0, columns);
      }
    }
    for (const int64_t row : long_rows) {
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
      for (int64_t first = 0; first < columns; first += kColumnsOfLong) {
        rows.Compute(row, first, std::min(first + kColumnsOfLong, columns));
      }
    }
  });
}

void ComputeHeadDots(const HeadDots& dots, ElementType type, int threads) {
  const CsrView csr = ViewCsr(dots.layout);
  const int64_t heads = dots.out.cols, width = dots.a.cols / heads;
  const int64_t value_step = dots.values.cols > 1 ? 1 : 0;
  VisitFloat(type, [&]<typename T>(T) {
    using Wide = SumOf<T>;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int64_t first = 0; first < csr.nnz(); first += kNonzerosAtOnce) {
      const int64_t last = std::min(first + kNonzerosAtOnce, csr.nnz());
      int64_t row = std::upper_bound(csr.row_offsets.begin(), csr.row_offsets.end(), first) -
                    csr.row_offsets.begin() - 1;
      for (int64_t p = first; p < last; ++p) {
        while (csr.row_offsets[row + 1] <= p) ++row;
        const T* a = static_cast<const T*>(dots.a.data) + row * dots.a.leading_dimension;
        const T* b =
            static_cast<const T*>(dots.b.data) + csr.column_indices[p] * dots.b.leading_dimension;
        const T* const values =
            static_cast<const T*>(dots.values.data) + p * dots.values.leading_dimension;
        T* const out = static_cast<T*>(dots.out.data) + p * dots.out.leading_dimension;
        for (int64_t head = 0; head < heads; ++head, a += width, b += width) {
          Wide sum = 0;
#pragma omp simd reduction(+ : sum)
          for (int64_t j = 0; j < width; ++j) {
            sum += static_cast<Wide>(a[j]) * static_cast<Wide>(b[j]);
          }
          if (dots.values.data != nullptr) sum *= static_cast<Wide>(values[head * value_step]);
          out[head] = static_cast<T>(sum);
        }
      }
    }
  });
}

}  // namespace sparsed
