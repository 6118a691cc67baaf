// C = S * T by merging: the rows of T that a row of S asks for are sorted, and a heap of where each
// of them stands hands out their products in C's order (Azad et al., "Exploiting multiple levels of
// parallelism in sparse matrix-matrix multiplication", 2016).
//
// Layout in: plain CSR of both. A row of C belongs to one thread; threads take pieces of about
// equal numbers of entries. Workspace: for each thread a heap of the longest row of S. Touches
// nothing but its operands and its result, whatever the width; a product costs the logarithm of
// the row's terms in mistaken branches. Wins where rows of S have two or three entries.
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "kernels/cpu/spgemm/launch.h"
#include "kernels/cpu/spgemm/spgemm.h"
#include "kernels/cpu/spgemm/workspace.h"

namespace sparsed::cpu {
namespace {

/// A thread's workspace.
template <typename T>
struct HeapSpace {
  /// What is left of a row of T, and the entry of S that multiplies it.
  struct Term {
    const int32_t* columns;
    const T* values;
    int64_t left;
    T scale;
  };

  HeapSpace(BumpAllocator&& allocator, int64_t most_terms)
      : terms(allocator.Take<Term>(most_terms)),
        heap(allocator.Take<uint64_t>(most_terms)),
        bytes(allocator.bytes()) {}

  Term* terms;
  uint64_t* heap;  ///< next column << 32 | term, so that equal columns come in S's order
  size_t bytes;
};

/// Puts `key` where it belongs below the root of a heap of `count`, the root being free.
void SiftDown(uint64_t* heap, int64_t count, int64_t at, uint64_t key) {
  for (int64_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
    child += child + 1 < count && heap[child + 1] < heap[child];
    if (key <= heap[child]) break;
    heap[std::exchange(at, child)] = heap[child];
  }
  heap[at] = key;
}

template <typename T>
class MergedRows {
 public:
  MergedRows(const RowJob<T>& job, const HeapSpace<T>& space)
      : job_(job), terms_(space.terms), heap_(space.heap) {}

  void Run(PieceQueue& pieces) {
    RowRange piece;
    while (pieces.Next(&piece)) {
      for (int64_t row = piece.begin; row < piece.end; ++row) {
        if (pieces.stopped()) return;
        const int64_t nnz = Row(pieces, row);
        if (nnz < 0) return;
        job_.row_nnz[row] = nnz;
      }
    }
  }

 private:
  /// Fills the heap with the row's terms; how many there are.
  int64_t Begin(int64_t row) {
    int64_t count = 0;
    for (int64_t p = job_.s.row_offsets[row]; p < job_.s.row_offsets[row + 1]; ++p) {
      const int32_t k = job_.s.column_indices[p];
      const int64_t begin = job_.t.row_offsets[k];
      const int64_t left = job_.t.row_offsets[k + 1] - begin;
      if (left == 0) continue;
      terms_[count] = {job_.t.column_indices.data() + begin, job_.t_values + begin, left,
                       job_.s_values[p]};
      heap_[count] = KeyOf(count);
      ++count;
    }
    for (int64_t at = count / 2 - 1; at >= 0; --at) SiftDown(heap_, count, at, heap_[at]);
    return count;
  }

  uint64_t KeyOf(int64_t term) const {
    return static_cast<uint64_t>(*terms_[term].columns) << 32 | static_cast<uint64_t>(term);
  }

  /// The row's entries; -1 if it was stopped.
  int64_t Row(const PieceQueue& pieces, int64_t row) {
    constexpr int64_t kEntriesBetweenLooks = 1 << 18;
    int32_t* const columns = job_.columns + job_.row_begin[row];
    T* const values = job_.values + job_.row_begin[row];
    int64_t count = Begin(row);
    int64_t entries = 0;
    int32_t last = -1;
    for (int64_t products = 1; count > 0; ++products) {
      if (products % kEntriesBetweenLooks == 0 && pieces.stopped()) return -1;
      const auto column = static_cast<int32_t>(heap_[0] >> 32);
      const auto at = static_cast<int64_t>(static_cast<uint32_t>(heap_[0]));
      auto& term = terms_[at];
      const T product = term.scale * *term.values;
      if (column == last) {
        values[entries - 1] += product;
      } else {
        columns[entries] = last = column;
        values[entries++] = product;
      }
      ++term.columns;
      ++term.values;
      const uint64_t next = --term.left > 0 ? KeyOf(at) : heap_[--count];
      SiftDown(heap_, count, 0, next);
    }
    return entries;
  }

  const RowJob<T> job_;
  typename HeapSpace<T>::Term* const terms_;
  uint64_t* const heap_;
};

template <typename T>
struct HeapPhases {
  static size_t Workspace(const SpgemmArguments& arguments) {
    return BytesFor(LongestRow(arguments.left, {0, arguments.left.rows}));
  }

  static absl::Status Numeric(const NumericCall& call) {
    const int64_t most_terms = LongestRow(call.arguments.left, call.range);
    const size_t bytes = BytesFor(most_terms);
    return ShareRows(call, [&](int thread, PieceQueue& pieces) {
      std::byte* const workspace = call.context.workspace.data() + bytes * thread;
      MergedRows<T>(RowJob<T>(call), HeapSpace<T>(BumpAllocator(workspace), most_terms))
          .Run(pieces);
    });
  }

 private:
  static size_t BytesFor(int64_t most_terms) {
    return HeapSpace<T>(BumpAllocator(nullptr), most_terms).bytes;
  }
};

}  // namespace

SpgemmKernel HeapSpgemm() { return MakeSpgemmKernel<HeapPhases>("cpu.csr.heap"); }

}  // namespace sparsed::cpu
