#include "kernels/spgemm_blocks.h"

#include <algorithm>
#include <cstring>

namespace sparsed {
namespace {

/// Moves rows to the front of the arrays that they are in.
template <typename T>
void MoveInPlace(const RowBlock& block, int32_t* columns, T* values) {
  int64_t to = 0;
  for (size_t row = 0; row < block.row_nnz.size(); ++row) {
    const int64_t from = block.row_begin[row];
    const auto nnz = static_cast<size_t>(block.row_nnz[row]);
    if (from != to) {
      std::memmove(columns + to, columns + from, nnz * sizeof(int32_t));
      std::memmove(values + to, values + from, nnz * sizeof(T));
    }
    to += block.row_nnz[row];
  }
}

/// Copies rows [first, last), which go to positions [to, to_end).
template <typename T>
void CopyRows(const RowBlock& block, size_t first, size_t last, int64_t to, int64_t to_end,
              int32_t* columns, T* values) {
  // Short rows are copied by pieces of a fixed size as long as what is copied too much is replaced
  // by the next rows.
  constexpr int64_t kPiece = 16;
  const int64_t from_end = block.row_begin[block.row_nnz.size()];
  const auto* from_values = static_cast<const T*>(block.values);
  for (size_t row = first; row < last; ++row) {
    const int64_t from = block.row_begin[row];
    const int64_t nnz = block.row_nnz[row];
    const int64_t room = std::min(from_end - from, to_end - to);
    if (nnz <= 8 * kPiece && nnz + kPiece <= room) {
      for (int64_t i = 0; i < nnz; i += kPiece) {
        std::memcpy(columns + to + i, block.column_indices + from + i, kPiece * sizeof(int32_t));
        std::memcpy(values + to + i, from_values + from + i, kPiece * sizeof(T));
      }
    } else {
      std::memcpy(columns + to, block.column_indices + from,
                  static_cast<size_t>(nnz) * sizeof(int32_t));
      std::memcpy(values + to, from_values + from, static_cast<size_t>(nnz) * sizeof(T));
    }
    to += nnz;
  }
}

template <typename T>
void Compact(const RowBlock& block, int threads, int64_t total, int32_t* columns, T* values) {
  if (columns == block.column_indices) return MoveInPlace<T>(block, columns, values);
    // Each thread copies the rows that begin in its share of the result.
#pragma omp parallel for num_threads(threads) schedule(static, 1) if (threads > 1)
  for (int thread = 0; thread < threads; ++thread) {
    const int64_t share_begin = total * thread / threads;
    const int64_t share_end = total * (thread + 1) / threads;
    size_t first = 0;
    int64_t to = 0;
    while (first < block.row_nnz.size() && to < share_begin) to += block.row_nnz[first++];
    size_t last = first;
    int64_t to_end = to;
    while (last < block.row_nnz.size() && to_end < share_end) to_end += block.row_nnz[last++];
    CopyRows<T>(block, first, last, to, to_end, columns, values);
  }
}

}  // namespace

RowRange NextRowBlock(std::span<const int64_t> row_bounds, int64_t begin, int64_t max_entries) {
  const auto rows = static_cast<int64_t>(row_bounds.size());
  const int64_t last = begin + std::min(rows - begin, kMaxBlockRows);
  int64_t end = begin;
  int64_t entries = 0;
  while (end < last && (end == begin || row_bounds[end] <= max_entries - entries)) {
    entries += row_bounds[end++];
  }
  return {begin, end};
}

int64_t PlaceRowBlock(std::span<const int64_t> row_bounds, RowRange block,
                      std::span<int64_t> row_begin) {
  int64_t position = 0;
  for (int64_t row = block.begin; row < block.end; ++row) {
    row_begin[row - block.begin] = position;
    position += row_bounds[row];
  }
  row_begin[block.end - block.begin] = position;
  return position;
}

int64_t CompactRowBlock(const RowBlock& block, int threads, int32_t* column_indices, void* values) {
  int64_t total = 0;
  for (const int64_t nnz : block.row_nnz) total += nnz;
  VisitBits(block.type, [&]<typename Bits>(Bits) {
    Compact(block, threads, total, column_indices, static_cast<Bits*>(values));
  });
  return total;
}

}  // namespace sparsed
