// Vectors of sums into rows of C. Included once per SIMD target.
#if defined(SPARSED_SPGEMM_EMIT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPARSED_SPGEMM_EMIT_INL_H_
#undef SPARSED_SPGEMM_EMIT_INL_H_
#else
#define SPARSED_SPGEMM_EMIT_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/spgemm/row_slot.h"

HWY_BEFORE_NAMESPACE();
namespace sparsed::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Columns of 32-bit lanes, or of 64-bit lanes that are narrowed, next to values of that width.
template <class DU>
HWY_INLINE void StoreColumns(DU, hn::Vec<DU> columns, int32_t* to) {
#if HWY_TARGET == HWY_SCALAR
  *to = static_cast<int32_t>(hn::GetLane(columns));
#else
  if constexpr (sizeof(hn::TFromD<DU>) == 4) {
    const hn::RebindToSigned<DU> di;
    hn::StoreU(hn::BitCast(di, columns), di, to);
  } else {
    const hn::Repartition<int32_t, DU> di;
    const hn::Half<decltype(di)> half;
    const auto lanes = hn::BitCast(di, columns);
    hn::StoreU(hn::LowerHalf(half, hn::ConcatEven(di, lanes, lanes)), half, to);
  }
#endif
}

/// Appends the lanes of `values` that `mask` selects, and their columns, at entry `position` of the
/// slot. Returns how many.
template <class D, class DU = hn::RebindToUnsigned<D>, typename T = hn::TFromD<D>>
HWY_INLINE int64_t EmitLanes(D d, hn::Vec<D> values, hn::Vec<DU> columns, hn::Mask<D> mask,
                             int64_t position, const RowSlot<T>& slot) {
  const DU du;
  const int64_t count = static_cast<int64_t>(hn::CountTrue(d, mask));
  const auto packed_values = hn::Compress(values, mask);
  const auto packed_columns = hn::Compress(columns, hn::RebindMask(du, mask));
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  if (HWY_LIKELY(position + lanes <= slot.room)) {
    hn::StoreU(packed_values, d, slot.values + position);
    StoreColumns(du, packed_columns, slot.columns + position);
  } else {
    HWY_ALIGN T last_values[HWY_LANES(T)];
    HWY_ALIGN int32_t last_columns[HWY_LANES(T)];
    hn::StoreU(packed_values, d, last_values);
    StoreColumns(du, packed_columns, last_columns);
    std::copy(last_values, last_values + count, slot.values + position);
    std::copy(last_columns, last_columns + count, slot.columns + position);
  }
  return count;
}

}  // namespace sparsed::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
