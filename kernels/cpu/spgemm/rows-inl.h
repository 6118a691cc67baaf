// Rows of C = S * T, each by the method that a kernel's policy chooses for it. Included once per
// SIMD target.
#if defined(SPARSED_SPGEMM_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPARSED_SPGEMM_ROWS_INL_H_
#undef SPARSED_SPGEMM_ROWS_INL_H_
#else
#define SPARSED_SPGEMM_ROWS_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <limits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/spgemm/dense_accumulator-inl.h"
#include "kernels/cpu/spgemm/hash_accumulator-inl.h"
#include "kernels/cpu/spgemm/jobs.h"
#include "kernels/cpu/spgemm/ranks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sparsed::cpu::HWY_NAMESPACE {

/// The products of a row of C: how many, and between which columns.
struct RowShape {
  int64_t products;
  Window window;  ///< without width if there are none
};

/// Looks at the rows of T that a row of S asks for, and fetches those that S's entries some way
/// further on will ask for: S's entries follow each other over the ends of rows, so the distance is
/// the same for short rows and long ones.
class Inspector {
 public:
  /// `values` and their size in bytes: T's, if they will be needed.
  Inspector(const CsrView& s, const CsrView& t, const void* values, size_t value_bytes,
            bool reads_ahead)
      : s_columns_(s.column_indices.data()),
        t_offsets_(t.row_offsets.data()),
        t_columns_(t.column_indices.data()),
        t_values_(static_cast<const std::byte*>(values)),
        value_bytes_(value_bytes),
        last_entry_(s.nnz() - 1),
        reads_ahead_(reads_ahead) {}

  /// The row of C whose S entries are [begin, end).
  HWY_INLINE RowShape Inspect(int64_t begin, int64_t end) const {
    int64_t products = 0;
    int32_t first = std::numeric_limits<int32_t>::max();
    int32_t last = -1;
    for (int64_t entry = begin; entry < end; ++entry) {
      if (reads_ahead_) ReadAhead(entry);
      const int32_t k = s_columns_[entry];
      const int64_t t_begin = t_offsets_[k];
      const int64_t t_end = t_offsets_[k + 1];
      if (t_begin == t_end) continue;
      products += t_end - t_begin;
      first = std::min(first, t_columns_[t_begin]);
      last = std::max(last, t_columns_[t_end - 1]);
    }
    return {products, {first, int64_t{last} - first + 1}};
  }

 private:
  HWY_INLINE void ReadAhead(int64_t entry) const {
    constexpr int64_t kAhead = 16;
    hwy::Prefetch(&t_offsets_[s_columns_[std::min(entry + 2 * kAhead, last_entry_)]]);
    const int64_t begin = t_offsets_[s_columns_[std::min(entry + kAhead, last_entry_)]];
    // The first two cache lines; the hardware follows longer rows.
    const auto* const columns = reinterpret_cast<const std::byte*>(t_columns_ + begin);
    hwy::Prefetch(columns);
    hwy::Prefetch(columns + 64);
    if (t_values_ == nullptr) return;
    const std::byte* const values = t_values_ + static_cast<size_t>(begin) * value_bytes_;
    hwy::Prefetch(values);
    hwy::Prefetch(values + 64);
  }

  const int32_t* s_columns_;
  const int64_t* t_offsets_;
  const int32_t* t_columns_;
  const std::byte* t_values_;
  size_t value_bytes_;
  int64_t last_entry_;
  bool reads_ahead_;
};

/// Where a row of T is that an entry of S multiplies.
struct Term {
  int64_t begin;
  int64_t count;
};

HWY_INLINE Term TermOf(const CsrView& s, const CsrView& t, int64_t entry) {
  const int32_t k = s.column_indices[entry];
  return {t.row_offsets[k], t.row_offsets[k + 1] - t.row_offsets[k]};
}

/// A row so long that it must look for a stop itself.
HWY_INLINE bool IsLong(int64_t products) { return products > 1 << 18; }

