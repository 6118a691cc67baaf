// SDDMM from CSR, plain or with permuted rows: O = S .* (A * B^T).
//
// Idea: equal numbers of nonzeros for everybody, as in HP-SDDMM (Fan et al., IPDPS'23); every
// result is a nonzero's own, so that rows are cut anywhere. Several dot products are in flight at
// once and are reduced together. A row of A is fetched once for those in flight if they share it.
// Layout in: "csr"; one of S^T has the operands' parts swapped.
// Threads: a warp takes a stretch of consecutive nonzeros in steps of 32: a lane knows one column,
// finds its row by a search over the next 32 row ends, and stores one result. How long stretches
// are is a schedule's choice (dots.cuh), and each schedule is a kernel of its own.
// Needs: no workspace.
// Wins: where rows of S share few columns: graphs, meshes. What it fetches is a row of B for each
// nonzero, mostly from L2, which is its limit.
#include <cstdint>

#include "kernels/cuda/check.h"
#include "kernels/cuda/sddmm/dots.cuh"
#include "kernels/cuda/sddmm/row_dots.cuh"
#include "kernels/cuda/sddmm/sddmm.h"

namespace sparsed::cuda {
namespace {

template <typename S, typename T>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    RowDots(const Rows s, const SddmmOperands<T> operands, const Shares shares) {
  const int lane = threadIdx.x % 32;
  const int64_t nnz = s.offsets.items;
  int64_t begin = shares.begin();
  if (begin >= nnz) return;
  int row = FindRow(s.offsets, begin, lane);
  int row_end = RowEnd(s.offsets, begin, row, lane);
  int column = __ldcs(s.columns + min(begin + lane, nnz - 1));
  for (int steps = shares.steps(); steps > 0; --steps, begin += kStep) {
    const int own_row = RowOf(s.offsets, begin, row, row_end, lane);
    const int own_column = column;
    row = __shfl_sync(kWarp, own_row, kStep - 1);
    const unsigned starts = __ballot_sync(kWarp, own_row != __shfl_up_sync(kWarp, own_row, 1));
    if (steps > 1) {  // fetched ahead
      row_end = RowEnd(s.offsets, begin + kStep, row, lane);
      column = __ldcs(s.columns + min(begin + kStep + lane, nnz - 1));
    }
    const int count = static_cast<int>(min(nnz - begin, int64_t{kStep}));
    const SumOf<T> dot = DotsOfStep<S>(operands.a, operands.b, operands.k,
                                       s.order == nullptr ? own_row : __ldg(s.order + own_row),
                                       own_column, starts, count, shares.part(), shares.parts());
    if (S::Kept() < count && S::BatchKept() % shares.parts() == shares.part()) {
      operands.Store(begin + S::Kept(), dot);
    }
  }
}

template <Schedule kSchedule, typename T>
absl::Status Start(cudaStream_t stream, const Rows& s, const SddmmOperands<T>& operands) {
  WithShape(operands, [&](auto shape) {
    using S = decltype(shape);
    const Shares shares = SharesOf<S>(kSchedule, s.offsets.items, operands.row_bytes());
    RowDots<S, T><<<shares.blocks(), kThreads, 0, stream>>>(s, operands, shares);
  });
  return ToStatus(cudaGetLastError(), "starting SDDMM");
}

template <Schedule kSchedule, typename T>
absl::Status RunOf(const Context& context, const SddmmArguments& arguments) {
  if (arguments.layout.nnz == 0) return absl::OkStatus();
  const Rows s = RowsOf(ViewCsr(arguments.layout));
  absl::Status status;
  ForEachSlab<kSchedule.slab>(SddmmOperands<T>(arguments), [&](const SddmmOperands<T>& operands) {
    status.Update(Start<kSchedule>(static_cast<cudaStream_t>(context.stream), s, operands));
  });
  return status;
}

template <Schedule kSchedule>
absl::Status Run(const Context& context, const Problem& problem, const SddmmArguments& arguments) {
  return VisitFloat(problem.type,
                    [&]<typename T>(T) { return RunOf<kSchedule, T>(context, arguments); });
}

// Column blocks add to what others left in the result, which 16 bits would round each time.
template <Schedule kSchedule>
bool Supports(const Problem& problem, const Layout& layout) {
  return problem.device == DeviceKind::kCuda && problem.operation == Operation::kSddmm &&
         layout.kind == kCsr && layout.rows <= kMost && problem.k <= kMost &&
         (kSchedule.slab == kMost || (problem.k > kSchedule.slab && !IsHalf(problem.type)));
}

template <Schedule kSchedule>
SddmmKernel Kernel(std::string_view name) {
  return {.name = name,
          .layout_kind = kCsr,
          .device = DeviceKind::kCuda,
          .deterministic = true,
          .supports = Supports<kSchedule>,
          .workspace = NoWorkspace,
          .run = Run<kSchedule>};
}

}  // namespace

template <typename T>
absl::Status StartRowDots(cudaStream_t stream, const Rows& s, const SddmmOperands<T>& operands) {
  return Start<kFar>(stream, s, operands);
}
template absl::Status StartRowDots(cudaStream_t, const Rows&, const SddmmOperands<float>&);
template absl::Status StartRowDots(cudaStream_t, const Rows&, const SddmmOperands<double>&);

SddmmKernel CsrSddmm() { return Kernel<kFar>("cuda.csr.row_dots"); }
SddmmKernel CsrNearSddmm() { return Kernel<kNear>("cuda.csr.row_dots_near"); }
SddmmKernel CsrSlabSddmm() { return Kernel<kSlabs>("cuda.csr.row_dots_slab128"); }

}  // namespace sparsed::cuda
