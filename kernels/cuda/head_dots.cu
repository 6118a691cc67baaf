// SDDMM with several heads from plain CSR: for each nonzero the dot products of the heads' parts of
// A's and B's rows.
//
// Idea: as sddmm/csr.cu: equal numbers of nonzeros for everybody, in steps of 32 that a warp knows
// at once. The heads follow one another within a step; what some of them make is gathered in shared
// memory, from where a step's results, which lie side by side, are scaled and written together.
// Layout in: "csr".
// Threads: a warp takes a stretch of consecutive nonzeros.
// Needs: no workspace.
#include <cstdint>

#include "kernels/cuda/check.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/sddmm/dots.cuh"
#include "kernels/cuda/sddmm/row_dots.cuh"

namespace sparsed::cuda {
namespace {

constexpr int kHeads = 8;  // in shared memory at a time

template <typename T>
struct Heads {
  Operand<T> a, b;
  const T* values;  // null: ones
  int64_t ldv;
  int value_step;  // 0: one for all heads
  T* out;
  int64_t ldo;
  int heads, width;
};

template <typename S, typename T>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    HeadDotsOfRows(const Rows s, const Heads<T> p, const Shares shares) {
  __shared__ SumOf<T> staged[kThreads / 32][kStep][kHeads + 1];
  SumOf<T>(&dots)[kStep][kHeads + 1] = staged[threadIdx.x / 32];
  const int lane = threadIdx.x % 32;
  const int64_t nnz = s.offsets.items;
  int64_t begin = shares.begin();
  if (begin >= nnz) return;
  int row = FindRow(s.offsets, begin, lane);
  for (int steps = shares.steps(); steps > 0; --steps, begin += kStep) {
    const int row_end = RowEnd(s.offsets, begin, row, lane);
    const int own_column = __ldg(s.columns + min(begin + lane, nnz - 1));
    const int own_row = RowOf(s.offsets, begin, row, row_end, lane);
    row = __shfl_sync(kWarp, own_row, kStep - 1);
    const unsigned starts = __ballot_sync(kWarp, own_row != __shfl_up_sync(kWarp, own_row, 1));
    const int count = static_cast<int>(min(nnz - begin, int64_t{kStep}));
    for (int first = 0; first < p.heads; first += kHeads) {
      const int some = min(kHeads, p.heads - first);
      for (int head = 0; head < some; ++head) {
        const int64_t column = static_cast<int64_t>(first + head) * p.width;
        dots[S::Kept()][head] = DotsOfStep<S>(Operand<T>{p.a.data + column, p.a.stride},
                                              Operand<T>{p.b.data + column, p.b.stride}, p.width,
                                              own_row, own_column, starts, count, 0, 1);
      }
      __syncwarp();
      for (int i = lane; i < count * some; i += 32) {
        const int nonzero = i / some, head = i % some;
        const int64_t at = begin + nonzero;
        SumOf<T> dot = dots[nonzero][head];
        if (p.values != nullptr) {
          dot *= Widen(
              ReadOnly(p.values + at * p.ldv + static_cast<int64_t>(first + head) * p.value_step));
        }
        p.out[at * p.ldo + first + head] = Narrow<T>(dot);
      }
      __syncwarp();
    }
  }
}

}  // namespace

absl::Status ComputeHeadDots(const Context& context, const HeadDots& dots, ElementType type) {
  const Layout& layout = dots.layout;
  if (layout.nnz == 0 || dots.out.cols == 0) return absl::OkStatus();
  if (layout.rows > kMost || dots.a.cols > kMost) {
    return absl::UnimplementedError("the operands are too large for the GPU's kernel");
  }
  const Rows s = RowsOf(ViewCsr(layout));
  VisitFloat(type, [&]<typename T>(T) {
    SddmmOperands<T> operands({layout, nullptr, dots.a, dots.b, dots.out.data});
    const int64_t row_bytes = operands.row_bytes();
    operands.k = static_cast<int>(dots.a.cols / dots.out.cols);
    const Heads<T> heads = {.a = operands.a,
                            .b = operands.b,
                            .values = static_cast<const T*>(dots.values.data),
                            .ldv = dots.values.leading_dimension,
                            .value_step = dots.values.cols > 1 ? 1 : 0,
                            .out = operands.out,
                            .ldo = dots.out.leading_dimension,
                            .heads = static_cast<int>(dots.out.cols),
                            .width = operands.k};
    WithShape(operands, [&](auto shape) {
      using S = decltype(shape);
      constexpr Schedule kWhole = {kFar.warp_bytes, kFar.most_steps, kMost, kMost};
      const Shares shares = SharesOf<S>(kWhole, layout.nnz, row_bytes);
      HeadDotsOfRows<S, T>
          <<<shares.blocks(), kThreads, 0, static_cast<cudaStream_t>(context.stream)>>>(s, heads,
                                                                                        shares);
    });
  });
  return ToStatus(cudaGetLastError(), "starting SDDMM of several heads");
}

}  // namespace sparsed::cuda
