// The inner loops of SpMV from CSR: y = alpha * S * x + beta * y.
//
// With one column there is nothing to gain from vectors: a row's nonzeros are read and multiplied
// one by one, as fast as memory has them (gathers of x by vector instructions were slower where x
// is in a cache). Two things are slower than memory: rows of a few nonzeros, whose ends the
// processor does not guess, and 16-bit types, converted one by one. Of these, all products of a
// batch are formed first, by vectors, in the L1 cache and whatever rows they belong to; then the
// rows are summed, each by as few vectors as hold it (products first as in CSR-stream, Greathouse
// and Daga, SC 2014).
#include "kernels/cpu/spmm/csr_vector.h"

#include <algorithm>

#include "kernels/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/spmm/csr_vector.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/stored-inl.h"
#include "kernels/cpu/tail-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sparsed::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

/// Nonzeros and rows of a batch: what is kept of them stays in the L1 cache.
constexpr int64_t kBatchNonzeros = 1024;
constexpr int64_t kBatchRows = 512;

/// Elements of x at `columns`.
template <class D>
HWY_INLINE hn::Vec<D> Gather(D d, const hn::TFromD<D>* HWY_RESTRICT x,
                             hn::Vec<hn::Rebind<int32_t, D>> columns) {
  if constexpr (sizeof(hn::TFromD<D>) == sizeof(int32_t)) {
    return hn::GatherIndex(d, x, columns);
  } else {
    return hn::GatherIndex(d, x, hn::PromoteTo(hn::Rebind<int64_t, D>(), columns));
  }
}

/// Of `count` elements, in an order that depends on the count alone.
template <typename Sum>
HWY_INLINE Sum SumOfAll(const Sum* HWY_RESTRICT elements, int64_t count) {
  const hn::ScalableTag<Sum> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  if (!kNativeMasks && count < lanes) {
    Sum sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += elements[i];
    return sum;
  }
  auto even = hn::Zero(d), odd = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    even = hn::Add(even, hn::LoadU(d, elements + i));
    odd = hn::Add(odd, hn::LoadU(d, elements + i + lanes));
  }
  for (; i + lanes <= count; i += lanes) even = hn::Add(even, hn::LoadU(d, elements + i));
  // Of no elements even a masked load may read one: a scalar's does.
  if (kNativeMasks && i < count) {
    odd = hn::Add(odd, Tail<decltype(d)>(count - i).Load(elements + i));
    i = count;
  }
  Sum sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
  for (; i < count; ++i) sum += elements[i];
  return sum;
}

/// products[i] = value times element of x, of `count` nonzeros from `first` on. x is contiguous,
/// but of 16-bit types.
template <typename T>
void Multiply(const CsrProduct<T>& product, int64_t first, int64_t count,
              SumOf<T>* HWY_RESTRICT products) {
  using Sum = SumOf<T>;
  const hn::ScalableTag<Sum> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int32_t* const columns = product.column_indices + first;
  const T* const values = product.values + first;
  int64_t i = 0;
  if constexpr (kIsHalf<T>) {
    T x[kBatchNonzeros];
    for (int64_t j = 0; j < count; ++j) x[j] = product.b[columns[j] * product.ldb];
    for (; i + lanes <= count; i += lanes) {
      hn::Store(hn::Mul(LoadStored(d, values + i), LoadStored(d, x + i)), d, products + i);
    }
    for (; i < count; ++i) products[i] = static_cast<Sum>(values[i]) * static_cast<Sum>(x[i]);
  } else {
    const hn::Rebind<int32_t, decltype(d)> d32;
    for (; i + lanes <= count; i += lanes) {
      hn::Store(
          hn::Mul(hn::LoadU(d, values + i), Gather(d, product.b, hn::LoadU(d32, columns + i))), d,
          products + i);
    }
    for (; i < count; ++i) products[i] = values[i] * product.b[columns[i]];
  }
}

