// Vectors of elements that are computed with in a wider type than they are stored in. Included once
// for every instruction set, after hwy/highway.h.

#if defined(SPARSED_KERNELS_CPU_STORED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPARSED_KERNELS_CPU_STORED_INL_H_
#undef SPARSED_KERNELS_CPU_STORED_INL_H_
#else
#define SPARSED_KERNELS_CPU_STORED_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/half.h"

HWY_BEFORE_NAMESPACE();
namespace sparsed::cpu::HWY_NAMESPACE {

/// Whether the instruction set converts f16 as IEEE 754 has it; Highway's substitutes elsewhere
/// know no infinities and cut off instead of rounding.
constexpr bool kNativeF16 = HWY_TARGET <= HWY_AVX2;

/// Promotes the bits of a 16-bit type that is converted in vectors.
template <typename T, class D>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> Promote(
    D d, hwy::HWY_NAMESPACE::Vec<hwy::HWY_NAMESPACE::Rebind<uint16_t, D>> bits) {
  namespace hn = hwy::HWY_NAMESPACE;
  if constexpr (std::is_same_v<T, BFloat16>) {
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(hn::RebindToUnsigned<D>(), bits)));
  } else {
    return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), bits));
  }
}

/// Rounds to nearest, ties to even.
template <typename T, class D>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<hwy::HWY_NAMESPACE::Rebind<uint16_t, D>> Round(
    D /*d*/, hwy::HWY_NAMESPACE::Vec<D> v) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::Rebind<uint16_t, D> d16;
  if constexpr (std::is_same_v<T, BFloat16>) {
    const hn::RebindToUnsigned<D> d32;
    const hn::RebindToSigned<D> i32;
    const auto wide = hn::BitCast(d32, v);
    const auto upper = hn::ShiftRight<16>(wide);
    const auto odd = hn::And(upper, hn::Set(d32, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(wide, hn::Add(odd, hn::Set(d32, 0x7fff))));
    const auto quiet = hn::Or(upper, hn::Set(d32, 0x40));
    const auto is_nan = hn::RebindMask(d32, hn::IsNaN(v));
    return hn::DemoteTo(d16, hn::BitCast(i32, hn::IfThenElse(is_nan, quiet, rounded)));
  } else {
    return hn::BitCast(d16, hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), v));
  }
}

/// Whether T is converted in vectors.
template <typename T>
constexpr bool kInVectors = std::is_same_v<T, BFloat16> || kNativeF16;

/// A vector of `from`'s elements; no alignment.
template <class D, typename T>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> LoadStored(D d, const T* HWY_RESTRICT from) {
  namespace hn = hwy::HWY_NAMESPACE;
  if constexpr (!kIsHalf<T>) {
    return hn::LoadU(d, from);
  } else if constexpr (kInVectors<T>) {
    const hn::Rebind<uint16_t, D> d16;
    return Promote<T>(d, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(from)));
  } else {
    HWY_ALIGN float wide[hn::MaxLanes(D())];
    for (size_t i = 0; i < hn::Lanes(d); ++i) wide[i] = static_cast<float>(from[i]);
    return hn::Load(d, wide);
  }
}

/// The vector as elements of `to`, rounded; no alignment.
template <class D, typename T>
HWY_INLINE void StoreRounded(hwy::HWY_NAMESPACE::Vec<D> v, D d, T* HWY_RESTRICT to) {
  namespace hn = hwy::HWY_NAMESPACE;
  if constexpr (!kIsHalf<T>) {
    hn::StoreU(v, d, to);
  } else if constexpr (kInVectors<T>) {
    hn::StoreU(Round<T>(d, v), hn::Rebind<uint16_t, D>(), reinterpret_cast<uint16_t*>(to));
  } else {
    HWY_ALIGN float wide[hn::MaxLanes(D())];
    hn::Store(v, d, wide);
    for (size_t i = 0; i < hn::Lanes(d); ++i) to[i] = T(wide[i]);
  }
}

}  // namespace sparsed::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
