// A row's greatest products: a few vectors of columns, and of the numbers of the nonzeros that they
// are of, stay in registers across the row's nonzeros, as in csr_rows.cc.
#include "kernels/cpu/spmm/row_best.h"

#include "kernels/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/spmm/row_best.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/stored-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sparsed::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

/// kVectors vectors of columns from the first of `b` on.
template <int kVectors, typename T>
HWY_INLINE void FindSlab(const RowOfProducts<T>& row, int64_t column, SumOf<T>* best,
                         int32_t* which) {
  using D = hn::ScalableTag<SumOf<T>>;
  const D d;
  const hn::RebindToSigned<D> numbers;
  using Number = hn::TFromD<decltype(numbers)>;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  hn::Vec<D> greatest[kVectors];
  hn::Vec<decltype(numbers)> at[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    greatest[v] = hn::Zero(d);
    at[v] = hn::Set(numbers, Number{-1});
  }
  const auto sign = hn::Set(d, row.sign);
  for (int64_t i = 0; i < row.count; ++i) {
    const T* const b = row.b + row.columns[i] * row.ldb + column;
    const auto value = hn::Set(d, row.values[i]);
    const auto number = hn::Set(numbers, static_cast<Number>(i));
    HWY_UNROLL(4)
    for (int v = 0; v < kVectors; ++v) {
      const auto product = hn::Mul(sign, hn::Mul(value, LoadStored(d, b + v * lanes)));
      if (i == 0) {
        greatest[v] = product;
        at[v] = number;
        continue;
      }
      // A NaN is taken, and stays: neither is less or equal, nor equal to itself.
      const auto stays = hn::Or(hn::Le(product, greatest[v]), hn::IsNaN(greatest[v]));
      greatest[v] = hn::IfThenElse(stays, greatest[v], product);
      at[v] = hn::IfThenElse(hn::RebindMask(numbers, stays), at[v], number);
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    hn::StoreU(greatest[v], d, best + column + v * lanes);
    HWY_ALIGN Number stored[hn::MaxLanes(D())];
    hn::Store(at[v], numbers, stored);
    for (int64_t i = 0; i < lanes; ++i) {
      which[column + v * lanes + i] = static_cast<int32_t>(stored[i]);
    }
  }
}

template <typename T>
int64_t FindBestOf(const RowOfProducts<T>& row, int64_t k, SumOf<T>* best, int32_t* which) {
  const hn::ScalableTag<SumOf<T>> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t column = 0;
  for (; column + 4 * lanes <= k; column += 4 * lanes) FindSlab<4>(row, column, best, which);
  for (; column + lanes <= k; column += lanes) FindSlab<1>(row, column, best, which);
  return column;
}

int64_t FindBestF32(const RowOfProducts<float>& row, int64_t k, float* best, int32_t* which) {
  return FindBestOf(row, k, best, which);
}
int64_t FindBestF64(const RowOfProducts<double>& row, int64_t k, double* best, int32_t* which) {
  return FindBestOf(row, k, best, which);
}
int64_t FindBestF16(const RowOfProducts<Float16>& row, int64_t k, float* best, int32_t* which) {
  return FindBestOf(row, k, best, which);
}
int64_t FindBestBF16(const RowOfProducts<BFloat16>& row, int64_t k, float* best, int32_t* which) {
  return FindBestOf(row, k, best, which);
}

}  // namespace
}  // namespace sparsed::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparsed::cpu {

HWY_EXPORT(FindBestF32);
HWY_EXPORT(FindBestF64);
HWY_EXPORT(FindBestF16);
HWY_EXPORT(FindBestBF16);

int64_t FindBest(const RowOfProducts<float>& row, int64_t k, float* best, int32_t* which) {
  return HWY_DYNAMIC_DISPATCH(FindBestF32)(row, k, best, which);
}
int64_t FindBest(const RowOfProducts<double>& row, int64_t k, double* best, int32_t* which) {
  return HWY_DYNAMIC_DISPATCH(FindBestF64)(row, k, best, which);
}
int64_t FindBest(const RowOfProducts<Float16>& row, int64_t k, float* best, int32_t* which) {
  return HWY_DYNAMIC_DISPATCH(FindBestF16)(row, k, best, which);
}
int64_t FindBest(const RowOfProducts<BFloat16>& row, int64_t k, float* best, int32_t* which) {
  return HWY_DYNAMIC_DISPATCH(FindBestBF16)(row, k, best, which);
}

}  // namespace sparsed::cpu
#endif  // HWY_ONCE
