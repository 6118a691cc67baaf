// The threads' side of the DIA method, compiled for each SIMD target and chosen at run time.
#include "kernels/cpu/simd.h"
#include "kernels/cpu/spgemm/diagonals.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/spgemm/diagonal_workers.cc"
#include "hwy/foreach_target.h"
// foreach_target comes first.
#include <algorithm>

#include "hwy/highway.h"
#include "kernels/cpu/spgemm/emit-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sparsed::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Turns a square of bits on its diagonal: bit j of word i becomes bit i of word j ("Hacker's
/// Delight", 7-3, for 64 bits).
HWY_INLINE void TransposeBits(uint64_t* words) {
  uint64_t mask = 0x00000000FFFFFFFF;
  for (int64_t width = 32; width > 0; width >>= 1, mask ^= mask << width) {
    for (int64_t i = 0; i < 64; i = (i + width + 1) & ~width) {
      const uint64_t swapped = (words[i] >> width ^ words[i + width]) & mask;
      words[i] ^= swapped << width;
      words[i + width] ^= swapped;
    }
  }
}

template <class D>
HWY_INLINE hn::Mask<D> LanesOf(D d, uint64_t bits) {
  uint8_t bytes[8];
  hwy::CopyBytes<8>(&bits, bytes);
  return hn::LoadMaskBits(d, bytes);
}

template <typename T>
class DiagonalRows {
 public:
  DiagonalRows(const RowJob<T>& job, const DiagonalOperands<T>& operands, int thread)
      : job_(job),
        operands_(operands),
        space_(BumpAllocator(const_cast<std::byte*>(operands.product.spaces.data()) +
                             operands.product.space_bytes * static_cast<size_t>(thread)),
               operands.product.s_count, operands.product.c_count) {
    // What is no entry is multiplied, too, and forgotten: it should be no denormal.
    std::fill(space_.s_values, space_.s_values + operands.product.s_count * kDiagonalRows, T{0});
  }

  void Run(PieceQueue& pieces) {
    RowRange piece;
    while (pieces.Next(&piece)) {
      for (int64_t row = piece.begin; row < piece.end; row += kDiagonalRows) {
        if (pieces.stopped()) return;
        const int64_t count = std::min(kDiagonalRows, piece.end - row);
        LayOut(row, count);
        if (!Multiply(row, pieces)) return;
        for (int64_t i = 0; i < count; ++i) {
          job_.row_nnz[row + i] = Emit(row, i, job_.Slot(row + i, piece.end));
        }
      }
    }
  }

 private:
  using D = hn::CappedTag<T, 16>;
  static constexpr int64_t kLanes = hn::MaxLanes(D());
  static constexpr int64_t kVectors = kDiagonalRows / kLanes;
  static constexpr uint64_t kAllRows = ~uint64_t{0};

