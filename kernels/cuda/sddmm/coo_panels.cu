// SDDMM from listed panels: O = S .* (A * B^T).
//
// Idea: the rows of A that a panel needs stay in the L1 cache while the panel's nonzeros go by
// column by column, so that rows of B that the panel's rows share are fetched from L2 once. Rows
// and columns are listed, so that nothing is searched for and a launch is in full swing at once.
// Layout in: "coo_panels"; one of S^T has the operands' parts swapped.
// Threads: a warp takes a stretch of consecutive nonzeros in steps of 32; groups of 2 to 32 lanes
// as in dots.cuh, with B as the lead. Needs: no workspace. Wins: for small K, and where a panel's
// rows share columns, though neighbours need not: dense graphs, matrices with a few per cent of
// nonzeros. Loses where the panels' rows of A are too much for L1, which fetches them again and
// again.
#include <cstdint>

#include "kernels/cuda/check.h"
#include "kernels/cuda/sddmm/dots.cuh"
#include "kernels/cuda/sddmm/sddmm.h"
#include "kernels/formats/coo_panels.h"

namespace sparsed::cuda {
namespace {

struct Entries {
  const int32_t* rows;
  const int32_t* columns;
  int64_t count;
};

template <typename S, typename T>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    EntryDots(const Entries s, const SddmmOperands<T> operands, const Shares shares) {
  const int lane = threadIdx.x % 32;
  int64_t begin = shares.begin();
  if (begin >= s.count) return;
  int64_t own = min(begin + lane, s.count - 1);
  int row = __ldcs(s.rows + own), column = __ldcs(s.columns + own);
  for (int steps = shares.steps(); steps > 0; --steps, begin += kStep) {
    const int own_row = row, own_column = column;
    const unsigned starts =
        __ballot_sync(kWarp, own_column != __shfl_up_sync(kWarp, own_column, 1));
    if (steps > 1) {  // fetched ahead
      own = min(begin + kStep + lane, s.count - 1);
      row = __ldcs(s.rows + own);
      column = __ldcs(s.columns + own);
    }
    const int count = static_cast<int>(min(s.count - begin, int64_t{kStep}));
    const SumOf<T> dot = DotsOfStep<S>(operands.b, operands.a, operands.k, own_column, own_row,
                                       starts, count, shares.part(), shares.parts());
    if (S::Kept() < count && S::BatchKept() % shares.parts() == shares.part()) {
      operands.Store(begin + S::Kept(), dot);
    }
  }
}

template <typename T>
absl::Status RunOf(const Context& context, const SddmmArguments& arguments) {
  const Layout& layout = arguments.layout;
  if (layout.nnz == 0) return absl::OkStatus();
  const CooPanelsView view = ViewCooPanels(layout);
  const Entries s = {view.entry_rows.data(), view.entry_columns.data(), layout.nnz};
  const SddmmOperands<T> operands(arguments);
  const auto stream = static_cast<cudaStream_t>(context.stream);
  WithShape(operands, [&](auto shape) {
    using S = decltype(shape);
    const Shares shares = SharesOf<S>(kFar, layout.nnz, operands.row_bytes());
    EntryDots<S, T><<<shares.blocks(), kThreads, 0, stream>>>(s, operands, shares);
  });
  return ToStatus(cudaGetLastError(), "starting SDDMM");
}

absl::Status Run(const Context& context, const Problem& problem, const SddmmArguments& arguments) {
  return VisitFloat(problem.type, [&]<typename T>(T) { return RunOf<T>(context, arguments); });
}

bool Supports(const Problem& problem, const Layout& layout) {
  return problem.device == DeviceKind::kCuda && problem.operation == Operation::kSddmm &&
         layout.kind == kCooPanels && problem.k <= kMost;
}

}  // namespace

SddmmKernel CooPanelsSddmm() {
  return {.name = "cuda.coo_panels.dots",
          .layout_kind = kCooPanels,
          .device = DeviceKind::kCuda,
          .deterministic = true,
          .supports = Supports,
          .workspace = NoWorkspace,
          .run = Run};
}

}  // namespace sparsed::cuda
