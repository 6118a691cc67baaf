// Operands of the DIA method.
#pragma once

#include <cstdint>

#include "kernels/cpu/spgemm/launch.h"
#include "kernels/cpu/spgemm/piece_queue.h"
#include "kernels/formats/diagonals.h"
#include "kernels/scratch.h"

namespace sparsed::cpu {

/// Rows of C that are computed at once: a bit of a word each.
inline constexpr int64_t kDiagonalRows = DiagonalsView::kMargin;
static_assert(kDiagonalRows == 64);

/// One diagonal of S times one of T: both as positions in their lists.
struct DiagonalPair {
  int32_t s, t;
};

/// A product's diagonals. A diagonal is called by its columns minus its rows.
struct ProductDiagonals {
  Array s_offsets;  ///< i32, ascending; so are T's
  int64_t s_count = 0, c_count = 0;
  Scratch<int32_t> c_offsets;  ///< ascending
  /// Diagonal c of C is the sum of pairs [pair_begin[c], pair_begin[c + 1]), by S's diagonal.
  Scratch<DiagonalPair> pairs;
  Scratch<int32_t> pair_begin;
  /// For each thread what DiagonalSpace cuts up.
  Buffer spaces;
  size_t space_bytes = 0;
};

/// ... and T by diagonals.
template <typename T>
struct DiagonalOperands {
  const ProductDiagonals& product;
  const int32_t* s_offsets;
  DiagonalsView t;
  const T* t_values;
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