  /// Rows [row, row + count) of S by diagonal.
  HWY_INLINE void LayOut(int64_t row, int64_t count) {
    const CsrView& s = job_.s;
    const int64_t diagonals = operands_.product.s_count;
    const int32_t* const offsets = operands_.s_offsets;
    std::fill(space_.s_bits, space_.s_bits + diagonals, uint64_t{0});
    uint64_t full_rows = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t begin = s.row_offsets[row + i];
      const int64_t end = s.row_offsets[row + i + 1];
      T* const values = space_.s_values + i;
      if (end - begin == diagonals) {
        full_rows |= uint64_t{1} << i;
        for (int64_t d = 0; d < diagonals; ++d) {
          values[d * kDiagonalRows] = job_.s_values[begin + d];
        }
        continue;
      }
      int64_t d = 0;
      for (int64_t entry = begin; entry < end; ++entry, ++d) {
        const auto offset = static_cast<int32_t>(s.column_indices[entry] - (row + i));
        while (offsets[d] < offset) ++d;
        values[d * kDiagonalRows] = job_.s_values[entry];
        space_.s_bits[d] |= uint64_t{1} << i;
      }
    }
    for (int64_t d = 0; d < diagonals; ++d) space_.s_bits[d] |= full_rows;
  }

  /// T's presence bits of 64 rows of diagonal `d`, from position `at` on.
  HWY_INLINE uint64_t BitsOfT(int64_t d, int64_t at) const {
    const uint64_t* const words = reinterpret_cast<const uint64_t*>(operands_.t.present.data()) +
                                  d * operands_.t.words + at / 64;
    const int shift = static_cast<int>(at % 64);
    return words[0] >> shift | words[1] << 1 << (63 - shift);
  }

  /// C's diagonals for the rows that are laid out. False if it was stopped.
  HWY_INLINE bool Multiply(int64_t row, const PieceQueue& pieces) {
    full_ = true;
    for (int64_t c = 0; c < operands_.product.c_count; ++c) {
      if (HWY_UNLIKELY(c % 1024 == 1023) && pieces.stopped()) return false;
      const uint64_t bits = MultiplyDiagonal(row, c);
      space_.c_bits[c] = bits;
      full_ &= bits == kAllRows;
    }
    if (full_) return true;
    const int64_t end = RoundUp(operands_.product.c_count, kDiagonalRows);
    std::copy(space_.c_bits, space_.c_bits + operands_.product.c_count, space_.row_bits);
    std::fill(space_.row_bits + operands_.product.c_count, space_.row_bits + end, uint64_t{0});
    for (int64_t group = 0; group < end; group += 64) TransposeBits(space_.row_bits + group);
    return true;
  }

  /// Sums a diagonal over its pairs. Which rows have an entry there.
  HWY_INLINE uint64_t MultiplyDiagonal(int64_t row, int64_t c) {
    const D d;
    hn::Vec<D> sums[kVectors];
    for (int64_t v = 0; v < kVectors; ++v) sums[v] = hn::Zero(d);
    uint64_t present = 0;
    for (int32_t p = operands_.product.pair_begin[c]; p < operands_.product.pair_begin[c + 1];
         ++p) {
      const DiagonalPair pair = operands_.product.pairs[p];
      const uint64_t s_bits = space_.s_bits[pair.s];
      if (s_bits == 0) continue;
      // At least one of these rows is T's, so that none is further out than may be read.
      const int64_t at = row + operands_.s_offsets[pair.s] + kDiagonalRows;
      const uint64_t bits = s_bits & BitsOfT(pair.t, at);
      if (bits == 0) continue;
      present |= bits;
      const T* const s_values = space_.s_values + pair.s * kDiagonalRows;
      const T* const t_values = operands_.t_values + pair.t * operands_.t.stride + at;
      if (HWY_LIKELY(bits == kAllRows)) {
        for (int64_t v = 0; v < kVectors; ++v) {
          sums[v] = hn::MulAdd(hn::Load(d, s_values + v * kLanes),
                               hn::LoadU(d, t_values + v * kLanes), sums[v]);
        }
      } else {
        for (int64_t v = 0; v < kVectors; ++v) {
          const auto sum = hn::MulAdd(hn::Load(d, s_values + v * kLanes),
                                      hn::LoadU(d, t_values + v * kLanes), sums[v]);
          sums[v] = hn::IfThenElse(LanesOf(d, bits >> (v * kLanes)), sum, sums[v]);
        }
      }
    }
    T* const values = space_.c_values + c * kDiagonalRows;
    for (int64_t v = 0; v < kVectors; ++v) hn::Store(sums[v], d, values + v * kLanes);
    return present;
  }

  /// Writes row `row + i`, whose sums lie side by side in the diagonals. Returns its entries.
  HWY_INLINE int64_t Emit(int64_t row, int64_t i, const RowSlot<T>& slot) const {
    const D d;
    const hn::RebindToSigned<D> di;
    const hn::Rebind<int32_t, D> d32;
    const hn::RebindToUnsigned<D> du;
    using Index = hn::TFromD<decltype(di)>;
    const auto steps = hn::Mul(hn::Iota(di, 0), hn::Set(di, static_cast<Index>(kDiagonalRows)));
    const auto at = hn::Set(di, static_cast<Index>(row + i));
    int64_t entries = 0;
    for (int64_t group = 0; group < operands_.product.c_count; group += 64) {
      const int64_t end = std::min(group + 64, operands_.product.c_count);
      const uint64_t bits = full_ ? kAllRows : space_.row_bits[group + i];
      for (int64_t c = group; c < end; c += kLanes) {
        uint64_t lanes = bits >> (c - group);
        if (end - c < 64) lanes &= (uint64_t{1} << (end - c)) - 1;
        if (lanes == 0) continue;
        const auto values = hn::GatherIndex(d, space_.c_values + c * kDiagonalRows + i, steps);
        const int32_t* const c_offsets = operands_.product.c_offsets.data() + c;
        hn::Vec<decltype(di)> offsets;
        if constexpr (sizeof(T) == 4) {
          offsets = hn::LoadU(di, c_offsets);
        } else {
          offsets = hn::PromoteTo(di, hn::LoadU(d32, c_offsets));
        }
        const auto columns = hn::BitCast(du, hn::Add(at, offsets));
        entries += EmitLanes(d, values, columns, LanesOf(d, lanes), entries, slot);
      }
    }
    return entries;
  }

  const RowJob<T> job_;
  const DiagonalOperands<T>& operands_;
  const DiagonalSpace<T> space_;
  bool full_ = false;  ///< all 64 rows have an entry in all diagonals
};

void DiagonalsF32(const RowJob<float>& job, const DiagonalOperands<float>& operands, int thread,
                  PieceQueue& pieces) {
  DiagonalRows<float>(job, operands, thread).Run(pieces);
}

void DiagonalsF64(const RowJob<double>& job, const DiagonalOperands<double>& operands, int thread,
                  PieceQueue& pieces) {
  DiagonalRows<double>(job, operands, thread).Run(pieces);
}

}  // namespace sparsed::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparsed::cpu {
namespace {

HWY_EXPORT(DiagonalsF32);
HWY_EXPORT(DiagonalsF64);

}  // namespace

void RunDiagonals(const RowJob<float>& job, const DiagonalOperands<float>& operands, int thread,
                  PieceQueue& pieces) {
  HWY_DYNAMIC_DISPATCH(DiagonalsF32)(job, operands, thread, pieces);
}

void RunDiagonals(const RowJob<double>& job, const DiagonalOperands<double>& operands, int thread,
                  PieceQueue& pieces) {
  HWY_DYNAMIC_DISPATCH(DiagonalsF64)(job, operands, thread, pieces);
}

}  // namespace sparsed::cpu
#endif