/// Of the nonzeros [first, last).
template <typename T>
SumOf<T> SumOfRow(const CsrProduct<T>& product, int64_t first, int64_t last,
                  SumOf<T>* HWY_RESTRICT products) {
  SumOf<T> sum = 0;
  for (; first < last; first += kBatchNonzeros) {
    const int64_t count = std::min(last - first, kBatchNonzeros);
    Multiply(product, first, count, products);
    sum += SumOfAll(products, count);
  }
  return sum;
}

/// y of `count` rows from `row` on.
template <typename T>
void StoreRows(const CsrProduct<T>& product, int64_t row, int64_t count,
               const SumOf<T>* HWY_RESTRICT sums) {
  using Sum = SumOf<T>;
  if constexpr (kIsHalf<T>) {
    if (product.sums != nullptr) {
      *product.sums = *sums;
      return;
    }
  }
  const hn::ScalableTag<Sum> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  if (product.row_order == nullptr && product.ldc == 1 && product.beta == 0) {
    const auto alpha = hn::Set(d, product.alpha);
    for (; i + lanes <= count; i += lanes) {
      StoreRounded(hn::Mul(alpha, hn::LoadU(d, sums + i)), d, product.c + row + i);
    }
  }
  for (; i < count; ++i) {
    const int64_t to = product.row_order == nullptr ? row + i : product.row_order[row + i];
    T& y = product.c[to * product.ldc];
    const Sum old = product.beta == 0 ? 0 : product.beta * static_cast<Sum>(y);
    y = static_cast<T>(product.alpha * sums[i] + old);
  }
}

template <typename T>
void MultiplyInBatches(const CsrProduct<T>& product, RowRange rows, int64_t first, int64_t last) {
  using Sum = SumOf<T>;
  HWY_ALIGN Sum products[kBatchNonzeros];
  HWY_ALIGN Sum sums[kBatchRows];
  for (int64_t row = rows.begin; row < rows.end;) {
    const int64_t begin = std::max(product.row_offsets[row], first);
    const int64_t most = std::min(row + kBatchRows, rows.end);
    const auto end_of = [&](int64_t of) { return std::min(product.row_offsets[of + 1], last); };
    int64_t next = row;
    while (next < most && end_of(next) - begin <= kBatchNonzeros) ++next;
    if (next == row) {
      sums[0] = SumOfRow(product, begin, end_of(row), products);
      ++next;
    } else {
      Multiply(product, begin, end_of(next - 1) - begin, products);
      for (int64_t at = 0, i = row; i < next; ++i) {
        const int64_t end = end_of(i) - begin;
        sums[i - row] = SumOfAll(products + at, end - at);
        at = end;
      }
    }
    StoreRows(product, row, next - row, sums);
    row = next;
  }
}

/// A row after the other; x is of a type that is computed with.
template <typename T>
void MultiplyOneByOne(const CsrProduct<T>& product, RowRange rows, int64_t first, int64_t last) {
  // Of one lane, so that no compiler makes gathers of it.
  const hn::CappedTag<T, 1> d;
  const int64_t* const HWY_RESTRICT offsets = product.row_offsets;
  const int32_t* const HWY_RESTRICT columns = product.column_indices;
  const T* const HWY_RESTRICT values = product.values;
  const T* const HWY_RESTRICT x = product.b;
  const int64_t ldx = product.ldb;
  HWY_ALIGN T sums[kBatchRows];
  for (int64_t row = rows.begin; row < rows.end;) {
    const int64_t next = std::min(row + kBatchRows, rows.end);
    int64_t p = std::max(offsets[row], first);
    for (int64_t i = row; i < next; ++i) {
      const int64_t end = std::min(offsets[i + 1], last);
      auto even = hn::Zero(d), odd = hn::Zero(d);
      for (; p + 2 <= end; p += 2) {
        even = hn::MulAdd(hn::LoadU(d, values + p), hn::LoadU(d, x + columns[p] * ldx), even);
        odd = hn::MulAdd(hn::LoadU(d, values + p + 1), hn::LoadU(d, x + columns[p + 1] * ldx), odd);
      }
      if (p < end) {
        even = hn::MulAdd(hn::LoadU(d, values + p), hn::LoadU(d, x + columns[p] * ldx), even);
        ++p;
      }
      sums[i - row] = hn::GetLane(hn::Add(even, odd));
    }
    StoreRows(product, row, next - row, sums);
    row = next;
  }
}

