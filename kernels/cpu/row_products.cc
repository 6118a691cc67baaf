#include "kernels/row_products.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "kernels/cpu/prefetch.h"
#include "kernels/cpu/sddmm/csr_dots.h"
#include "kernels/cpu/spmm/csr_rows.h"
#include "kernels/cpu/spmm/row_best.h"
#include "kernels/formats/csr.h"
#include "kernels/value_source.h"

namespace sparsed {
namespace {

/// So many columns at once that what becomes of them stays in the nearest cache.
constexpr int64_t kColumns = 256;
/// Nonzeros: longer rows are shared out by columns, one row after the other.
constexpr int64_t kLongRow = 1 << 14;
/// Nonzeros of shorter rows whose values are put in order together, head by head, and multiplied
/// so: their indices stay in the nearest cache.
constexpr int64_t kNonzerosTogether = 1024;
/// Columns of a long row for one thread: a line of the cache and more.
constexpr int64_t kColumnsOfLong = 32;
/// Rows are of very different lengths; as many at once as make a piece worth taking.
constexpr int64_t kRowsAtOnce = 64;
constexpr int64_t kNonzerosAtOnce = 1024;

/// Sums and means of some rows, by the kernel of products with a plan, head by head: their indices
/// stay in the nearest cache.
template <typename T>
class Sums {
 public:
  explicit Sums(const RowProducts& products)
      : p_(products),
        csr_(ViewCsr(products.layout)),
        source_(products.values_by_slot ? ValueSource() : ValueSource(products.layout)),
        width_(products.b.cols / products.heads()) {
    product_.row_offsets = csr_.row_offsets.data();
    product_.column_indices = csr_.column_indices.data();
    product_.nnz = csr_.nnz();
    product_.ldb = products.b.leading_dimension;
    product_.ldc = products.c.leading_dimension;
    product_.alpha = static_cast<SumOf<T>>(products.alpha);
    product_.beta = static_cast<SumOf<T>>(products.beta);
    product_.prefetch =
        cpu::ShouldPrefetch(csr_, products.b.cols * static_cast<int64_t>(sizeof(T)));
  }

  /// Columns [from, to) of rows of C.
  void Compute(RowRange rows, int64_t from, int64_t to) {
    const int64_t first = csr_.row_offsets[rows.begin];
    const int64_t count = csr_.row_offsets[rows.end] - first;
    const int64_t first_head = from / width_, heads = (to - 1) / width_ + 1 - first_head;
    GatherValues(first, count, first_head, heads);
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t column = std::max(from, (first_head + head) * width_);
      cpu::CsrProduct<T> product = product_;
      product.values = values_.data() + head * count - first;
      product.b = static_cast<const T*>(p_.b.data) + column;
      product.c = static_cast<T*>(p_.c.data) + column;
      product.k = std::min(to, (first_head + head + 1) * width_) - column;
      ComputeHead(product, rows);
    }
  }

 private:
  void ComputeHead(cpu::CsrProduct<T>& product, RowRange rows) {
    if (p_.reduction == Reduction::kSum) {
      return cpu::MultiplyRows(product, rows, csr_.row_offsets[rows.begin],
                               csr_.row_offsets[rows.end]);
    }
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const int64_t begin = csr_.row_offsets[row], end = csr_.row_offsets[row + 1];
      T* const c = product.c + row * product.ldc;
      const auto length = static_cast<SumOf<T>>(std::max<int64_t>(end - begin, 1));
      if constexpr (kIsHalf<T>) {
        // Rounded once.
        sums_.resize(static_cast<size_t>(product.k));
        product.sums = sums_.data();
        cpu::MultiplyRows(product, {row, row + 1}, begin, end);
        for (int64_t j = 0; j < product.k; ++j) c[j] = static_cast<T>(sums_[j] / length);
      } else {
        cpu::MultiplyRows(product, {row, row + 1}, begin, end);
        for (int64_t j = 0; j < product.k; ++j) c[j] /= length;
      }
    }
  }

  /// Those of `count` nonzeros from `first` on, head by head.
  void GatherValues(int64_t first, int64_t count, int64_t first_head, int64_t heads) {
    values_.resize(static_cast<size_t>(count * heads + 1));  // never none
    if (p_.values.data == nullptr) {
      std::ranges::fill(values_, static_cast<T>(SumOf<T>(1)));
      return;
    }
    for (int64_t i = 0; i < count; ++i) {
      const T* const from = static_cast<const T*>(p_.values.data) +
                            source_[first + i] * p_.values.leading_dimension + first_head;
      for (int64_t head = 0; head < heads; ++head) values_[head * count + i] = from[head];
    }
  }

  const RowProducts& p_;
  const CsrView csr_;
  const ValueSource source_;
  const int64_t width_;  ///< of a head
  cpu::CsrProduct<T> product_;
  std::vector<T> values_;
  std::vector<SumOf<T>> sums_;
};

/// Greatest and least ones of some rows.
template <typename T>
class Bests {
 public:
  using Wide = SumOf<T>;

  explicit Bests(const RowProducts& products)
      : p_(products),
        csr_(ViewCsr(products.layout)),
        source_(products.layout),
        of_value_(products.values_by_slot ? ValueSource() : ValueSource(products.layout)) {}

