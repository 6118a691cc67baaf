// SDDMM from CSR, plain or with permuted rows: O = S .* (A * B^T).
//
// Idea: equal numbers of nonzeros for everybody; every result is a nonzero's own, so that rows are
// cut anywhere. The dot products of several nonzeros are in flight at once and are reduced together
// by a transposing butterfly, as in RoDe (Meng et al., PPoPP'24) and HP-SDDMM (Fan et al.,
// IPDPS'23) each is alone. A row of A is fetched once for the nonzeros in flight if they share it.
// Layout in: "csr"; one of S^T has the operands' parts swapped.
// Threads: a warp takes a stretch of consecutive nonzeros in steps of 32: a lane knows one column,
// finds its row by a search over the next 32 row ends, and stores one result. A group of 2 to 32
// lanes, 16 bytes each (one element, if rows are not aligned), covers K or as much of it as it can,
// and goes over 2 to 8 nonzeros at a time.
// Needs: no workspace.
// Wins: where rows of S do not share columns, or only with rows that are close: graphs, meshes.
// What it fetches is a row of B for each nonzero, mostly from L2, which is its limit.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/check.h"
#include "kernels/cuda/sddmm/dots.cuh"
#include "kernels/cuda/sddmm/sddmm.h"

namespace sparsed::cuda {
namespace {

/// Rows of B that a warp is to fetch: few, so that what all warps work on at one time, and what the
/// next will work on, is in L2 together.
constexpr int64_t kWarpBytes = 32768;
/// Rows so long are shared out to several warps.
constexpr int64_t kWarpRowBytes = 512;
/// So many fill a GPU several times over.
constexpr int64_t kWarps = 16384;

struct Rows {
  RowOffsets offsets;
  const int32_t* columns;
  const int32_t* order;  // null: identity
  int share;             // nonzeros that one warp or a few go over, a multiple of kStep
  int part_bits;         // 2^part_bits warps share out the batches of each step
};

template <typename S, typename T>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    RowDots(const Rows s, const SddmmOperands<T> operands) {
  const int lane = threadIdx.x % 32;
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  const int parts = 1 << s.part_bits;
  const int part = static_cast<int>(warp) & (parts - 1);
  int64_t begin = (warp >> s.part_bits) * s.share;
  const int64_t nnz = s.offsets.items;
  if (begin >= nnz) return;
  int steps = static_cast<int>((min(int64_t{s.share}, nnz - begin) + kStep - 1) / kStep);

  int row = FindRow(s.offsets, begin, lane);
  int ended = RowEnd(s.offsets, begin, row, lane);
  int column = __ldcs(s.columns + min(begin + lane, nnz - 1));
  for (; steps > 0; --steps, begin += kStep) {
    const int own_row = RowOf(s.offsets, begin, row, ended, lane);
    const int own_column = column;
    row = __shfl_sync(kWarp, own_row, kStep - 1);
    const unsigned starts = __ballot_sync(kWarp, own_row != __shfl_up_sync(kWarp, own_row, 1));
    if (steps > 1) {  // fetched ahead
      ended = RowEnd(s.offsets, begin + kStep, row, lane);
      column = __ldcs(s.columns + min(begin + kStep + lane, nnz - 1));
    }
    const int count = static_cast<int>(min(nnz - begin, int64_t{kStep}));
    const T dot = DotsOfStep<S>(operands.a, operands.b, operands.k,
                                s.order == nullptr ? own_row : __ldg(s.order + own_row), own_column,
                                starts, count, part, parts);
    if (S::Kept() < count && (S::BatchKept() & (parts - 1)) == part) {
      operands.Store(begin + S::Kept(), dot);
    }
  }
}

template <typename S, typename T>
void Launch(cudaStream_t stream, Rows s, const SddmmOperands<T>& operands) {
  const int64_t row_bytes = operands.k * static_cast<int64_t>(sizeof(T));
  s.part_bits = 0;
  while ((kWarpRowBytes << s.part_bits) < row_bytes && (1 << s.part_bits) < S::kBatches) {
    ++s.part_bits;
  }
  const int64_t steps = std::min(s.offsets.items / (kWarps * kStep),
                                 kWarpBytes / (std::max<int64_t>(row_bytes, 1) * kStep));
  s.share = static_cast<int>(std::clamp<int64_t>(steps, 1, 4)) * kStep;
  const int64_t warps = ((s.offsets.items + s.share - 1) / s.share) << s.part_bits;
  const auto blocks = static_cast<unsigned>((warps + kThreads / 32 - 1) / (kThreads / 32));
  RowDots<S, T><<<blocks, kThreads, 0, stream>>>(s, operands);
}

template <int kSlab, typename T>
absl::Status RunOf(const Context& context, const SddmmArguments& arguments) {
  const Layout& layout = arguments.layout;
  if (layout.nnz == 0) return absl::OkStatus();
  const CsrView view = ViewCsr(layout);
  const Rows s = {.offsets = {view.row_offsets.data(), static_cast<int>(layout.rows), layout.nnz},
                  .columns = view.column_indices.data(),
                  .order = view.row_order.empty() ? nullptr : view.row_order.data(),
                  .share = kStep,
                  .part_bits = 0};
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
         layout.kind == kCsr && layout.rows <= kMost && problem.k <= kMost &&
         (kSlab == kMost || problem.k > kSlab);
}

size_t Workspace(const Problem& /*problem*/, const Layout& /*layout*/, int /*threads*/) {
  return 0;
}

template <int kSlab>
SddmmKernel Kernel(std::string_view name) {
  return {.name = name,
          .layout_kind = kCsr,
          .device = DeviceKind::kCuda,
          .deterministic = true,
          .supports = Supports<kSlab>,
          .workspace = Workspace,
          .run = Run<kSlab>};
}

}  // namespace

SddmmKernel CsrSddmm() { return Kernel<kMost>("cuda.csr.row_dots"); }
SddmmKernel CsrSlabSddmm() { return Kernel<128>("cuda.csr.row_dots_slab128"); }

}  // namespace sparsed::cuda
