// How a row's sums go to C. Included once for every instruction set, after hwy/highway.h.

#if defined(SPARSED_KERNELS_CPU_SPMM_STORE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPARSED_KERNELS_CPU_SPMM_STORE_INL_H_
#undef SPARSED_KERNELS_CPU_SPMM_STORE_INL_H_
#else
#define SPARSED_KERNELS_CPU_SPMM_STORE_INL_H_
#endif

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/tail-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sparsed::cpu::HWY_NAMESPACE {

/// c = alpha * sum + beta * c, for vectors of a row of which the last one is the tail if kMasked.
/// The product has alpha, beta and stream (CsrProduct).
template <bool kMasked, int kVectors, class D, typename Product, typename T>
HWY_INLINE void StoreScaled(D d, const Product& product, T* HWY_RESTRICT c, Tail<D> tail,
                            const hwy::HWY_NAMESPACE::Vec<D> (&sum)[kVectors]) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::Vec<D> alpha = hn::Set(d, product.alpha);
  const hn::Vec<D> beta = hn::Set(d, product.beta);
  HWY_UNROLL(8)
  for (int v = 0; v < kVectors; ++v) {
    T* const at = c + v * hn::Lanes(d);
    const bool masked = kMasked && v + 1 == kVectors;
    hn::Vec<D> result = hn::Mul(alpha, sum[v]);
    if (product.beta != 0) {
      result = hn::MulAdd(beta, masked ? tail.Load(at) : LoadStored(d, at), result);
    }
    if (masked) {
      tail.Store(result, at);
      continue;
    }
    if constexpr (sizeof(T) * hn::MaxLanes(D()) >= 16 && !kIsHalf<T>) {
      if (product.stream) {
        hn::Stream(result, d, at);
        continue;
      }
    }
    StoreRounded(result, d, at);
  }
}

}  // namespace sparsed::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
