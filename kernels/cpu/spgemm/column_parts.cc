// C = S * T with T cut into two or four ranges of columns, and a dense window of sums for one range
// at a time, so that a wide window stays in a closer cache (the COO method of Xie et al., "A
// Pattern-Based SpGEMM Library for Multi-Core and Many-Core Architectures", Algorithm 3).
//
// Rows of C are computed in panels, part after part; a part's entries go behind those of the parts
// before it, which have smaller columns, so that nothing is left to merge.
//
// Layout in: plain CSR of S, "column_parts" of T. A row of C belongs to one thread.
// Workspace: for each thread a dense window of a part's columns. Each row of S is read once for
// each part, and so are its terms. Wins where rows of C are long and wider than a cache.
#include "kernels/cpu/spgemm/column_parts.h"

#include "kernels/cpu/simd.h"
#include "kernels/cpu/spgemm/spgemm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/spgemm/column_parts.cc"
#include "hwy/foreach_target.h"
// foreach_target comes first.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>

#include "hwy/highway.h"
#include "kernels/cpu/spgemm/dense_accumulator-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sparsed::cpu::HWY_NAMESPACE {

template <typename T>
class PartRows {
 public:
  PartRows(const RowJob<T>& job, const ColumnParts<T>& parts, std::byte* workspace)
      : job_(job), parts_(parts), dense_(SpaceOf(parts, workspace)) {}

  void Run(PieceQueue& pieces) {
    RowRange piece;
    while (pieces.Next(&piece)) {
      RowRange panel = {piece.begin, piece.begin};
      while (panel.end < piece.end) {
        panel = NextPanel(panel.end, piece.end);
        std::fill(job_.row_nnz + panel.begin, job_.row_nnz + panel.end, 0);
        for (int64_t part = 0; part < parts_.parts; ++part) {
          if (!AddPart(panel, part, pieces)) return;
        }
      }
    }
  }

 private:
  static DenseSpace<T> SpaceOf(const ColumnParts<T>& parts, std::byte* workspace) {
    BumpAllocator allocator(workspace);
    return DenseSpace<T>(allocator, parts.width);
  }

  /// Rows whose entries stay in the cache until the last part is added.
  RowRange NextPanel(int64_t begin, int64_t end) const {
    constexpr int64_t kPanelEntries = 1 << 16;
    int64_t last = begin + 1;
    while (last < end && job_.row_begin[last + 1] - job_.row_begin[begin] <= kPanelEntries) ++last;
    return {begin, last};
  }

  /// False if it was stopped.
  HWY_INLINE bool AddPart(RowRange panel, int64_t part, const PieceQueue& pieces) {
    const int64_t* const offsets = parts_.offsets_of(part);
    const int32_t* const columns = parts_.column_indices.data();
    for (int64_t row = panel.begin; row < panel.end; ++row) {
      if (pieces.stopped()) return false;
      int64_t products = 0;
      int32_t first = std::numeric_limits<int32_t>::max();
      int32_t last = -1;
      for (int64_t p = job_.s.row_offsets[row]; p < job_.s.row_offsets[row + 1]; ++p) {
        const int32_t k = job_.s.column_indices[p];
        if (offsets[k] == offsets[k + 1]) continue;
        products += offsets[k + 1] - offsets[k];
        first = std::min(first, columns[offsets[k]]);
        last = std::max(last, columns[offsets[k + 1] - 1]);
      }
      if (products == 0) continue;
      const Window window = {first, int64_t{last} - first + 1};
      const bool marked = window.width > std::max(products, RowPolicy::kFewLines);
      const int64_t entries = marked ? AddRow<true>(row, offsets, window, pieces)
                                     : AddRow<false>(row, offsets, window, pieces);
      if (entries < 0) return false;
      job_.row_nnz[row] += entries;
    }
    return true;
  }

