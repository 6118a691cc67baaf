// C = S * T with T's rows cut into sections, and these into blocks of 16 to 64 bytes of values:
// each block is multiplied and added to its place in a dense window of sums by one instruction,
// whatever entries it has.
//
// InCSR (Golnari and Malik, "Sparse matrix to matrix multiplication: a representation and
// architecture for acceleration", 2019) keeps how many entries each section of S columns and each
// of its blocks of b columns has, to find single entries of a column fast. Products by rows ask for
// no single entry; what they gain from blocks is that entries come in vectors, and from sections
// that one number says where all their blocks are. So b is what a vector holds, and bits that say
// which columns there are stand for the counters. Unless another layout is asked for S and b are
// both a line: 16 in f32 and 8 in f64 (others: docs/spgemm-cpu.md).
//
// Layout in: plain CSR of S, "incsr" of T. A row of C belongs to one thread.
// Workspace: for each thread a dense window of T's columns. Wins where entries of T come in groups
// that are no whole runs: blocks of some unknowns a vertex, communities.
#include "kernels/cpu/spgemm/sections.h"

#include "kernels/cpu/simd.h"
#include "kernels/cpu/spgemm/spgemm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/spgemm/sections.cc"
#include "hwy/foreach_target.h"
// foreach_target comes first.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>

#include "hwy/highway.h"
#include "kernels/cpu/spgemm/dense_accumulator-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sparsed::cpu::HWY_NAMESPACE {

/// Sections in blocks of kBlock columns; kOneBlock: of one each.
template <typename T, int64_t kBlock, bool kOneBlock>
class SectionRows {
 public:
  SectionRows(const RowJob<T>& job, const Sections<T>& sections, std::byte* workspace)
      : job_(job), sections_(sections), dense_(SpaceOf(job.t, workspace)) {}

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
  static constexpr int64_t kLine = DenseSpace<T>::kColumnsOfLine;

  static DenseSpace<T> SpaceOf(const CsrView& t, std::byte* workspace) {
    BumpAllocator allocator(workspace);
    return DenseSpace<T>(allocator, SectionWindow(t.cols));
  }

  /// The row whose S entries are [begin, end). Returns its entries; -1 if it was stopped.
  HWY_INLINE int64_t Row(const PieceQueue& pieces, int64_t begin, int64_t end,
                         const RowSlot<T>& slot) {
    int64_t count = 0;  // of blocks
    int32_t first = std::numeric_limits<int32_t>::max();
    int32_t last = -1;
    for (int64_t entry = begin; entry < end; ++entry) {
      const int32_t k = job_.s.column_indices[entry];
      const int64_t t_begin = sections_.section_offsets[k];
      const int64_t t_end = sections_.section_offsets[k + 1];
      if (t_begin == t_end) continue;
      count += sections_.block_offsets[k + 1] - sections_.block_offsets[k];
      first = std::min(first, sections_.section_columns[t_begin]);
      last = std::max(last, sections_.section_columns[t_end - 1]);
    }
    if (count == 0) return 0;
    const int64_t columns = sections_.shape.columns;
    const int64_t first_line = first * columns / kLine;
    const int64_t lines = ((last + 1) * columns - 1) / kLine - first_line + 1;
    return lines > std::max(count, RowPolicy::kFewLines / kLine)
               ? AddRow<true>(pieces, begin, end, first_line, lines, slot)
               : AddRow<false>(pieces, begin, end, first_line, lines, slot);
  }

  template <bool kMarked>
  HWY_INLINE int64_t AddRow(const PieceQueue& pieces, int64_t begin, int64_t end,
                            int64_t first_line, int64_t lines, const RowSlot<T>& slot) {
    constexpr int64_t kTermsBetweenLooks = 256;
    dense_.Reserve(lines * kLine);
    for (int64_t entry = begin; entry < end; ++entry) {
      if (HWY_UNLIKELY((entry - begin) % kTermsBetweenLooks == kTermsBetweenLooks - 1) &&
          pieces.stopped()) {
        return -1;
      }
      AddTerm<kMarked>(job_.s_values[entry], job_.s.column_indices[entry], first_line * kLine);
    }
    return dense_.template Take<kMarked>(static_cast<int32_t>(first_line * kLine), lines * kLine,
                                         slot);
  }