/// Rows this short on average end before the processor has learnt where.
constexpr int64_t kShortRow = 6;
/// Rows that are looked at.
constexpr int64_t kSample = 256;

/// Whether rows are short and every fourth is not as long as the one before it.
bool EndsAreMispredicted(const int64_t* row_offsets, RowRange rows) {
  const int64_t begin = rows.begin + std::max<int64_t>((rows.end - rows.begin - kSample) / 2, 0);
  const int64_t end = std::min(begin + kSample, rows.end);
  const auto length = [&](int64_t row) { return row_offsets[row + 1] - row_offsets[row]; };
  if (row_offsets[end] - row_offsets[begin] > kShortRow * (end - begin)) return false;
  int64_t changes = 0;
  for (int64_t row = begin + 1; row < end; ++row) changes += length(row) != length(row - 1);
  return 4 * changes >= end - begin;
}

template <typename T>
void MultiplyVectorOf(const CsrProduct<T>& product, RowRange rows, int64_t first, int64_t last) {
  if constexpr (!kIsHalf<T>) {
    if (product.ldb != 1 || !EndsAreMispredicted(product.row_offsets, rows)) {
      MultiplyOneByOne(product, rows, first, last);
      return;
    }
  }
  MultiplyInBatches(product, rows, first, last);
}

void MultiplyVectorF32(const CsrProduct<float>& product, RowRange rows, int64_t first,
                       int64_t last) {
  MultiplyVectorOf(product, rows, first, last);
}
void MultiplyVectorF64(const CsrProduct<double>& product, RowRange rows, int64_t first,
                       int64_t last) {
  MultiplyVectorOf(product, rows, first, last);
}
void MultiplyVectorF16(const CsrProduct<Float16>& product, RowRange rows, int64_t first,
                       int64_t last) {
  MultiplyVectorOf(product, rows, first, last);
}
void MultiplyVectorBF16(const CsrProduct<BFloat16>& product, RowRange rows, int64_t first,
                        int64_t last) {
  MultiplyVectorOf(product, rows, first, last);
}

}  // namespace
}  // namespace sparsed::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparsed::cpu {

HWY_EXPORT(MultiplyVectorF32);
HWY_EXPORT(MultiplyVectorF64);
HWY_EXPORT(MultiplyVectorF16);
HWY_EXPORT(MultiplyVectorBF16);

void MultiplyVector(const CsrProduct<float>& product, RowRange rows, int64_t first, int64_t last) {
  HWY_DYNAMIC_DISPATCH(MultiplyVectorF32)(product, rows, first, last);
}
void MultiplyVector(const CsrProduct<double>& product, RowRange rows, int64_t first, int64_t last) {
  HWY_DYNAMIC_DISPATCH(MultiplyVectorF64)(product, rows, first, last);
}
void MultiplyVector(const CsrProduct<Float16>& product, RowRange rows, int64_t first,
                    int64_t last) {
  HWY_DYNAMIC_DISPATCH(MultiplyVectorF16)(product, rows, first, last);
}
void MultiplyVector(const CsrProduct<BFloat16>& product, RowRange rows, int64_t first,
                    int64_t last) {
  HWY_DYNAMIC_DISPATCH(MultiplyVectorBF16)(product, rows, first, last);
}

}  // namespace sparsed::cpu
#endif  // HWY_ONCE
