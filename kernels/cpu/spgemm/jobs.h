// What the threads of an SpGEMM kernel work from, and how a kernel chooses a method for a row.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/spgemm/piece_queue.h"
#include "kernels/cpu/spgemm/workspace.h"
#include "kernels/formats/csr.h"
#include "kernels/problem.h"

namespace sparsed::cpu {

/// Columns [first, first + width).
struct Window {
  int32_t first;
  int64_t width;
};

/// How a row of C is computed.
enum class RowMethod : uint8_t {
  kRanked,        ///< gather its few products and sort them
  kMarkedWindow,  ///< dense window, touched lines are marked
  kFullWindow,    ///< dense window, all lines are looked at
  kHash,          ///< hash table, then sort
};

/// What distinguishes the kernels: when a row takes which method. Widths are those of the row's
/// window: its last column minus its first.
struct RowPolicy {
  /// Rows of up to so many products (at most kMaxRanked) are ranked, unless they are narrow.
  int64_t ranked_products;
  int64_t narrow_width;
  /// Dense windows of up to this width are always good ...
  int64_t cached_width;
  /// ... and wider ones if they have a product for so many columns. The rest is hashed.
  int64_t columns_of_product;

  /// Columns in so few lines that looking at them all costs less than marks.
  static constexpr int64_t kFewLines = 128;

  RowMethod Choose(int64_t products, int64_t width) const {
    if (products <= ranked_products && width > narrow_width) return RowMethod::kRanked;
    if (width > cached_width && width > products * columns_of_product) return RowMethod::kHash;
    return width <= std::max(products, kFewLines) ? RowMethod::kFullWindow
                                                  : RowMethod::kMarkedWindow;
  }
};

/// The largest rows that a thread's accumulators must take.
struct Capacity {
  int64_t window_columns;
  int64_t hash_entries;
};

/// One thread's workspace.
template <typename T>
struct Space {
  Space(BumpAllocator&& allocator, const Capacity& capacity)
      : dense(allocator, capacity.window_columns),
        hash(allocator, capacity.hash_entries),
        bytes(allocator.bytes()) {}

  DenseSpace<T> dense;
  HashSpace<T> hash;
  size_t bytes;
};

/// SpgemmKernel::numeric's arguments, typed.
template <typename T>
struct NumericJob {
  RowPolicy policy;
  Capacity capacity;
  Semiring semiring;
  bool reads_ahead;  ///< T's rows don't come from the cache by themselves
  CsrView s;
  const T* s_values;
  CsrView t;
  const T* t_values;
  RowRange range;
  const int64_t* row_begin;  ///< of range.begin, and so on
  int32_t* columns;
  T* values;
  int64_t* row_nnz;  ///< of range.begin, and so on
};

/// SpgemmKernel::symbolic's arguments.
struct SymbolicJob {
  RowPolicy policy;
  Capacity capacity;
  bool reads_ahead;  ///< T's rows don't come from the cache by themselves
  CsrView s;
  CsrView t;
  RowRange range;
  int64_t* row_nnz;  ///< of range.begin, and so on
};

/// What each thread runs: takes pieces until there are none left or it is stopped. `workspace` is
/// the thread's own; its contents don't matter.
void RunRows(const NumericJob<float>& job, std::byte* workspace, PieceQueue& pieces);
void RunRows(const NumericJob<double>& job, std::byte* workspace, PieceQueue& pieces);
void RunRows(const SymbolicJob& job, std::byte* workspace, PieceQueue& pieces);
/// As RunRows, of the semirings besides sums of products.
void RunSemiringRows(const NumericJob<float>& job, std::byte* workspace, PieceQueue& pieces);
void RunSemiringRows(const NumericJob<double>& job, std::byte* workspace, PieceQueue& pieces);

}  // namespace sparsed::cpu
