// Adds up the lanes of four vectors together, by adding interleaved halves, for about the cost of
// one. Included once for every instruction set, after hwy/highway.h.

#if defined(SPARSED_KERNELS_CPU_ADD_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPARSED_KERNELS_CPU_ADD_LANES_INL_H_
#undef SPARSED_KERNELS_CPU_ADD_LANES_INL_H_
#else
#define SPARSED_KERNELS_CPU_ADD_LANES_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sparsed::cpu::HWY_NAMESPACE {

constexpr int kSumsAtOnce = 4;

#if HWY_TARGET == HWY_SCALAR

template <bool kAdd, class D, class V = hwy::HWY_NAMESPACE::Vec<D>,
          typename T = hwy::HWY_NAMESPACE::TFromD<D>>
HWY_INLINE void AddLanes(D d, const V (&sums)[kSumsAtOnce], T* out) {
  for (int i = 0; i < kSumsAtOnce; ++i) {
    hwy::HWY_NAMESPACE::Store(
        kAdd ? hwy::HWY_NAMESPACE::Add(sums[i], hwy::HWY_NAMESPACE::Load(d, out + i)) : sums[i], d,
        out + i);
  }
}

#else

/// Stores the sums of a vector's 16-byte blocks, or adds them.
template <bool kAdd, class D, typename T = hwy::HWY_NAMESPACE::TFromD<D>>
HWY_INLINE void AddBlocks(D d, hwy::HWY_NAMESPACE::Vec<D> v, T* out) {
  if constexpr (hwy::HWY_NAMESPACE::MaxLanes(D()) * sizeof(T) > 16) {
    const hwy::HWY_NAMESPACE::Half<D> half;
    AddBlocks<kAdd>(half,
                    hwy::HWY_NAMESPACE::Add(hwy::HWY_NAMESPACE::LowerHalf(half, v),
                                            hwy::HWY_NAMESPACE::UpperHalf(half, v)),
                    out);
  } else {
    hwy::HWY_NAMESPACE::StoreU(
        kAdd ? hwy::HWY_NAMESPACE::Add(v, hwy::HWY_NAMESPACE::LoadU(d, out)) : v, d, out);
  }
}

/// out[i] = the sum of sums[i]'s lanes; += if kAdd.
template <bool kAdd, class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE void AddLanes(D d, const V (&sums)[kSumsAtOnce], float* out) {
  // In every block of four lanes: sums 0 1 0 1 and 2 3 2 3, then 0 1 2 3.
  const V low = hwy::HWY_NAMESPACE::Add(hwy::HWY_NAMESPACE::InterleaveLower(d, sums[0], sums[1]),
                                        hwy::HWY_NAMESPACE::InterleaveUpper(d, sums[0], sums[1]));
  const V high = hwy::HWY_NAMESPACE::Add(hwy::HWY_NAMESPACE::InterleaveLower(d, sums[2], sums[3]),
                                         hwy::HWY_NAMESPACE::InterleaveUpper(d, sums[2], sums[3]));
  const hwy::HWY_NAMESPACE::Repartition<double, D> pairs;
  const auto low_pairs = hwy::HWY_NAMESPACE::BitCast(pairs, low);
  const auto high_pairs = hwy::HWY_NAMESPACE::BitCast(pairs, high);
  AddBlocks<kAdd>(d,
                  hwy::HWY_NAMESPACE::Add(
                      hwy::HWY_NAMESPACE::BitCast(
                          d, hwy::HWY_NAMESPACE::InterleaveLower(pairs, low_pairs, high_pairs)),
                      hwy::HWY_NAMESPACE::BitCast(
                          d, hwy::HWY_NAMESPACE::InterleaveUpper(pairs, low_pairs, high_pairs))),
                  out);
}

template <bool kAdd, class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE void AddLanes(D d, const V (&sums)[kSumsAtOnce], double* out) {
  for (int i = 0; i < kSumsAtOnce; i += 2) {
    AddBlocks<kAdd>(
        d,
        hwy::HWY_NAMESPACE::Add(hwy::HWY_NAMESPACE::InterleaveLower(d, sums[i], sums[i + 1]),
                                hwy::HWY_NAMESPACE::InterleaveUpper(d, sums[i], sums[i + 1])),
        out + i);
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace sparsed::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
