// Column blocks of a dense operand, small enough for a core's own cache.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/problem.h"

namespace sparsed::cpu {

/// What of a core's second-level cache a column block should fit in.
inline constexpr int64_t kSlabCacheBytes = 3 << 19;
/// A column block's row: a few vectors at the least, so that S is not read too often, and no more
/// than the kernels hold in registers.
inline constexpr int64_t kLeastSlabRow = 256;
inline constexpr int64_t kMostSlabRow = 1024;

/// Columns of a column block of an operand with `rows` rows.
inline int64_t SlabWidth(int64_t rows, size_t element_bytes) {
  const auto fits = static_cast<uint64_t>(kSlabCacheBytes / std::max<int64_t>(rows, 1));
  const int64_t row_bytes =
      std::clamp(static_cast<int64_t>(std::bit_floor(fits)), kLeastSlabRow, kMostSlabRow);
  return row_bytes / static_cast<int64_t>(element_bytes);
}

/// Bytes of a column block.
inline size_t SlabBytes(int64_t rows, size_t element_bytes) {
  return static_cast<size_t>(rows * SlabWidth(rows, element_bytes)) * element_bytes;
}

/// Whether column blocks of an operand with `rows` rows of k elements, gathered by nnz nonzeros,
/// are worth a trial: there are several, the operand exceeds the private cache, a column block does
/// not exceed it out of all proportion, and rows are used often enough to be worth the copy.
inline bool SlabsMayPay(int64_t rows, int64_t nnz, int64_t k, size_t element_bytes) {
  constexpr int64_t kLargestSlab = 32 << 20;
  constexpr int64_t kUses = 6;
  const auto size = static_cast<int64_t>(element_bytes);
  return k >= 2 * SlabWidth(rows, element_bytes) && k * size * rows > kSlabCacheBytes &&
         rows * kLeastSlabRow <= kLargestSlab && nnz >= kUses * rows;
}

/// Copies columns [column, column + cols) of `from` to rows of `width` elements.
template <typename T>
void PackSlab(const Context& context, const ConstDense& from, int64_t column, int64_t cols, T* slab,
              int64_t width) {
  const T* const begin = static_cast<const T*>(from.data) + column;
#pragma omp parallel for num_threads(context.threads) schedule(static) if (context.threads > 1)
  for (int64_t row = 0; row < from.rows; ++row) {
    std::copy_n(begin + row * from.leading_dimension, cols, slab + row * width);
  }
}

}  // namespace sparsed::cpu