  /// The row's entries in the part; -1 if it was stopped.
  template <bool kMarked>
  HWY_INLINE int64_t AddRow(int64_t row, const int64_t* offsets, const Window& window,
                            const PieceQueue& pieces) {
    constexpr int64_t kTermsBetweenLooks = 256;
    dense_.Reserve(window.width);
    const int64_t begin = job_.s.row_offsets[row];
    for (int64_t p = begin; p < job_.s.row_offsets[row + 1]; ++p) {
      if (HWY_UNLIKELY((p - begin) % kTermsBetweenLooks == kTermsBetweenLooks - 1) &&
          pieces.stopped()) {
        return -1;
      }
      const int32_t k = job_.s.column_indices[p];
      dense_.template Add<kMarked>(job_.s_values[p], parts_.column_indices.data() + offsets[k],
                                   parts_.values + offsets[k], offsets[k + 1] - offsets[k],
                                   window.first);
    }
    // Behind the row there may be entries of the next one already.
    RowSlot<T> slot = job_.Slot(row, row + 1);
    slot.columns += job_.row_nnz[row];
    slot.values += job_.row_nnz[row];
    slot.room -= job_.row_nnz[row];
    return dense_.template Take<kMarked>(window.first, window.width, slot);
  }

  const RowJob<T> job_;
  const ColumnParts<T>& parts_;
  DenseAccumulator<T> dense_;
};

void PartsF32(const RowJob<float>& job, const ColumnParts<float>& parts, std::byte* workspace,
              PieceQueue& pieces) {
  PartRows<float>(job, parts, workspace).Run(pieces);
}

void PartsF64(const RowJob<double>& job, const ColumnParts<double>& parts, std::byte* workspace,
              PieceQueue& pieces) {
  PartRows<double>(job, parts, workspace).Run(pieces);
}

}  // namespace sparsed::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparsed::cpu {
namespace {

HWY_EXPORT(PartsF32);
HWY_EXPORT(PartsF64);

/// Two parts, or four where half of T's columns are a wide window still.
int64_t PartsOf(const CsrView& t) { return t.cols > 1 << 17 ? 4 : 2; }

template <typename T>
ColumnParts<T> PartsOfT(const SpgemmArguments& arguments) {
  return {ViewColumnParts(*arguments.right_format.layout),
          static_cast<const T*>(arguments.right_format.values)};
}

template <typename T>
struct ColumnPartsPhases {
  static size_t Workspace(const SpgemmArguments& arguments) {
    BumpAllocator allocator(nullptr);
    DenseSpace<T>(allocator, PartsOfT<T>(arguments).width);
    return allocator.bytes();
  }

  static absl::Status Numeric(const NumericCall& call) {
    const ColumnParts<T> parts = PartsOfT<T>(call.arguments);
    const size_t bytes = Workspace(call.arguments);
    return ShareRows(call, [&](int thread, PieceQueue& pieces) {
      RunColumnParts(RowJob<T>(call), parts, call.context.workspace.data() + bytes * thread,
                     pieces);
    });
  }
};

}  // namespace

void RunColumnParts(const RowJob<float>& job, const ColumnParts<float>& parts, std::byte* workspace,
                    PieceQueue& pieces) {
  HWY_DYNAMIC_DISPATCH(PartsF32)(job, parts, workspace, pieces);
}

void RunColumnParts(const RowJob<double>& job, const ColumnParts<double>& parts,
                    std::byte* workspace, PieceQueue& pieces) {
  HWY_DYNAMIC_DISPATCH(PartsF64)(job, parts, workspace, pieces);
}

SpgemmKernel ColumnPartsSpgemm() {
  SpgemmKernel kernel = MakeSpgemmKernel<ColumnPartsPhases>("cpu.coo.column_parts");
  kernel.layout_kind = kColumnParts;
  kernel.pipeline = [](const Problem&, const CsrView&,
                       const CsrView& right) -> absl::StatusOr<std::string> {
    return fmt::format("{}(parts={})", kColumnParts, PartsOf(right));
  };
  return kernel;
}

}  // namespace sparsed::cpu
#endif
