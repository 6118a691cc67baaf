// Operands of the DIA method.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/spgemm/launch.h"
#include "kernels/cpu/spgemm/piece_queue.h"
#include "kernels/scratch.h"

namespace sparsed::cpu {

/// Rows of C that are computed at once: a bit of a word each.
inline constexpr int64_t kDiagonalRows = 64;

/// One diagonal of S times one of T: both as positions in their lists.
struct DiagonalPair {
  int32_t s, t;
};

/// A product's diagonals. A diagonal is called by its columns minus its rows.
struct ProductDiagonals {
  /// Ascending.
  Scratch<int32_t> s_offsets, t_offsets, c_offsets;
  int64_t s_count = 0, t_count = 0, c_count = 0;  ///< of them
  /// Diagonal c of C is the sum of pairs [pair_begin[c], pair_begin[c + 1]), by S's diagonal.
  Scratch<DiagonalPair> pairs;
  Scratch<int32_t> pair_begin;
};

/// ... and T by diagonals.
template <typename T>
struct DiagonalOperands : ProductDiagonals {
  /// Row r of T's diagonal d at d * t_stride + kDiagonalRows + r, so that kDiagonalRows rows may be
  /// read from any row that is not further out than that.
  Scratch<T> t_values;
  int64_t t_stride = 0;
  /// Whether it is an entry of T: bit (kDiagonalRows + r) % 64 of word (kDiagonalRows + r) / 64 of
  /// t_words words a diagonal.
  Scratch<uint64_t> t_bits;
  int64_t t_words = 0;
  /// For each thread what DiagonalSpace cuts up.
  Buffer spaces;
  size_t space_bytes = 0;
};

/// A thread's room for kDiagonalRows rows of S and C.
template <typename T>
struct DiagonalSpace {
  DiagonalSpace(BumpAllocator&& allocator, int64_t s_count, int64_t c_count)
      : s_values(allocator.Take<T>(s_count * kDiagonalRows)),
        s_bits(allocator.Take<uint64_t>(s_count)),
        c_values(allocator.Take<T>(RoundUp(c_count, kDiagonalRows) * kDiagonalRows)),
        c_bits(allocator.Take<uint64_t>(RoundUp(c_count, kDiagonalRows))),
        row_bits(allocator.Take<uint64_t>(RoundUp(c_count, kDiagonalRows))),
        bytes(allocator.bytes()) {}

  T* s_values;         ///< by diagonal, then row
  uint64_t* s_bits;    ///< for each diagonal, a bit for each row: is it an entry
  T* c_values;         ///< as s_values
  uint64_t* c_bits;    ///< as s_bits
  uint64_t* row_bits;  ///< c_bits by groups of 64 diagonals, in each by row, a bit a diagonal
  size_t bytes;
};

/// What each thread of the DIA method runs.
void RunDiagonals(const RowJob<float>& job, const DiagonalOperands<float>& operands, int thread,
                  PieceQueue& pieces);
void RunDiagonals(const RowJob<double>& job, const DiagonalOperands<double>& operands, int thread,
                  PieceQueue& pieces);

}  // namespace sparsed::cpu
