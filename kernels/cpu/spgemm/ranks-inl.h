// Sorting a handful of columns by counting, for each of them, those that are smaller: quadratic,
// but one comparison covers a vector of them and nothing depends on a branch. Included once per
// SIMD target.
#if defined(SPARSED_SPGEMM_RANKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPARSED_SPGEMM_RANKS_INL_H_
#undef SPARSED_SPGEMM_RANKS_INL_H_
#else
#define SPARSED_SPGEMM_RANKS_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/spgemm/emit-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sparsed::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Most columns that RankColumns takes; arrays of it hold whole vectors.
inline constexpr int64_t kMaxRanked = 64;

/// ranks[i] = how many of the `count` columns are smaller than columns[i]. Reads and writes whole
/// vectors.
HWY_INLINE void RankColumns(const int32_t* columns, int64_t count, int32_t* ranks) {
  const hn::CappedTag<int32_t, 16> d;
  const auto one = hn::Set(d, 1);
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t v = 0; v < count; v += 2 * lanes) {
    const auto a = hn::Load(d, columns + v);
    const auto b = hn::Load(d, columns + v + lanes);
    auto smaller_than_a = hn::Zero(d);
    auto smaller_than_b = hn::Zero(d);
    for (int64_t i = 0; i < count; ++i) {
      const auto column = hn::Set(d, columns[i]);
      smaller_than_a =
          hn::IfThenElse(hn::Gt(a, column), hn::Add(smaller_than_a, one), smaller_than_a);
      smaller_than_b =
          hn::IfThenElse(hn::Gt(b, column), hn::Add(smaller_than_b, one), smaller_than_b);
    }
    hn::Store(smaller_than_a, d, ranks + v);
    hn::Store(smaller_than_b, d, ranks + v + lanes);
  }
}

/// The columns of a few products, gathered in the products' order, and where each of them belongs
/// in the row. Stencils and other regular matrices repeat one picture row after row, shifted; then
/// the ranks of the row before are used again.
class RankedColumns {
 public:
  /// Forgets the products. Columns are seen from `first` on.
  HWY_INLINE void Begin(int32_t first) {
    first_ = first;
    count_ = 0;
  }

  /// At most kMaxRanked products in all. `readable` is how many columns may be read.
  HWY_INLINE void Add(const int32_t* columns, int64_t count, int64_t readable) {
    const hn::CappedTag<int32_t, 16> d;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    if (HWY_LIKELY(count + lanes <= readable)) {
      for (int64_t p = 0; p < count; p += lanes) {
        hn::StoreU(hn::Sub(hn::LoadU(d, columns + p), hn::Set(d, first_)), d,
                   columns_ + count_ + p);
      }
    } else {
      for (int64_t p = 0; p < count; ++p) columns_[count_ + p] = columns[p] - first_;
    }
    count_ += count;
  }

  /// Ranks what was added.
  HWY_INLINE void Rank() {
    if (IsAsBefore()) return;
    HWY_ALIGN int32_t ranks[kSpace];
    RankColumns(columns_, count_, ranks);
    uint64_t seen = 0;
    for (int64_t i = 0; i < count_; ++i) seen |= uint64_t{1} << ranks[i];
    // Equal columns share a rank and leave a gap behind it, which is closed.
    for (int64_t i = 0; i < count_; ++i) {
      const int position = std::popcount(seen & ((uint64_t{1} << ranks[i]) - 1));
      positions_[i] = position;
      sorted_[position] = columns_[i];
    }
    entries_ = std::popcount(seen);
    ranked_count_ = count_;
    std::copy(columns_, columns_ + count_, ranked_);
  }

  int64_t count() const { return count_; }
  int32_t first() const { return first_; }
  /// After Rank: distinct columns, ascending, seen from `first` on ...
  int64_t entries() const { return entries_; }
  const int32_t* sorted() const { return sorted_; }
  /// ... and the place among them of each product.
  const int32_t* positions() const { return positions_; }

 private:
  /// Vectors are stored whole.
  static constexpr int64_t kSpace = kMaxRanked + 32;

  HWY_INLINE bool IsAsBefore() const {
    if (count_ != ranked_count_) return false;
    const hn::CappedTag<int32_t, 16> d;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    auto difference = hn::Zero(d);
    int64_t p = 0;
    for (; p + lanes <= count_; p += lanes) {
      difference = hn::Or(difference, hn::Xor(hn::Load(d, columns_ + p), hn::Load(d, ranked_ + p)));
    }
    const auto last = hn::Xor(hn::Load(d, columns_ + p), hn::Load(d, ranked_ + p));
    difference = hn::Or(difference,
                        hn::IfThenElseZero(hn::FirstN(d, static_cast<size_t>(count_ - p)), last));
    return hn::AllTrue(d, hn::Eq(difference, hn::Zero(d)));
  }

  HWY_ALIGN int32_t columns_[kSpace] = {};
  HWY_ALIGN int32_t ranked_[kSpace] = {};
  HWY_ALIGN int32_t sorted_[kSpace] = {};
  HWY_ALIGN int32_t positions_[kSpace] = {};
  int32_t first_ = 0;
  int64_t count_ = 0;
  int64_t entries_ = 0;
  int64_t ranked_count_ = 0;
};

/// A row of C with few products: they are gathered, their columns ranked, and summed in their
/// places.
template <typename T>
class RankedRow {
 public:
  void Begin(int32_t first) { columns_.Begin(first); }

  /// At most kMaxRanked products in all. `readable` is how many columns and values may be read.
  HWY_INLINE void Add(T scale, const int32_t* columns, const T* values, int64_t count,
                      int64_t readable) {
    const hn::CappedTag<T, 16> d;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    T* const products = products_ + columns_.count();
    if (HWY_LIKELY(count + lanes <= readable)) {
      for (int64_t p = 0; p < count; p += lanes) {
        hn::StoreU(hn::Mul(hn::Set(d, scale), hn::LoadU(d, values + p)), d, products + p);
      }
    } else {
      for (int64_t p = 0; p < count; ++p) products[p] = scale * values[p];
    }
    columns_.Add(columns, count, readable);
  }

  /// Writes the row to the slot. Returns its entries.
  HWY_INLINE int64_t Take(const RowSlot<T>& slot) {
    columns_.Rank();
    const int64_t entries = columns_.entries();
    HWY_ALIGN T sums[kMaxRanked] = {};
    const int32_t* const positions = columns_.positions();
    for (int64_t i = 0; i < columns_.count(); ++i) sums[positions[i]] += products_[i];
    const hn::CappedTag<int32_t, 16> d;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    if (HWY_LIKELY(entries + 16 <= slot.room)) {
      const hn::CappedTag<T, 16> dv;
      const int64_t value_lanes = static_cast<int64_t>(hn::Lanes(dv));
      for (int64_t i = 0; i < entries; i += lanes) {
        const auto column =
            hn::Add(hn::Load(d, columns_.sorted() + i), hn::Set(d, columns_.first()));
        hn::StoreU(column, d, slot.columns + i);
      }
      for (int64_t i = 0; i < entries; i += value_lanes) {
        hn::StoreU(hn::Load(dv, sums + i), dv, slot.values + i);
      }
    } else {
      for (int64_t i = 0; i < entries; ++i)
        slot.columns[i] = columns_.sorted()[i] + columns_.first();
      std::copy(sums, sums + entries, slot.values);
    }
    return entries;
  }

 private:
  RankedColumns columns_;
  HWY_ALIGN T products_[kMaxRanked + 16];
};

}  // namespace sparsed::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
