// SDDMM from adaptive sparse tiles: O = S .* (A * B^T).
//
// Idea: Hong et al., PPoPP'19: the rows of B that a panel's rows share are copied into shared
// memory and read from there by all of them; the sparse remainder is a product of rows like any
// other. Every result is a nonzero's own, so that tiles of a panel need nothing of each other.
// Layout in: "aspt", panels of at most 256 rows; the remainder's rows are taken in their order. One
// of S^T has the operands' parts swapped.
// Threads: a block takes every so many tiles of a panel, a tile being as many of its dense columns
// as fit. The tile's nonzeros are counted row by row, and warps take 32 at a time, as in dots.cuh.
// K is cut into column blocks of 2 KiB. The remainder is a launch of csr.cu's.
// Needs: a number for each row, if rows and remainder both have orders.
#include <cuda_pipeline.h>

#include <cstdint>
#include <cub/block/block_scan.cuh>

#include "kernels/cuda/check.h"
#include "kernels/cuda/remainder.h"
#include "kernels/cuda/sddmm/dots.cuh"
#include "kernels/cuda/sddmm/row_dots.cuh"
#include "kernels/cuda/sddmm/sddmm.h"
#include "kernels/formats/aspt.h"

namespace sparsed::cuda {
namespace {

constexpr int kSlabBytes = 2048;  // of a row of B
constexpr int kTileBytes = 64 * 1024;
constexpr int kTileBlocks = 3;  // of a multiprocessor, by shared memory
constexpr int kMostPanelRows = kThreads;

struct Panels {
  const int64_t* offsets;
  const int32_t* columns;
  const int64_t* row_offsets;
  const int32_t* indices;
  const int32_t* row_order;  // null: identity
  int64_t rows;
  int panel;  // rows
};

/// First position in [low, high) whose index is at least `least`, or high.
__device__ inline int64_t FirstFrom(const int32_t* indices, int64_t low, int64_t high, int least) {
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (__ldg(indices + middle) < least) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/// Begins to copy rows `columns` of B to shared memory, one behind the other.
template <typename S, typename T>
__device__ inline void CopyRows(const Operand<T>& b, int k, const int32_t* columns, int count,
                                T* to) {
  constexpr int kPart = S::kAligned ? S::kWidth : 1;
  const int parts = k / kPart;  // aligned rows are whole parts
  for (int at = static_cast<int>(threadIdx.x); at < count * parts; at += kThreads) {
    const int64_t row = __ldg(columns + at / parts);
    __pipeline_memcpy_async(to + static_cast<int64_t>(at) * kPart,
                            b.data + row * b.stride + at % parts * kPart, kPart * sizeof(T));
  }
  __pipeline_commit();
}

template <typename S, typename T>
__global__ void __launch_bounds__(kThreads, kTileBlocks)
    TileDots(const Panels s, const SddmmOperands<T> operands, const int tile_columns) {
  using Scan = cub::BlockScan<int, kThreads>;
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  __shared__ typename Scan::TempStorage scan;
  // Of each row of the panel: its first slot in the tile, and the tile's nonzeros before it.
  __shared__ int64_t first_slots[kMostPanelRows];
  __shared__ int before[kMostPanelRows];
  T* const tile = reinterpret_cast<T*>(shared_bytes);
  const Operand<T> shared_b = {tile, operands.k};
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  const int64_t panel_begin = s.offsets[blockIdx.x];
  const int columns = static_cast<int>(s.offsets[blockIdx.x + 1] - panel_begin);
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * s.panel;
  const int rows = static_cast<int>(min(s.rows - first_row, int64_t{s.panel}));
  int64_t row_begin = 0, row_end = 0;  // of this thread's row
  if (static_cast<int>(threadIdx.x) < rows) {
    row_begin = s.row_offsets[first_row + threadIdx.x];
    row_end = s.row_offsets[first_row + threadIdx.x + 1];
  }
  for (int first = static_cast<int>(blockIdx.y) * tile_columns; first < columns;
       first += static_cast<int>(gridDim.y) * tile_columns) {
    const int end = min(first + tile_columns, columns);
    CopyRows<S>(operands.b, operands.k, s.columns + panel_begin + first, end - first, tile);
    const int64_t begin = first == 0 ? row_begin : FirstFrom(s.indices, row_begin, row_end, first);
    const int64_t stop = end == columns ? row_end : FirstFrom(s.indices, begin, row_end, end);
    int offset, count;
    Scan(scan).ExclusiveSum(static_cast<int>(stop - begin), offset, count);
    first_slots[threadIdx.x] = begin;
    before[threadIdx.x] = offset;
    __pipeline_wait_prior(0);
    __syncthreads();

    for (int at = warp * kStep; at < count; at += kThreads) {
      const int own = min(at + lane, count - 1);
      int row = 0;  // the last one with before[row] <= own
#pragma unroll
      for (int step = kMostPanelRows / 2; step > 0; step /= 2) {
        if (before[row + step] <= own) row += step;
      }
      const int64_t slot = first_slots[row] + (own - before[row]);
      const unsigned starts = __ballot_sync(kWarp, row != __shfl_up_sync(kWarp, row, 1));
      const int64_t layout_row = first_row + row;
      const int in_step = min(count - at, kStep);
      const SumOf<T> dot = DotsOfStep<S>(
          operands.a, shared_b, operands.k,
          s.row_order == nullptr ? static_cast<int>(layout_row) : __ldg(s.row_order + layout_row),
          __ldg(s.indices + slot) - first, starts, in_step, 0, 1);
      const int64_t kept = __shfl_sync(kWarp, slot, S::Kept());
      if (S::Kept() < in_step) operands.Store(kept, dot);
    }
    __syncthreads();
  }
}

template <typename T>
absl::Status StartTiles(cudaStream_t stream, const AsptView& view,
                        const SddmmOperands<T>& operands) {
  const Panels s = {.offsets = view.panel_offsets.data(),
                    .columns = view.panel_columns.data(),
                    .row_offsets = view.dense_row_offsets.data(),
                    .indices = view.dense_indices.data(),
                    .row_order = view.row_order.empty() ? nullptr : view.row_order.data(),
                    .rows = view.rows,
                    .panel = static_cast<int>(view.panel)};
  const int64_t average = static_cast<int64_t>(view.panel_columns.size()) / view.panels();
  const int tile_columns =
      static_cast<int>(kTileBytes / std::max<int64_t>(operands.row_bytes(), 16));
  // Enough for most panels; what a few have more goes one after another.
  constexpr int64_t kMostTiles = 64;
  const dim3 grid(static_cast<unsigned>(view.panels()),
                  static_cast<unsigned>(std::min(average / tile_columns + 1, kMostTiles)));
  cudaError_t error = cudaSuccess;
  WithShape(operands, [&](auto shape) {
    const auto kernel = TileDots<decltype(shape), T>;
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kTileBytes);
    if (error != cudaSuccess) return;
    kernel<<<grid, kThreads, kTileBytes, stream>>>(s, operands, tile_columns);
  });
  if (error != cudaSuccess) return ToStatus(error, "reserving shared memory");
  return ToStatus(cudaGetLastError(), "starting SDDMM from adaptive sparse tiles");
}

template <typename T>
absl::Status RunOf(const Context& context, const SddmmArguments& arguments) {
  const AsptView view = ViewAspt(arguments.layout);
  const auto stream = static_cast<cudaStream_t>(context.stream);
  Rows remainder = RowsOf(view.Remainder());
  const auto targets = RemainderTargets(stream, view, context.workspace);
  if (!targets.ok()) return targets.status();
  remainder.order = *targets;
  absl::Status status;
  ForEachSlab<kSlabBytes / sizeof(T)>(SddmmOperands<T>(arguments), [&](SddmmOperands<T> operands) {
    if (view.dense_nnz() > 0) status.Update(StartTiles(stream, view, operands));
    if (view.dense_nnz() == arguments.layout.nnz) return;
    status.Update(StartRowDots(stream, remainder, operands.From(view.dense_nnz())));
  });
  return status;
}

absl::Status Run(const Context& context, const Problem& problem, const SddmmArguments& arguments) {
  return problem.type == ElementType::kF32 ? RunOf<float>(context, arguments)
                                           : RunOf<double>(context, arguments);
}

size_t Workspace(const Problem& /*problem*/, const Layout& layout, int /*threads*/) {
  return RemainderTargetBytes(layout);
}

bool Supports(const Problem& problem, const Layout& layout) {
  return problem.device == DeviceKind::kCuda && problem.operation == Operation::kSddmm &&
         !IsHalf(problem.type) && layout.kind == kAspt && layout.rows <= kMost &&
         problem.k <= kMost && layout.Parameter("panel") <= kMostPanelRows;
}

}  // namespace

SddmmKernel AsptSddmm() {
  return {.name = "cuda.aspt.dots",
          .layout_kind = kAspt,
          .device = DeviceKind::kCuda,
          .deterministic = true,
          .supports = Supports,
          .workspace = Workspace,
          .run = Run};
}

}  // namespace sparsed::cuda
