// C = S * T with rows of T of one length (the ELL method of Xie et al., "A Pattern-Based SpGEMM
// Library for Multi-Core and Many-Core Architectures", Algorithm 4): a term is found without
// reading where its row begins, and fetched ahead by its number alone.
//
// The paper counts rows with a bitmap and sums them in a hash table that lies in C's own memory, to
// be sorted in the end. Here rows are summed as row groups' are, ranked or in a dense window, which
// come out sorted: what the format brings is the way to T's rows.
//
// Layout in: plain CSR of S, "ell" of T. A row of C belongs to one thread.
// Workspace: for each thread a dense window of T's columns. Wins where rows are short, of one
// length or nearly so, and scattered over more than the caches hold.
#include "kernels/cpu/spgemm/even_rows.h"

#include "kernels/cpu/simd.h"
#include "kernels/cpu/spgemm/spgemm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/spgemm/even_rows.cc"
#include "hwy/foreach_target.h"
// foreach_target comes first.
#include <algorithm>
#include <limits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/spgemm/dense_accumulator-inl.h"
#include "kernels/cpu/spgemm/ranks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sparsed::cpu::HWY_NAMESPACE {

template <typename T>
class EvenRowsProduct {
 public:
  EvenRowsProduct(const RowJob<T>& job, const EvenRows<T>& rows, std::byte* workspace)
      : job_(job),
        rows_(rows),
        lengths_(rows.lengths.empty() ? nullptr : rows.lengths.data()),
        policy_(RowGroupsMethod({job.s, job.s_values, job.t, job.t_values}).policy),
        dense_(SpaceOf(job.t, workspace)) {}

  void Run(PieceQueue& pieces) {
    RowRange piece;
    while (pieces.Next(&piece)) {
      for (int64_t row = piece.begin; row < piece.end; ++row) {
        if (pieces.stopped()) return;
        const int64_t nnz = Row(pieces, job_.s.row_offsets[row], job_.s.row_offsets[row + 1],
                                job_.Slot(row, piece.end));
        if (nnz < 0) return;
        job_.row_nnz[row] = nnz;
      }
    }
  }

 private:
  struct Term {
    const int32_t* columns;
    const T* values;
    int64_t count;
  };

  static DenseSpace<T> SpaceOf(const CsrView& t, std::byte* workspace) {
    BumpAllocator allocator(workspace);
    return DenseSpace<T>(allocator, t.cols);
  }

  HWY_INLINE Term TermOf(int64_t entry) const {
    const int32_t k = job_.s.column_indices[entry];
    const int64_t begin = k * rows_.width;
    return {rows_.columns.data() + begin, rows_.values + begin,
            lengths_ == nullptr ? rows_.width : lengths_[k]};
  }

  HWY_INLINE void ReadAhead(int64_t entry) const {
    constexpr int64_t kAhead = 32;
    const int64_t last = job_.s.nnz() - 1;
    const int32_t k = job_.s.column_indices[std::min(entry + kAhead, last)];
    const int64_t begin = k * rows_.width;
    hwy::Prefetch(rows_.columns.data() + begin);
    hwy::Prefetch(rows_.values + begin);
    if (lengths_ != nullptr) hwy::Prefetch(lengths_ + k);
  }

  /// The row whose S entries are [begin, end). Returns its entries; -1 if it was stopped.
  HWY_INLINE int64_t Row(const PieceQueue& pieces, int64_t begin, int64_t end,
                         const RowSlot<T>& slot) {
    int64_t products = 0;
    int32_t first = std::numeric_limits<int32_t>::max();
    int32_t last = -1;
    for (int64_t entry = begin; entry < end; ++entry) {
      ReadAhead(entry);
      const Term term = TermOf(entry);
      if (term.count == 0) continue;
      products += term.count;
      first = std::min(first, term.columns[0]);
      last = std::max(last, term.columns[term.count - 1]);
    }
    if (products == 0) return 0;
    const Window window = {first, int64_t{last} - first + 1};
    switch (policy_.Choose(products, window.width)) {
      case RowMethod::kRanked:
        ranked_.Begin(first);
        for (int64_t entry = begin; entry < end; ++entry) {
          const Term term = TermOf(entry);
          ranked_.Add(job_.s_values[entry], term.columns, term.values, term.count,
                      term.count + EllView::kSpare);
        }
        return ranked_.Take(slot);
      case RowMethod::kFullWindow:
        return DenseRow<false>(pieces, begin, end, window, slot);
      default:
        return DenseRow<true>(pieces, begin, end, window, slot);
    }
  }

