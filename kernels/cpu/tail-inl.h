// The last vector of a row whose width is no multiple of the vector. Included once for every
// instruction set, after hwy/highway.h.

#if defined(SPARSED_KERNELS_CPU_TAIL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPARSED_KERNELS_CPU_TAIL_INL_H_
#undef SPARSED_KERNELS_CPU_TAIL_INL_H_
#else
#define SPARSED_KERNELS_CPU_TAIL_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/stored-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sparsed::cpu::HWY_NAMESPACE {

/// Whether masked loads and stores of 32 and 64-bit lanes touch only memory of lanes that are on.
/// Elsewhere there are no tails: what is left is done column by column.
constexpr bool kNativeMasks = HWY_TARGET == HWY_AVX2 || !HWY_MEM_OPS_MIGHT_FAULT;

/// The first `count` lanes of a vector.
template <class D>
class Tail {
 public:
  using V = hwy::HWY_NAMESPACE::Vec<D>;
  using T = hwy::HWY_NAMESPACE::TFromD<D>;

  explicit HWY_INLINE Tail(int64_t count)
      : mask_(hwy::HWY_NAMESPACE::FirstN(D(), static_cast<size_t>(count))), count_(count) {}
  /// Lanes past the tail are zero.
  HWY_INLINE V Load(const T* from) const {
    return hwy::HWY_NAMESPACE::MaskedLoad(mask_, D(), from);
  }
  HWY_INLINE void Store(V v, T* to) const { hwy::HWY_NAMESPACE::BlendedStore(v, mask_, D(), to); }

  /// Likewise of 16-bit types: masked where such lanes can be, else by way of a whole vector.
  template <typename Stored>
  HWY_INLINE V Load(const Stored* from) const {
    if constexpr (kInVectors<Stored> && !HWY_MEM_OPS_MIGHT_FAULT) {
      return Promote<Stored>(D(), hwy::HWY_NAMESPACE::MaskedLoad(
                                      mask16(), D16(), reinterpret_cast<const uint16_t*>(from)));
    }
    Stored whole[hwy::HWY_NAMESPACE::MaxLanes(D())] = {};
    for (int64_t i = 0; i < count_; ++i) whole[i] = from[i];
    return LoadStored(D(), whole);
  }
  template <typename Stored>
  HWY_INLINE void Store(V v, Stored* to) const {
    if constexpr (kInVectors<Stored> && !HWY_MEM_OPS_MIGHT_FAULT) {
      hwy::HWY_NAMESPACE::BlendedStore(Round<Stored>(D(), v), mask16(), D16(),
                                       reinterpret_cast<uint16_t*>(to));
      return;
    }
    Stored whole[hwy::HWY_NAMESPACE::MaxLanes(D())];
    StoreRounded(v, D(), whole);
    for (int64_t i = 0; i < count_; ++i) to[i] = whole[i];
  }

 private:
  using D16 = hwy::HWY_NAMESPACE::Rebind<uint16_t, D>;
  HWY_INLINE hwy::HWY_NAMESPACE::Mask<D16> mask16() const {
    return hwy::HWY_NAMESPACE::FirstN(D16(), static_cast<size_t>(count_));
  }

  hwy::HWY_NAMESPACE::Mask<D> mask_;
  int64_t count_;
};

}  // namespace sparsed::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
