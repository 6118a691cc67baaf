// semiring.h's operations on vectors. Included once per SIMD target.
#if defined(SPARSED_SPGEMM_SEMIRING_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPARSED_SPGEMM_SEMIRING_INL_H_
#undef SPARSED_SPGEMM_SEMIRING_INL_H_
#else
#define SPARSED_SPGEMM_SEMIRING_INL_H_
#endif

#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/spgemm/semiring.h"

HWY_BEFORE_NAMESPACE();
namespace sparsed::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Multiply(scale, values).
template <typename T, class D>
HWY_INLINE hn::Vec<D> Products(SumProduct<T>, D, hn::Vec<D> scale, hn::Vec<D> values) {
  return hn::Mul(scale, values);
}
template <typename T, class D>
HWY_INLINE hn::Vec<D> Products(PlusPair<T>, D d, hn::Vec<D>, hn::Vec<D>) {
  return hn::Set(d, T{1});
}
template <typename T, class D>
HWY_INLINE hn::Vec<D> Products(Boolean<T>, D d, hn::Vec<D>, hn::Vec<D>) {
  return hn::Set(d, T{1});
}
template <typename T, class D>
HWY_INLINE hn::Vec<D> Products(MinPlus<T>, D, hn::Vec<D> scale, hn::Vec<D> values) {
  return hn::Add(scale, values);
}

/// AddTouched(sums, Multiply(scale, values)).
template <typename T, class D>
HWY_INLINE hn::Vec<D> AddProducts(SumProduct<T>, D d, hn::Vec<D> scale, hn::Vec<D> values,
                                  hn::Vec<D> sums) {
  return hn::Add(hn::MulAdd(scale, values, sums), hn::Zero(d));
}
template <typename T, class D>
HWY_INLINE hn::Vec<D> AddProducts(PlusPair<T>, D d, hn::Vec<D>, hn::Vec<D>, hn::Vec<D> sums) {
  return hn::Add(sums, hn::Set(d, T{1}));
}
template <typename T, class D>
HWY_INLINE hn::Vec<D> AddProducts(Boolean<T>, D d, hn::Vec<D>, hn::Vec<D>, hn::Vec<D>) {
  return hn::Set(d, T{1});
}
template <typename T, class D>
HWY_INLINE hn::Vec<D> AddProducts(MinPlus<T>, D d, hn::Vec<D> scale, hn::Vec<D> values,
                                  hn::Vec<D> sums) {
  const auto products = hn::Add(scale, values);
  const auto usual = hn::Set(d, std::numeric_limits<T>::quiet_NaN());
  const auto settled = hn::IfThenElse(hn::IsNaN(products), usual, products);
  return hn::IfThenElse(hn::Or(hn::Lt(products, sums), hn::IsNaN(sums)), settled, sums);
}

}  // namespace sparsed::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