  template <bool kMarked>
  HWY_INLINE int64_t DenseRow(const PieceQueue& pieces, int64_t begin, int64_t end,
                              const Window& window, const RowSlot<T>& slot) {
    constexpr int64_t kTermsBetweenLooks = 256;
    dense_.Reserve(window.width);
    for (int64_t entry = begin; entry < end; ++entry) {
      if (HWY_UNLIKELY((entry - begin) % kTermsBetweenLooks == kTermsBetweenLooks - 1) &&
          pieces.stopped()) {
        return -1;
      }
      const Term term = TermOf(entry);
      dense_.template Add<kMarked>(job_.s_values[entry], term.columns, term.values, term.count,
                                   window.first);
    }
    return dense_.template Take<kMarked>(window.first, window.width, slot);
  }

  const RowJob<T> job_;
  const EvenRows<T>& rows_;
  const int32_t* const lengths_;
  const RowPolicy policy_;
  RankedRow<T> ranked_;
  DenseAccumulator<T> dense_;
};

void EvenRowsF32(const RowJob<float>& job, const EvenRows<float>& rows, std::byte* workspace,
                 PieceQueue& pieces) {
  EvenRowsProduct<float>(job, rows, workspace).Run(pieces);
}

void EvenRowsF64(const RowJob<double>& job, const EvenRows<double>& rows, std::byte* workspace,
                 PieceQueue& pieces) {
  EvenRowsProduct<double>(job, rows, workspace).Run(pieces);
}

}  // namespace sparsed::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparsed::cpu {
namespace {

HWY_EXPORT(EvenRowsF32);
HWY_EXPORT(EvenRowsF64);

template <typename T>
struct EvenRowsPhases {
  static size_t Workspace(const SpgemmArguments& arguments) {
    const CsrView& t = arguments.right;
    BumpAllocator allocator(nullptr);
    DenseSpace<T>(allocator, t.cols);
    return allocator.bytes();
  }

  static absl::Status Numeric(const NumericCall& call) {
    const EvenRows<T> rows = {ViewEll(*call.arguments.right_format.layout),
                              static_cast<const T*>(call.arguments.right_format.values)};
    const size_t bytes = Workspace(call.arguments);
    return ShareRows(call, [&](int thread, PieceQueue& pieces) {
      RunEvenRows(RowJob<T>(call), rows, call.context.workspace.data() + bytes * thread, pieces);
    });
  }
};

}  // namespace

void RunEvenRows(const RowJob<float>& job, const EvenRows<float>& rows, std::byte* workspace,
                 PieceQueue& pieces) {
  HWY_DYNAMIC_DISPATCH(EvenRowsF32)(job, rows, workspace, pieces);
}

void RunEvenRows(const RowJob<double>& job, const EvenRows<double>& rows, std::byte* workspace,
                 PieceQueue& pieces) {
  HWY_DYNAMIC_DISPATCH(EvenRowsF64)(job, rows, workspace, pieces);
}

SpgemmKernel EvenRowsSpgemm() {
  SpgemmKernel kernel = MakeSpgemmKernel<EvenRowsPhases>("cpu.ell.even_rows");
  kernel.layout_kind = kEll;
  return kernel;
}

}  // namespace sparsed::cpu
#endif