  /// Columns [from, to) of rows of C.
  void Compute(RowRange rows, int64_t from, int64_t to) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      GatherValues(row);
      for (int64_t first = from; first < to; first += kColumns) {
        FindBest(row, first, std::min(kColumns, to - first));
      }
    }
  }

 private:
  void GatherValues(int64_t row) {
    const int64_t begin = csr_.row_offsets[row], end = csr_.row_offsets[row + 1];
    values_.assign(static_cast<size_t>(end - begin), Wide(1));
    if (p_.values.data == nullptr) return;
    const T* const from = static_cast<const T*>(p_.values.data);
    for (int64_t slot = begin; slot < end; ++slot) {
      values_[slot - begin] =
          static_cast<Wide>(from[of_value_[slot] * p_.values.leading_dimension]);
    }
  }

  /// Columns [first, first + count) of a row, whose values are in values_.
  void FindBest(int64_t row, int64_t first, int64_t count) {
    const int64_t begin = csr_.row_offsets[row], end = csr_.row_offsets[row + 1];
    // The least is the greatest of what is negated.
    const Wide sign = p_.reduction == Reduction::kMax ? Wide(1) : Wide(-1);
    const T* const b = static_cast<const T*>(p_.b.data) + first;
    const cpu::RowOfProducts<T> products = {csr_.column_indices.data() + begin,
                                            values_.data(),
                                            end - begin,
                                            b,
                                            p_.b.leading_dimension,
                                            sign};
    Wide best[kColumns];
    int32_t which[kColumns];
    for (int64_t j = cpu::FindBest(products, count, best, which); j < count; ++j) {
      best[j] = 0;
      which[j] = -1;
      for (int64_t i = 0; i < products.count; ++i) {
        const T element = b[products.columns[i] * products.ldb + j];
        const Wide product = sign * (values_[i] * static_cast<Wide>(element));
        // A NaN is taken, and stays.
        if (which[j] >= 0 && (product <= best[j] || best[j] != best[j])) continue;
        best[j] = product;
        which[j] = static_cast<int32_t>(i);
      }
    }
    T* const result = static_cast<T*>(p_.c.data) + row * p_.c.leading_dimension + first;
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
  const ValueSource source_;  ///< of S's CSR
  const ValueSource of_value_;
  std::vector<Wide> values_;  ///< of a row
};

template <typename Work>
void ComputeRows(const RowProducts& products, int threads) {
  const CsrView csr = ViewCsr(products.layout);
  const int64_t columns = products.c.cols;
  const auto nonzeros = [&](int64_t begin, int64_t end) {
    return csr.row_offsets[end] - csr.row_offsets[begin];
  };
  std::mutex mutex;
  std::vector<int64_t> long_rows;
#pragma omp parallel num_threads(threads)
  {
    Work work(products);
#pragma omp for schedule(dynamic, 1)
    for (int64_t first = 0; first < csr.rows; first += kRowsAtOnce) {
      const int64_t last = std::min(first + kRowsAtOnce, csr.rows);
      for (int64_t row = first; row < last;) {
        int64_t end = row + 1;
        if (threads > 1 && nonzeros(row, end) > kLongRow) {
          const std::lock_guard lock(mutex);
          long_rows.push_back(row);
        } else {
          while (end < last && nonzeros(row, end + 1) <= kNonzerosTogether) ++end;
          work.Compute({row, end}, 0, columns);
        }
        row = end;
      }
    }
    for (const int64_t row : long_rows) {
#pragma omp for schedule(dynamic, 1)
      for (int64_t from = 0; from < columns; from += kColumnsOfLong) {
        work.Compute({row, row + 1}, from, std::min(from + kColumnsOfLong, columns));
      }
    }
  }
}

}  // namespace

void ComputeRowProducts(const RowProducts& products, ElementType type, int threads) {
  if (products.c.cols == 0) return;
  VisitFloat(type, [&]<typename T>(T) {
    if (products.reduction == Reduction::kSum || products.reduction == Reduction::kMean) {
      ComputeRows<Sums<T>>(products, threads);
    } else {
      ComputeRows<Bests<T>>(products, threads);
    }
  });
}

void ComputeHeadDots(const HeadDots& dots, ElementType type, int threads) {
  const CsrView csr = ViewCsr(dots.layout);
  const int64_t heads = dots.out.cols, width = dots.a.cols / heads;
  VisitFloat(type, [&]<typename T>(T) {
#pragma omp parallel num_threads(threads)
    {
      std::vector<T> values(kNonzerosAtOnce), results(kNonzerosAtOnce);
      cpu::CsrDots<T> head_dots;
      head_dots.row_offsets = csr.row_offsets.data();
      head_dots.column_indices = csr.column_indices.data();
      head_dots.nnz = csr.nnz();
      head_dots.lda = dots.a.leading_dimension;
      head_dots.ldb = dots.b.leading_dimension;
      head_dots.k = width;
      head_dots.prefetch = cpu::ShouldPrefetch(csr, dots.b.cols * static_cast<int64_t>(sizeof(T)));
#pragma omp for schedule(dynamic, 1)
      for (int64_t first = 0; first < csr.nnz(); first += kNonzerosAtOnce) {
        const int64_t last = std::min(first + kNonzerosAtOnce, csr.nnz());
        const int64_t row =
            std::upper_bound(csr.row_offsets.begin(), csr.row_offsets.end(), first) -
            csr.row_offsets.begin() - 1;
        for (int64_t head = 0; head < heads; ++head) {
          head_dots.a = static_cast<const T*>(dots.a.data) + head * width;
          head_dots.b = static_cast<const T*>(dots.b.data) + head * width;
          if (dots.values.data != nullptr) {
            const T* const from =
                static_cast<const T*>(dots.values.data) + (dots.values.cols > 1 ? head : 0);
            for (int64_t p = first; p < last; ++p) {
              values[p - first] = from[p * dots.values.leading_dimension];
            }
            head_dots.values = values.data() - first;
          }
          cpu::DotNonzeros(head_dots, row, first, last, results.data());
          T* const out = static_cast<T*>(dots.out.data) + head;
          for (int64_t p = first; p < last; ++p) {
            out[p * dots.out.leading_dimension] = results[p - first];
          }
        }
      }
    }
  });
}

}  // namespace sparsed
