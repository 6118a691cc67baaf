// One row of C as a dense window of sums (the sparse accumulator of Gilbert, Moler and Schreiber,
// "Sparse matrices in MATLAB", 1992), laid out for vectors. Included once per SIMD target.
//
// A column that no product has reached holds what no sum can be (of sums of products: -0.0, see
// semiring.h), so that a column with an entry can always be told from one without, whatever its
// value. There is no flag to set for an entry and none to look up.
// The window is cut into lines of 64 bytes. In a sparse window each product also stores the mark of
// its line (a store without a load, so that neighbouring products don't wait for each other), and
// rows are written, sorted by nature, from the lines that have a mark; 64 marks are looked at at
// once. A window with more products than columns goes without marks and is written from all lines.
#if defined(SPARSED_SPGEMM_DENSE_ACCUMULATOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPARSED_SPGEMM_DENSE_ACCUMULATOR_INL_H_
#undef SPARSED_SPGEMM_DENSE_ACCUMULATOR_INL_H_
#else
#define SPARSED_SPGEMM_DENSE_ACCUMULATOR_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/spgemm/emit-inl.h"
#include "kernels/cpu/spgemm/semiring-inl.h"
#include "kernels/cpu/spgemm/workspace.h"
#include "kernels/cpu/tail-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sparsed::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Which of 64 bytes are not zero. Clears them.
HWY_INLINE uint64_t TakeMarks(uint8_t* marks) {
  const hn::CappedTag<uint8_t, 64> d;
  uint64_t bits = 0;
  for (size_t i = 0; i < 64; i += hn::Lanes(d)) {
    uint8_t lanes[8] = {};
    hn::StoreMaskBits(d, hn::Ne(hn::Load(d, marks + i), hn::Zero(d)), lanes);
    uint64_t part = 0;
    hwy::CopyBytes<8>(lanes, &part);
    bits |= part << i;
    hn::Store(hn::Zero(d), d, marks + i);
  }
  return bits;
}

/// Appends the positions of the bits to `list`, plus `base`. Most words have few bits, an unknown
/// number of them: four are always written, so that the branch is seldom mistaken.
HWY_INLINE int64_t ListBits(uint64_t bits, uint32_t base, uint32_t* list) {
  const int64_t count = std::popcount(bits);
  for (int64_t i = 0; i < count || i == 0; i += 4) {
    for (int64_t j = i; j < i + 4; ++j) {
      list[j] = base + static_cast<uint32_t>(std::countr_zero(bits));
      bits &= bits - 1;
    }
  }
  return count;
}

/// Marked lines of the first `lines` in ascending order; clears their marks.
HWY_INLINE int64_t ListMarkedLines(uint8_t* marks, int64_t lines, uint32_t* list) {
  int64_t count = 0;
  for (int64_t line = 0; line < lines; line += 64) {
    count += ListBits(TakeMarks(marks + line), static_cast<uint32_t>(line), list + count);
  }
  return count;
}

/// Neighbouring columns, enough of them for vectors to pay.
HWY_INLINE bool IsRun(const int32_t* columns, int64_t count) {
  return count >= 8 && columns[count - 1] - columns[0] == count - 1;
}

template <typename T, class Semiring = SumProduct<T>>
class DenseAccumulator {
 public:
  explicit DenseAccumulator(const DenseSpace<T>& space)
      : sums_(space.sums), marks_(space.marks), lines_(space.lines) {}

  /// Makes columns [0, width) of the window usable.
  void Reserve(int64_t width) {
    if (width <= clean_) return;
    const int64_t end = RoundUp(width, DenseSpace<T>::kColumnsOfBlock);
    std::fill(sums_ + clean_, sums_ + end, Semiring::Untouched());
    std::fill(marks_ + clean_ / kLine, marks_ + end / kLine, uint8_t{0});
    clean_ = end;
  }

  /// Adds scale times a row of T. `first` is the column where the window begins.
  template <bool kMarked>
  HWY_INLINE void Add(T scale, const int32_t* columns, const T* values, int64_t count,
                      int32_t first) {
    // Copies, so that the compiler need not fear that a mark overwrites a member.
    T* const sums = sums_;
    uint8_t* const marks = marks_;
    if (IsRun(columns, count)) {
      const uint32_t begin = static_cast<uint32_t>(columns[0] - first);
      AddRun(scale, values, count, sums + begin);
      if constexpr (kMarked) {
        const auto end = begin + static_cast<uint32_t>(count);
        std::memset(marks + begin / kLine, 1, (end - 1) / kLine - begin / kLine + 1);
      }
      return;
    }
    for (int64_t p = 0; p < count; ++p) {
      const uint32_t column = static_cast<uint32_t>(columns[p] - first);
      sums[column] = Semiring::AddTouched(sums[column], Semiring::Multiply(scale, values[p]));
      if constexpr (kMarked) marks[column / kLine] = 1;
    }
  }

  /// Adds scale times kBlock aligned values to those of the window's columns from `column` on,
  /// which is aligned as they are, that `present` has bits for. A block is no longer than a line.
  template <bool kMarked, int64_t kBlock>
  HWY_INLINE void AddBlock(T scale, const T* values, uint32_t present, int64_t column) {
    static_assert(kBlock <= kLine);
    const hn::CappedTag<T, kBlock> d;
    const auto scales = hn::Set(d, scale);
    T* const sums = sums_ + column;
    for (int64_t i = 0; i < kBlock; i += static_cast<int64_t>(hn::Lanes(d))) {
      const uint64_t bits = present >> i;
      uint8_t bytes[8];
      hwy::CopyBytes<8>(&bits, bytes);
      const auto before = hn::Load(d, sums + i);
      const auto after = AddProducts(Semiring(), d, scales, hn::Load(d, values + i), before);
      hn::Store(hn::IfThenElse(hn::LoadMaskBits(d, bytes), after, before), d, sums + i);
    }
    if constexpr (kMarked) marks_[column / kLine] = 1;
  }