  /// Adds scale times row k of T.
  template <bool kMarked>
  HWY_INLINE void AddTerm(T scale, int32_t k, int64_t first_column) {
    const int64_t columns = sections_.shape.columns;
    const T* values = sections_.values + sections_.block_offsets[k] * kBlock;
    const int64_t t_end = sections_.section_offsets[k + 1];
    for (int64_t i = sections_.section_offsets[k]; i < t_end; ++i) {
      const int64_t column = sections_.section_columns[i] * columns - first_column;
      auto present = static_cast<uint32_t>(sections_.present[i]);
      if constexpr (kOneBlock) {
        dense_.template AddBlock<kMarked, kBlock>(scale, values, present, column);
        values += kBlock;
        continue;
      }
      while (present != 0) {
        const int64_t at = std::countr_zero(present) / kBlock * kBlock;
        const uint32_t bits = present >> at & kBlockBits;
        dense_.template AddBlock<kMarked, kBlock>(scale, values, bits, column + at);
        values += kBlock;
        present ^= bits << at;
      }
    }
  }

  static constexpr uint32_t kBlockBits = (1u << kBlock) - 1;

  const RowJob<T> job_;
  const Sections<T>& sections_;
  DenseAccumulator<T> dense_;
};

template <typename T, int64_t kBlock = DenseSpace<T>::kColumnsOfLine>
void RunSectionRows(const RowJob<T>& job, const Sections<T>& sections, std::byte* workspace,
                    PieceQueue& pieces) {
  if (sections.shape.block == kBlock) {
    if (sections.shape.columns == kBlock) {
      SectionRows<T, kBlock, true>(job, sections, workspace).Run(pieces);
    } else {
      SectionRows<T, kBlock, false>(job, sections, workspace).Run(pieces);
    }
  } else if constexpr (kBlock * sizeof(T) > 16) {
    RunSectionRows<T, kBlock / 2>(job, sections, workspace, pieces);
  }
}

void SectionsF32(const RowJob<float>& job, const Sections<float>& sections, std::byte* workspace,
                 PieceQueue& pieces) {
  RunSectionRows(job, sections, workspace, pieces);
}

void SectionsF64(const RowJob<double>& job, const Sections<double>& sections, std::byte* workspace,
                 PieceQueue& pieces) {
  RunSectionRows(job, sections, workspace, pieces);
}

}  // namespace sparsed::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparsed::cpu {
namespace {

HWY_EXPORT(SectionsF32);
HWY_EXPORT(SectionsF64);

template <typename T>
absl::StatusOr<std::shared_ptr<void>> PrepareOf(const Context& context,
                                                const SpgemmArguments& arguments,
                                                MemorySource& /*memory*/) {
  const SectionShape shape = ViewIncsr(*arguments.right_format.layout).shape;
  if (!AreVectors(shape, ElementTypeOf<T>())) {
    return absl::FailedPreconditionError(
        fmt::format("blocks of {} columns are no vectors of 16 to 64 bytes", shape.block));
  }
  if (absl::Status status = UnlessStopped(context); !status.ok()) return status;
  return nullptr;
}

template <typename T>
struct SectionsPhases {
  static constexpr auto Prepare = PrepareOf<T>;

  static size_t Workspace(const SpgemmArguments& arguments) {
    BumpAllocator allocator(nullptr);
    DenseSpace<T>(allocator, SectionWindow(arguments.right.cols));
    return allocator.bytes();
  }

  static absl::Status Numeric(const NumericCall& call) {
    const Sections<T> sections = {ViewIncsr(*call.arguments.right_format.layout),
                                  static_cast<const T*>(call.arguments.right_format.values)};
    const size_t bytes = Workspace(call.arguments);
    return ShareRows(call, [&](int thread, PieceQueue& pieces) {
      RunSections(RowJob<T>(call), sections, call.context.workspace.data() + bytes * thread,
                  pieces);
    });
  }
};

}  // namespace

void RunSections(const RowJob<float>& job, const Sections<float>& sections, std::byte* workspace,
                 PieceQueue& pieces) {
  HWY_DYNAMIC_DISPATCH(SectionsF32)(job, sections, workspace, pieces);
}

void RunSections(const RowJob<double>& job, const Sections<double>& sections, std::byte* workspace,
                 PieceQueue& pieces) {
  HWY_DYNAMIC_DISPATCH(SectionsF64)(job, sections, workspace, pieces);
}

SpgemmKernel SectionsSpgemm() {
  SpgemmKernel kernel = MakeSpgemmKernel<SectionsPhases>("cpu.incsr.sections");
  kernel.layout_kind = kIncsr;
  kernel.pipeline = [](const Problem& problem, const CsrView&,
                       const CsrView&) -> absl::StatusOr<std::string> {
    return fmt::format("{}(columns={})", kIncsr, LineSections(problem.type).columns);
  };
  return kernel;
}

}  // namespace sparsed::cpu
#endif
