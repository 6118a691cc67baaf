// One row of C as a hash table of sums (Nagasaka, Matsuoka, Azad and Buluc, "High-performance
// sparse matrix-matrix products on Intel KNL and multicore architectures", 2018): open addressing,
// multiplicative hashing, a power of two of slots chosen for each row so that the table of a small
// row stays in the first-level cache. A list of the slots in use, keyed by column, is sorted when
// the row is complete. Included once per SIMD target.
#if defined(SPARSED_SPGEMM_HASH_ACCUMULATOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPARSED_SPGEMM_HASH_ACCUMULATOR_INL_H_
#undef SPARSED_SPGEMM_HASH_ACCUMULATOR_INL_H_
#else
#define SPARSED_SPGEMM_HASH_ACCUMULATOR_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>

#include "hwy/highway.h"
#include "kernels/cpu/spgemm/ranks-inl.h"
#include "kernels/cpu/spgemm/row_slot.h"
#include "kernels/cpu/spgemm/semiring.h"
#include "kernels/cpu/spgemm/workspace.h"

HWY_BEFORE_NAMESPACE();
namespace sparsed::cpu::HWY_NAMESPACE {

/// Sorts keys (column << 32 | anything, columns distinct) by column. Returns where the result is:
/// `keys` or `other`.
template <int kDigitBits>
HWY_INLINE uint64_t* RadixSortKeys(uint64_t* keys, uint64_t* other, int64_t count, uint32_t least,
                                   uint32_t greatest) {
  constexpr uint32_t kDigits = 1u << kDigitBits;
  const int bits = std::bit_width(greatest - least);
  for (int shift = 0; shift < bits; shift += kDigitBits) {
    uint32_t begins[kDigits] = {};
    auto digit = [=](uint64_t key) {
      return ((static_cast<uint32_t>(key >> 32) - least) >> shift) & (kDigits - 1);
    };
    for (int64_t i = 0; i < count; ++i) ++begins[digit(keys[i])];
    uint32_t begin = 0;
    for (uint32_t& b : begins) begin += std::exchange(b, begin);
    for (int64_t i = 0; i < count; ++i) other[begins[digit(keys[i])]++] = keys[i];
    std::swap(keys, other);
  }
  return keys;
}

HWY_INLINE uint64_t* SortKeys(uint64_t* keys, uint64_t* other, int64_t count) {
  if (count <= kMaxRanked) {
    HWY_ALIGN int32_t columns[kMaxRanked];
    HWY_ALIGN int32_t ranks[kMaxRanked];
    for (int64_t i = 0; i < count; ++i) columns[i] = static_cast<int32_t>(keys[i] >> 32);
    RankColumns(columns, count, ranks);
    for (int64_t i = 0; i < count; ++i) other[ranks[i]] = keys[i];
    return other;
  }
  uint64_t least = keys[0];
  uint64_t greatest = keys[0];
  for (int64_t i = 1; i < count; ++i) {
    least = std::min(least, keys[i]);
    greatest = std::max(greatest, keys[i]);
  }
  const auto first = static_cast<uint32_t>(least >> 32);
  const auto last = static_cast<uint32_t>(greatest >> 32);
  return count < 2048 ? RadixSortKeys<8>(keys, other, count, first, last)
                      : RadixSortKeys<11>(keys, other, count, first, last);
}

template <typename T, class Semiring = SumProduct<T>>
class HashAccumulator {
 public:
  explicit HashAccumulator(const HashSpace<T>& space) : space_(space) {}

  /// Makes room for a row of up to `entries` entries.
  void Reserve(int64_t entries) {
    const int64_t slots = HashSpace<T>::SlotsFor(entries);
    if (slots > clean_) {
      std::fill(space_.slots + clean_, space_.slots + slots, HashSlot<T>{-1, Semiring::Nothing()});
      clean_ = slots;
    }
    mask_ = static_cast<uint32_t>(slots - 1);
    shift_ = 64 - std::countr_zero(static_cast<uint64_t>(slots));
  }

  HWY_INLINE void Add(T scale, const int32_t* columns, const T* values, int64_t count) {
    for (int64_t p = 0; p < count; ++p) {
      const int32_t column = columns[p];
      const uint32_t at = Find(column);
      HashSlot<T>& slot = space_.slots[at];
      const bool is_new = slot.column != column;
      slot.column = column;
      slot.sum = Semiring::Add(slot.sum, Semiring::Multiply(scale, values[p]));
      space_.keys[entries_] = Key(column, at);
      entries_ += is_new;
    }
  }

  /// Writes the row to the slot and empties the table. Returns the row's entries.
  HWY_INLINE int64_t Take(const RowSlot<T>& row) {
    const uint64_t* const sorted = SortKeys(space_.keys, space_.sorted_keys, entries_);
    for (int64_t i = 0; i < entries_; ++i) {
      HashSlot<T>& slot = space_.slots[static_cast<uint32_t>(sorted[i])];
      row.columns[i] = static_cast<int32_t>(sorted[i] >> 32);
      row.values[i] = slot.sum;
      slot = {-1, Semiring::Nothing()};
    }
    return std::exchange(entries_, 0);
  }

  /// As Add, without values.
  HWY_INLINE void AddColumns(const int32_t* columns, int64_t count) {
    for (int64_t p = 0; p < count; ++p) {
      const uint32_t at = Find(columns[p]);
      const bool is_new = space_.slots[at].column != columns[p];
      space_.slots[at].column = columns[p];
      space_.keys[entries_] = at;
      entries_ += is_new;
    }
  }

  /// The row's entries; empties the table.
  HWY_INLINE int64_t TakeCount() {
    for (int64_t i = 0; i < entries_; ++i) space_.slots[space_.keys[i]].column = -1;
    return std::exchange(entries_, 0);
  }

 private:
  static uint64_t Key(int32_t column, uint32_t slot) {
    return static_cast<uint64_t>(column) << 32 | slot;
  }

  /// The slot that has the column, or the empty one where it belongs.
  HWY_INLINE uint32_t Find(int32_t column) const {
    constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;
    auto at = static_cast<uint32_t>(static_cast<uint32_t>(column) * kGoldenRatio >> shift_);
    while (space_.slots[at].column != column && space_.slots[at].column >= 0) {
      at = (at + 1) & mask_;
    }
    return at;
  }

  HashSpace<T> space_;
  uint32_t mask_ = 0;
  int shift_ = 0;
  int64_t entries_ = 0;
  int64_t clean_ = 0;  ///< slots before it are empty between rows
};

}  // namespace sparsed::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