  /// Writes the row to the slot and makes the window clean again. Returns its entries.
  template <bool kMarked>
  HWY_INLINE int64_t Take(int32_t first, int64_t width, const RowSlot<T>& slot) {
    const int64_t lines = (width + kLine - 1) / kLine;
    T* const sums = sums_;
    int64_t entries = 0;
    if constexpr (kMarked) {
      const uint32_t* const list = lines_;
      const int64_t marked = ListMarkedLines(marks_, lines, lines_);
      for (int64_t i = 0; i < marked; ++i) {
        entries = TakeLine(sums, int64_t{list[i]} * kLine, first, entries, slot);
      }
    } else {
      for (int64_t i = 0; i < lines; ++i) entries = TakeLine(sums, i * kLine, first, entries, slot);
    }
    return entries;
  }

 private:
  static constexpr int64_t kLine = DenseSpace<T>::kColumnsOfLine;

  static HWY_INLINE void AddRun(T scale, const T* values, int64_t count, T* sums) {
    const hn::CappedTag<T, kLine> d;
    const auto scales = hn::Set(d, scale);
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    int64_t p = 0;
    for (; p + lanes <= count; p += lanes) {
      hn::StoreU(
          AddProducts(Semiring(), d, scales, hn::LoadU(d, values + p), hn::LoadU(d, sums + p)), d,
          sums + p);
    }
    if constexpr (kNativeMasks) {
      if (p == count) return;
      const Tail<decltype(d)> tail(count - p);
      tail.Store(AddProducts(Semiring(), d, scales, tail.Load(values + p), tail.Load(sums + p)),
                 sums + p);
    } else {
      for (; p < count; ++p) {
        sums[p] = Semiring::AddTouched(sums[p], Semiring::Multiply(scale, values[p]));
      }
    }
  }

  static HWY_INLINE int64_t TakeLine(T* sums, int64_t line, int32_t first, int64_t entries,
                                     const RowSlot<T>& slot) {
    const hn::CappedTag<T, kLine> d;
    const hn::RebindToUnsigned<decltype(d)> du;
    using U = hn::TFromD<decltype(du)>;
    const auto untouched = hn::BitCast(du, hn::Set(d, Semiring::Untouched()));
    for (int64_t i = line; i < line + kLine; i += static_cast<int64_t>(hn::Lanes(d))) {
      const auto lanes = hn::Load(d, sums + i);
      const auto touched = hn::RebindMask(d, hn::Ne(hn::BitCast(du, lanes), untouched));
      hn::Store(hn::BitCast(d, untouched), d, sums + i);
      const auto columns = hn::Add(hn::Iota(du, U{0}), hn::Set(du, static_cast<U>(first + i)));
      entries += EmitLanes(d, lanes, columns, touched, entries, slot);
    }
    return entries;
  }

  T* sums_;
  uint8_t* marks_;
  uint32_t* lines_;
  int64_t clean_ = 0;
};

/// Columns of a row of C without values: a byte a column instead of a sum, 64 columns a line.
class DenseCounter {
 public:
  explicit DenseCounter(const DenseSpace<uint8_t>& space)
      : flags_(space.sums), marks_(space.marks), lines_(space.lines) {}

  void Reserve(int64_t width) {
    if (width <= clean_) return;
    const int64_t end = RoundUp(width, DenseSpace<uint8_t>::kColumnsOfBlock);
    std::fill(flags_ + clean_, flags_ + end, uint8_t{0});
    std::fill(marks_ + clean_ / kLine, marks_ + end / kLine, uint8_t{0});
    clean_ = end;
  }

  template <bool kMarked>
  HWY_INLINE void Add(const int32_t* columns, int64_t count, int32_t first) {
    uint8_t* const flags = flags_;
    uint8_t* const marks = marks_;
    if (IsRun(columns, count)) {
      const uint32_t begin = static_cast<uint32_t>(columns[0] - first);
      const auto end = begin + static_cast<uint32_t>(count);
      std::memset(flags + begin, 1, end - begin);
      if constexpr (kMarked) {
        std::memset(marks + begin / kLine, 1, (end - 1) / kLine - begin / kLine + 1);
      }
      return;
    }
    for (int64_t p = 0; p < count; ++p) {
      const uint32_t column = static_cast<uint32_t>(columns[p] - first);
      flags[column] = 1;
      if constexpr (kMarked) marks[column / kLine] = 1;
    }
  }

  /// Columns seen in [0, width); forgets them.
  template <bool kMarked>
  HWY_INLINE int64_t Take(int64_t width) {
    const int64_t lines = (width + kLine - 1) / kLine;
    int64_t entries = 0;
    if constexpr (kMarked) {
      const int64_t marked = ListMarkedLines(marks_, lines, lines_);
      for (int64_t i = 0; i < marked; ++i) {
        entries += std::popcount(TakeMarks(flags_ + int64_t{lines_[i]} * kLine));
      }
    } else {
      for (int64_t i = 0; i < lines; ++i) entries += std::popcount(TakeMarks(flags_ + i * kLine));
    }
    return entries;
  }

 private:
  static constexpr int64_t kLine = DenseSpace<uint8_t>::kColumnsOfLine;

  uint8_t* flags_;
  uint8_t* marks_;
  uint32_t* lines_;
  int64_t clean_ = 0;
};

}  // namespace sparsed::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