template <typename T, class Semiring = SumProduct<T>>
class NumericRows {
 public:
  NumericRows(const NumericJob<T>& job, std::byte* workspace)
      : NumericRows(job, Space<T>(BumpAllocator(workspace), job.capacity)) {}

  void Run(PieceQueue& pieces) {
    RowRange piece;
    const int64_t* const row_begin = job_.row_begin - job_.range.begin;
    while (pieces.Next(&piece)) {
      for (int64_t row = piece.begin; row < piece.end; ++row) {
        if (pieces.stopped()) return;
        const int64_t at = row_begin[row];
        const RowSlot<T> slot = {job_.columns + at, job_.values + at, row_begin[piece.end] - at};
        const int64_t nnz = Row(pieces, s_.row_offsets[row], s_.row_offsets[row + 1], slot);
        if (nnz < 0) return;
        job_.row_nnz[row - job_.range.begin] = nnz;
      }
    }
  }

 private:
  NumericRows(const NumericJob<T>& job, const Space<T>& space)
      : job_(job),
        s_(job.s),
        t_(job.t),
        t_columns_(job.t.column_indices.data()),
        inspector_(job.s, job.t, job.t_values, sizeof(T), job.reads_ahead),
        dense_(space.dense),
        hash_(space.hash) {}

  /// The row whose S entries are [begin, end). Returns its entries; -1 if it was stopped.
  HWY_INLINE int64_t Row(const PieceQueue& pieces, int64_t begin, int64_t end,
                         const RowSlot<T>& slot) {
    const auto [products, window] = inspector_.Inspect(begin, end);
    if (products == 0) return 0;
    if (end - begin == 1) return Scale(begin, slot);
    switch (job_.policy.Choose(products, window.width)) {
      case RowMethod::kRanked:
        ranked_.Begin(window.first);
        for (int64_t entry = begin; entry < end; ++entry) {
          const Term term = TermOf(s_, t_, entry);
          ranked_.Add(job_.s_values[entry], t_columns_ + term.begin, job_.t_values + term.begin,
                      term.count, t_.nnz() - term.begin);
        }
        return ranked_.Take(slot);
      case RowMethod::kMarkedWindow:
        return DenseRow<true>(pieces, IsLong(products), begin, end, window, slot);
      case RowMethod::kFullWindow:
        return DenseRow<false>(pieces, IsLong(products), begin, end, window, slot);
      case RowMethod::kHash:
        return HashRow(pieces, products, begin, end, window, slot);
    }
    return 0;
  }

  template <bool kMarked>
  HWY_INLINE int64_t DenseRow(const PieceQueue& pieces, bool is_long, int64_t begin, int64_t end,
                              const Window& window, const RowSlot<T>& slot) {
    dense_.Reserve(window.width);
    for (int64_t entry = begin; entry < end; ++entry) {
      if (HWY_UNLIKELY(is_long) && pieces.stopped()) return -1;
      const Term term = TermOf(s_, t_, entry);
      dense_.template Add<kMarked>(job_.s_values[entry], t_columns_ + term.begin,
                                   job_.t_values + term.begin, term.count, window.first);
    }
    return dense_.template Take<kMarked>(window.first, window.width, slot);
  }

  HWY_INLINE int64_t HashRow(const PieceQueue& pieces, int64_t products, int64_t begin, int64_t end,
                             const Window& window, const RowSlot<T>& slot) {
    hash_.Reserve(std::min(products, window.width));
    for (int64_t entry = begin; entry < end; ++entry) {
      if (HWY_UNLIKELY(IsLong(products)) && pieces.stopped()) return -1;
      const Term term = TermOf(s_, t_, entry);
      hash_.Add(job_.s_values[entry], t_columns_ + term.begin, job_.t_values + term.begin,
                term.count);
    }
    return hash_.Take(slot);
  }

