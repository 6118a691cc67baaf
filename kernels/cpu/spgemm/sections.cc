// C = S * T with T's rows cut into sections of 64 bytes of values: each is multiplied and added to
// a line of a dense window of sums by one instruction, whatever entries it has.
//
// InCSR (Golnari and Malik, "Sparse matrix to matrix multiplication: a representation and
// architecture for acceleration", 2019) keeps how many entries each section of S columns and each
// of its blocks of b columns has, to find single entries of a column fast. Products by rows ask for
// no single entry; what they gain from sections is that entries come in vectors. So S is what a
// vector holds, 16 in f32 and 8 in f64, and bits that say which columns there are stand for the
// counters.
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

template <typename T>
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
  static constexpr int64_t kColumns = Sections<T>::kColumns;

  static DenseSpace<T> SpaceOf(const CsrView& t, std::byte* workspace) {
    BumpAllocator allocator(workspace);
    return DenseSpace<T>(allocator, RoundUp(t.cols, kColumns));
  }

  /// The row whose S entries are [begin, end). Returns its entries; -1 if it was stopped.
  HWY_INLINE int64_t Row(const PieceQueue& pieces, int64_t begin, int64_t end,
                         const RowSlot<T>& slot) {
    int64_t count = 0;
    int32_t first = std::numeric_limits<int32_t>::max();
    int32_t last = -1;
    for (int64_t entry = begin; entry < end; ++entry) {
      const int32_t k = job_.s.column_indices[entry];
      const int64_t t_begin = sections_.section_offsets[k];
      const int64_t t_end = sections_.section_offsets[k + 1];
      if (t_begin == t_end) continue;
      count += t_end - t_begin;
      first = std::min(first, sections_.section_columns[t_begin]);
      last = std::max(last, sections_.section_columns[t_end - 1]);
    }
    if (count == 0) return 0;
    const int64_t lines = int64_t{last} - first + 1;
    return lines > std::max(count, RowPolicy::kFewLines / kColumns)
               ? AddRow<true>(pieces, begin, end, first, lines, slot)
               : AddRow<false>(pieces, begin, end, first, lines, slot);
  }

  template <bool kMarked>
  HWY_INLINE int64_t AddRow(const PieceQueue& pieces, int64_t begin, int64_t end, int32_t first,
                            int64_t lines, const RowSlot<T>& slot) {
    constexpr int64_t kTermsBetweenLooks = 256;
    dense_.Reserve(lines * kColumns);
    for (int64_t entry = begin; entry < end; ++entry) {
      if (HWY_UNLIKELY((entry - begin) % kTermsBetweenLooks == kTermsBetweenLooks - 1) &&
          pieces.stopped()) {
        return -1;
      }
      const int32_t k = job_.s.column_indices[entry];
      const T scale = job_.s_values[entry];
      for (int64_t i = sections_.section_offsets[k]; i < sections_.section_offsets[k + 1]; ++i) {
        dense_.template AddLine<kMarked>(scale, sections_.values + i * kColumns,
                                         static_cast<uint16_t>(sections_.present[i]),
                                         sections_.section_columns[i] - first);
      }
    }
    return dense_.template Take<kMarked>(static_cast<int32_t>(first * kColumns), lines * kColumns,
                                         slot);
  }

  const RowJob<T> job_;
  const Sections<T>& sections_;
  DenseAccumulator<T> dense_;
};

void SectionsF32(const RowJob<float>& job, const Sections<float>& sections, std::byte* workspace,
                 PieceQueue& pieces) {
  SectionRows<float>(job, sections, workspace).Run(pieces);
}

void SectionsF64(const RowJob<double>& job, const Sections<double>& sections, std::byte* workspace,
                 PieceQueue& pieces) {
  SectionRows<double>(job, sections, workspace).Run(pieces);
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
  const int64_t columns = ViewIncsr(*arguments.right_format.layout).columns;
  if (columns != Sections<T>::kColumns) {
    return absl::FailedPreconditionError(
        fmt::format("sections of {} columns, not {}", columns, Sections<T>::kColumns));
  }
  if (absl::Status status = UnlessStopped(context); !status.ok()) return status;
  return nullptr;
}

template <typename T>
struct SectionsPhases {
  static constexpr auto Prepare = PrepareOf<T>;

  static size_t Workspace(const SpgemmArguments& arguments) {
    const CsrView& t = arguments.right;
    BumpAllocator allocator(nullptr);
    DenseSpace<T>(allocator, RoundUp(t.cols, Sections<T>::kColumns));
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
  kernel.recipe = [](const Problem& problem, const CsrView&,
                     const CsrView&) -> absl::StatusOr<std::string> {
    return fmt::format("{}(columns={})", kIncsr, SectionColumns(problem.type));
  };
  return kernel;
}

}  // namespace sparsed::cpu
#endif
