// SpMM from row panels: C = alpha * S * B + beta * C.
//
// Idea: a row of B is fetched once for all the rows of a panel and multiplied with a dense column
// of their values, the sums of all rows of the panel staying in registers (register tiles over a
// dense packing; the packing is that of layout "row_panels").
// Layout in: "row_panels" of 8 rows.
// Threads: a group of 8 to 32 lanes a panel and column block, 16 bytes a lane; column blocks are
// gridDim.y, one after another. The slots' columns and values come through shared memory, copied
// asynchronously a chunk ahead, so that only the loads of B are waited for. Where there are too few
// panels to fill the device, several groups of a block share one, in turn chunk by chunk, and add
// their sums up in a fixed order; all groups of a block share a long one. Long panels come first.
// Needs: no workspace. Values aligned to 16 bytes.
// Wins: where neighbouring rows share columns, by themselves (bands, meshes) or after clustering.
#include <cstdint>

#include "kernels/cuda/check.h"
#include "kernels/cuda/spmm/row_panels.cuh"
#include "kernels/cuda/spmm/slice.cuh"
#include "kernels/cuda/spmm/spmm.h"

namespace sparsed::cuda {
namespace {

constexpr int kInFlight = 8;  // slots of a group whose operand rows are loaded at once

/// Of a block: a wide group needs many more for a long panel, narrow ones are many already.
template <int kGroup>
constexpr int kThreads = kGroup == 32 ? 256 : 128;

template <typename Part, int kGroup>
__device__ inline void AddSlots(const typename Part::Element* b, uint32_t b_stride,
                                const Share<typename Part::Element>& share, int lane, int elements,
                                Chunk<typename Part::Element, kGroup>* stages, Sums<Part>& sums) {
  using Stage = Chunk<typename Part::Element, kGroup>;
  ForEachChunk(share, lane, stages, [&](const Stage& chunk, int count) {
#pragma unroll 1
    for (int first = 0; first < count; first += kInFlight) {
      int32_t column[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; i += 4) {
        *reinterpret_cast<int4*>(column + i) =
            *reinterpret_cast<const int4*>(chunk.columns + first + i);
      }
      Part rows[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        rows[i] = Part::Load(RowAt(b, column[i], b_stride), elements);
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const auto& values = chunk.values[first + i];
#pragma unroll
        for (int r = 0; r < kPanelRows; ++r) sums.rows[r].Add(values.at[r], rows[i]);
      }
    }
  });
}

template <typename T, bool kAligned, int kGroup>
__global__ void __launch_bounds__(kThreads<kGroup>, 512 / kThreads<kGroup>)
    Panels(const PanelsProduct<T> p) {
  using Part = Slice<T, kAligned, kGroup>;
  constexpr int kGroups = kThreads<kGroup> / kGroup;
  union Shared {
    Chunk<T, kGroup> stages[kGroups][2];
    T exchange[kPanelRows * Part::kWidth * kThreads<kGroup> / 2];
    __device__ Shared() {}
  };
  __shared__ Shared shared;
  const int lane = threadIdx.x % kGroup;
  const int group = threadIdx.x / kGroup;
  const int64_t first = Part::First(blockIdx.y, lane);
  const int elements = Part::Count(p.k, first);
  const PanelTask<T> task(p, group, kGroups);
  const Share<T>& share = task.share;
  // Lanes without columns read those of the first one.
  const T* const b = p.b + (elements > 0 ? first : Part::First(blockIdx.y, 0));
  Sums<Part> sums;
  AddSlots<Part, kGroup>(b, p.b_stride, share, lane, elements, shared.stages[group], sums);
  if (sums.HaveNan()) {
    AddMaskedSlots<Chunk<T, kGroup>::kSlots>(b, p.b_stride, share, 0, elements, sums);
  }
  if (share.team > 1) {
    AddUpTeam<kGroup>(shared.exchange, kThreads<kGroup> / 2, share.team, sums);
  }
  if (!task.emits || elements == 0) return;
  Emit(p, task.panel, 0, first, elements, sums);
}

template <typename T, bool kAligned, int kGroup>
absl::Status Launch(cudaStream_t stream, PanelsProduct<T> product) {
  const dim3 grid =
      GridFor(product, Slice<T, kAligned, kGroup>::kColumns, kGroup, kThreads<kGroup> / kGroup);
  Panels<T, kAligned, kGroup><<<grid, kThreads<kGroup>, 0, stream>>>(product);
  return ToStatus(cudaGetLastError(), "starting SpMM from row panels");
}

template <typename T, bool kAligned>
absl::Status LaunchGroup(cudaStream_t stream, const PanelsProduct<T>& product) {
  const int64_t lanes = product.k / kWidest<T>;
  if (lanes > 16) return Launch<T, kAligned, 32>(stream, product);
  if (lanes > 8) return Launch<T, kAligned, 16>(stream, product);
  return Launch<T, kAligned, 8>(stream, product);
}

template <typename T>
absl::Status RunOf(const Context& context, const SpmmArguments& arguments) {
  if (arguments.layout.rows == 0 || arguments.c.cols == 0) return absl::OkStatus();
  const absl::StatusOr<PanelsProduct<T>> product = ProductOf<T>(arguments);
  if (!product.ok()) return product.status();
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const bool aligned = RowsAreWide<T>(product->b, arguments.b.leading_dimension, product->k) &&
                       RowsAreWide<T>(product->c, product->ldc, product->k);
  return aligned ? LaunchGroup<T, true>(stream, *product) : LaunchGroup<T, false>(stream, *product);
}

absl::Status Run(const Context& context, const Problem& problem, const SpmmArguments& arguments) {
  return problem.type == ElementType::kF32 ? RunOf<float>(context, arguments)
                                           : RunOf<double>(context, arguments);
}

bool Supports(const Problem& problem, const Layout& layout) {
  return !IsHalf(problem.type) && IsPanelsSpmm(problem, layout);
}

}  // namespace

SpmmKernel RowPanelsSpmm() {
  return {.name = "cuda.row_panels.fma",
          .layout_kind = kRowPanels,
          .device = DeviceKind::kCuda,
          .deterministic = true,
          .supports = Supports,
          .workspace = NoWorkspace,
          .run = Run};
}

}  // namespace sparsed::cuda