  /// A row with one term is that row of T, scaled.
  HWY_INLINE int64_t Scale(int64_t entry, const RowSlot<T>& slot) {
    const Term term = TermOf(s_, t_, entry);
    std::copy(t_columns_ + term.begin, t_columns_ + term.begin + term.count, slot.columns);
    const T scale = job_.s_values[entry];
    for (int64_t p = 0; p < term.count; ++p) {
      slot.values[p] = Semiring::Multiply(scale, job_.t_values[term.begin + p]);
    }
    return term.count;
  }

  const NumericJob<T> job_;
  const CsrView s_;
  const CsrView t_;
  const int32_t* const t_columns_;
  const Inspector inspector_;
  RankedRow<T, Semiring> ranked_;
  DenseAccumulator<T, Semiring> dense_;
  HashAccumulator<T, Semiring> hash_;
};

class SymbolicRows {
 public:
  SymbolicRows(const SymbolicJob& job, std::byte* workspace)
      : SymbolicRows(job, Space<uint8_t>(BumpAllocator(workspace), job.capacity)) {}

  void Run(PieceQueue& pieces) {
    RowRange piece;
    while (pieces.Next(&piece)) {
      for (int64_t row = piece.begin; row < piece.end; ++row) {
        if (pieces.stopped()) return;
        const int64_t nnz = Row(pieces, s_.row_offsets[row], s_.row_offsets[row + 1]);
        if (nnz < 0) return;
        job_.row_nnz[row - job_.range.begin] = nnz;
      }
    }
  }

 private:
  SymbolicRows(const SymbolicJob& job, const Space<uint8_t>& space)
      : job_(job),
        s_(job.s),
        t_(job.t),
        t_columns_(job.t.column_indices.data()),
        inspector_(job.s, job.t, nullptr, 0, job.reads_ahead),
        dense_(space.dense),
        hash_(space.hash) {}

  /// As NumericRows::Row.
  HWY_INLINE int64_t Row(const PieceQueue& pieces, int64_t begin, int64_t end) {
    const auto [products, window] = inspector_.Inspect(begin, end);
    if (products == 0 || end - begin == 1) return products;
    switch (job_.policy.Choose(products, window.width)) {
      case RowMethod::kRanked:
        ranked_.Begin(window.first);
        for (int64_t entry = begin; entry < end; ++entry) {
          const Term term = TermOf(s_, t_, entry);
          ranked_.Add(t_columns_ + term.begin, term.count, t_.nnz() - term.begin);
        }
        ranked_.Rank();
        return ranked_.entries();
      case RowMethod::kMarkedWindow:
        return DenseRow<true>(pieces, IsLong(products), begin, end, window);
      case RowMethod::kFullWindow:
        return DenseRow<false>(pieces, IsLong(products), begin, end, window);
      case RowMethod::kHash:
        hash_.Reserve(std::min(products, window.width));
        for (int64_t entry = begin; entry < end; ++entry) {
          if (HWY_UNLIKELY(IsLong(products)) && pieces.stopped()) return -1;
          const Term term = TermOf(s_, t_, entry);
          hash_.AddColumns(t_columns_ + term.begin, term.count);
        }
        return hash_.TakeCount();
    }
    return 0;
  }

  template <bool kMarked>
  HWY_INLINE int64_t DenseRow(const PieceQueue& pieces, bool is_long, int64_t begin, int64_t end,
                              const Window& window) {
    dense_.Reserve(window.width);
    for (int64_t entry = begin; entry < end; ++entry) {
      if (HWY_UNLIKELY(is_long) && pieces.stopped()) return -1;
      const Term term = TermOf(s_, t_, entry);
      dense_.template Add<kMarked>(t_columns_ + term.begin, term.count, window.first);
    }
    return dense_.template Take<kMarked>(window.width);
  }

  const SymbolicJob job_;
  const CsrView s_;
  const CsrView t_;
  const int32_t* const t_columns_;
  const Inspector inspector_;
  RankedColumns ranked_;
  DenseCounter dense_;
  HashAccumulator<uint8_t> hash_;
};

}  // namespace sparsed::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
