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
#include <iterator>
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/spgemm/emit-inl.h"
#include "kernels/cpu/spgemm/semiring-inl.h"
#include "kernels/cpu/spgemm/workspace.h"

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
  for (int64_t v = 0; v < count; v += lanes) {
    const auto a = hn::Load(d, columns + v);
    auto smaller = hn::Zero(d);
    for (int64_t i = 0; i < count; ++i) {
      const auto column = hn::Set(d, columns[i]);
      smaller = hn::IfThenElse(hn::Gt(a, column), hn::Add(smaller, one), smaller);
    }
    hn::Store(smaller, d, ranks + v);
  }
}

/// The columns of a few products, gathered in the products' order, and where each of them belongs
/// in the row. Stencils and other regular matrices repeat one picture row after row, shifted; then
/// the ranks of the row before are used again.
class RankedColumns {
 public:
  static constexpr int64_t kGroup = 4;

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
    // Whole groups of products, so that the loops over them seldom surprise the branch predictor;
    // what is too much sorts behind everything else.
    for (int64_t i = 0; i < kGroup; ++i) columns_[count_ + i] = std::numeric_limits<int32_t>::max();
    const int64_t count = padded_count();
    HWY_ALIGN int32_t ranks[kSpace];
    RankColumns(columns_, count, ranks);
    uint64_t seen = 0;
    for (int64_t i = 0; i < count; i += kGroup) {
      for (int64_t j = i; j < i + kGroup; ++j) seen |= uint64_t{1} << ranks[j];
    }
    // Equal columns share a rank and leave a gap behind it, which is closed.
    for (int64_t i = 0; i < count; i += kGroup) {
      for (int64_t j = i; j < i + kGroup; ++j) {
        const int position = std::popcount(seen & ((uint64_t{1} << ranks[j]) - 1));
        positions_[j] = position;
        sorted_[position] = columns_[j];
      }
    }
    entries_ = std::popcount(seen) - (count > count_);
    ranked_count_ = count_;
    const hn::CappedTag<int32_t, 16> d;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    for (int64_t i = 0; i < count; i += lanes) {
      hn::Store(hn::Load(d, columns_ + i), d, ranked_ + i);
    }
  }

  int64_t count() const { return count_; }
  /// ... and with those that fill the last group.
  int64_t padded_count() const { return RoundUp(count_, kGroup); }
  int32_t first() const { return first_; }
  /// After Rank: distinct columns, ascending, seen from `first` on ...
  int64_t entries() const { return entries_; }
  const int32_t* sorted() const { return sorted_; }
  /// ... and the place among them of each product; behind the last one for those of the padding.
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
template <typename T, class Semiring = SumProduct<T>>
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
        hn::StoreU(Products(Semiring(), d, hn::Set(d, scale), hn::LoadU(d, values + p)), d,
                   products + p);
      }
    } else {
      for (int64_t p = 0; p < count; ++p) products[p] = Semiring::Multiply(scale, values[p]);
    }
    columns_.Add(columns, count, readable);
  }

  /// Writes the row to the slot. Returns its entries.
  HWY_INLINE int64_t Take(const RowSlot<T>& slot) {
    columns_.Rank();
    constexpr int64_t kGroup = RankedColumns::kGroup;
    for (int64_t i = 0; i < kGroup; ++i) products_[columns_.count() + i] = 0;
    const int64_t entries = columns_.entries();
    // Vectors are stored whole, and the padding's products are summed behind the row.
    if (HWY_LIKELY(entries + 16 <= slot.room)) {
      StoreColumns(slot.columns);
      const hn::CappedTag<T, 16> d;
      for (int64_t i = 0; i <= entries; i += static_cast<int64_t>(hn::Lanes(d))) {
        hn::StoreU(hn::Set(d, Semiring::Nothing()), d, slot.values + i);
      }
      AddProducts(slot.values);
    } else {
      HWY_ALIGN int32_t columns[kMaxRanked + 16];
      StoreColumns(columns);
      std::copy(columns, columns + entries, slot.columns);
      T sums[kMaxRanked + 1];
      std::fill(std::begin(sums), std::end(sums), Semiring::Nothing());
      AddProducts(sums);
      std::copy(sums, sums + entries, slot.values);
    }
    return entries;
  }

 private:
  HWY_INLINE void StoreColumns(int32_t* to) const {
    const hn::CappedTag<int32_t, 16> d;
    const auto first = hn::Set(d, columns_.first());
    for (int64_t i = 0; i < columns_.entries(); i += static_cast<int64_t>(hn::Lanes(d))) {
      hn::StoreU(hn::Add(hn::Load(d, columns_.sorted() + i), first), d, to + i);
    }
  }

  /// Right in the row: sums that were collected elsewhere would have to be read back at once.
  HWY_INLINE void AddProducts(T* sums) const {
    constexpr int64_t kGroup = RankedColumns::kGroup;
    const int32_t* const positions = columns_.positions();
    for (int64_t i = 0; i < columns_.padded_count(); i += kGroup) {
      for (int64_t j = i; j < i + kGroup; ++j) {
        T& sum = sums[positions[j]];
        sum = Semiring::Add(sum, products_[j]);
      }
    }
  }

  RankedColumns columns_;
  HWY_ALIGN T products_[kMaxRanked + 16];
};

}  // namespace sparsed::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
