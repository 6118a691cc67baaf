// SDDMM from listed panels: O = S .* (A * B^T).
//
// Idea: the rows of A that a panel needs stay in the L1 cache while the panel's nonzeros go by
// column by column, so that a row of B is fetched once for all nonzeros of a column, and a row of A
// once for each multiprocessor that works on the panel. What is read for each nonzero comes from
// L1, at several times the rate of L2. Rows and columns are listed: nothing is searched for.
// Layout in: "coo_panels"; one of S^T has the operands' parts swapped.
// Threads: a block takes a stretch of consecutive nonzeros, and each of its warps an equal part of
// it, in steps of 32; groups of 2 to 32 lanes as in dots.cuh, with B as the lead.
// Needs: no workspace.
// Wins: where a panel's rows share columns, though neighbouring rows need not: dense graphs, FEM,
// matrices with a few per cent of nonzeros; and on small matrices, as it starts at once. Slabs of K
// keep a panel's rows within L1.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/check.h"
#include "kernels/cuda/sddmm/dots.cuh"
#include "kernels/cuda/sddmm/sddmm.h"
#include "kernels/formats/coo_panels.h"

namespace sparsed::cuda {
namespace {

/// So many warps fill a GPU a few times over.
constexpr int64_t kWarps = 8192;
constexpr int64_t kMostSteps = 8;

struct Entries {
  const int32_t* rows;
  const int32_t* columns;
  int64_t nnz;
  int share;  // nonzeros of a warp, a multiple of kStep
};

template <typename S, typename T>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    EntryDots(const Entries s, const SddmmOperands<T> operands) {
  const int lane = threadIdx.x % 32;
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  int64_t begin = warp * s.share;
  if (begin >= s.nnz) return;
  int steps = static_cast<int>((min(int64_t{s.share}, s.nnz - begin) + kStep - 1) / kStep);
  int64_t own = min(begin + lane, s.nnz - 1);
  int row = __ldcs(s.rows + own), column = __ldcs(s.columns + own);
  for (; steps > 0; --steps, begin += kStep) {
    const int own_row = row, own_column = column;
    const unsigned starts =
        __ballot_sync(kWarp, own_column != __shfl_up_sync(kWarp, own_column, 1));
    if (steps > 1) {  // fetched ahead
      own = min(begin + kStep + lane, s.nnz - 1);
      row = __ldcs(s.rows + own);
      column = __ldcs(s.columns + own);
    }
    const int count = static_cast<int>(min(s.nnz - begin, int64_t{kStep}));
    const T dot =
        DotsOfStep<S>(operands.b, operands.a, operands.k, own_column, own_row, starts, count, 0, 1);
    if (S::Kept() < count) operands.Store(begin + S::Kept(), dot);
  }
}

template <typename S, typename T>
void Launch(cudaStream_t stream, Entries s, const SddmmOperands<T>& operands) {
  s.share = static_cast<int>(std::clamp<int64_t>(s.nnz / (kWarps * kStep), 1, kMostSteps)) * kStep;
  const int64_t warps = (s.nnz + s.share - 1) / s.share;
  const auto blocks = static_cast<unsigned>((warps + kThreads / 32 - 1) / (kThreads / 32));
  EntryDots<S, T><<<blocks, kThreads, 0, stream>>>(s, operands);
}

template <int kSlab, typename T>
absl::Status RunOf(const Context& context, const SddmmArguments& arguments) {
  const Layout& layout = arguments.layout;
  if (layout.nnz == 0) return absl::OkStatus();
  const CooPanelsView view = ViewCooPanels(layout);
  const Entries s = {.rows = view.entry_rows.data(),
                     .columns = view.entry_columns.data(),
                     .nnz = layout.nnz,
                     .share = kStep};
  const auto stream = static_cast<cudaStream_t>(context.stream);
  ForEachSlab<kSlab>(SddmmOperands<T>(arguments), [&](const SddmmOperands<T>& operands) {
    WithShape(operands, [&](auto shape) { Launch<decltype(shape)>(stream, s, operands); });
  });
  return ToStatus(cudaGetLastError(), "starting SDDMM");
}

template <int kSlab>
absl::Status Run(const Context& context, const Problem& problem, const SddmmArguments& arguments) {
  return problem.type == ElementType::kF32 ? RunOf<kSlab, float>(context, arguments)
                                           : RunOf<kSlab, double>(context, arguments);
}

template <int kSlab>
bool Supports(const Problem& problem, const Layout& layout) {
  return problem.device == DeviceKind::kCuda && problem.operation == Operation::kSddmm &&
         layout.kind == kCooPanels && problem.k <= kMost && (kSlab == kMost || problem.k > kSlab);
}

size_t Workspace(const Problem& /*problem*/, const Layout& /*layout*/, int /*threads*/) {
  return 0;
}

template <int kSlab>
SddmmKernel Kernel(std::string_view name) {
  return {.name = name,
          .layout_kind = kCooPanels,
          .device = DeviceKind::kCuda,
          .deterministic = true,
          .supports = Supports<kSlab>,
          .workspace = Workspace,
          .run = Run<kSlab>};
}

}  // namespace

SddmmKernel CooPanelsSddmm() { return Kernel<kMost>("cuda.coo_panels.dots"); }
SddmmKernel CooPanelsSlabSddmm() { return Kernel<128>("cuda.coo_panels.dots_slab128"); }

}  // namespace sparsed::cuda
