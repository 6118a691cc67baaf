// SDDMM from row panels on tensor cores: O = S .* (A * B^T).
//
// Idea: a panel of eight rows against its columns is a small dense product, eight rows of A times
// the rows of B of up to 32 slots, of which padding is dropped (FlashSparse, Shi et al., PPoPP'25,
// has the same shape for SDDMM, with the slots as the larger side). A row of B is fetched once for
// eight dot products. f32 keeps its accuracy: each element is split into two TF32 parts (mma.cuh).
// A dot product that overflows on that way is computed once more without splitting. f64 has tensor
// cores of its own.
// Layout in: "row_panels" of 8 rows; one of S^T has the operands' parts swapped.
// Threads: a warp takes an equal share of the slots, in chunks of up to 32 of one panel. Lane l
// holds, 16 bytes of K at a time, row l / 4 of the panel and the slots l / 4, l / 4 + 8, ...; four
// neighbouring lanes share 64 bytes of K. Which of them the instruction takes for which of its own
// k does not matter, as long as A and B agree.
// Needs: no workspace; for f32, K >= 16, below which the parts' error may exceed that of plain
// sums.
// Wins: where neighbouring rows share most columns, and matrices are small. Each load brings 64
// bytes of a row, half a cache line, which L2 serves at half its rate: row_panels_staged.cu brings
// whole ones, which pays for itself where there is enough to do.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/check.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/sddmm/dots.cuh"
#include "kernels/cuda/sddmm/row_search.cuh"
#include "kernels/cuda/sddmm/sddmm.h"
#include "kernels/formats/row_panels.h"

namespace sparsed::cuda {
namespace {

constexpr int kRows = 8;
constexpr int kChunk = 32;  // slots that a warp multiplies at once
constexpr int kLeastFloatK = 16;
/// Up to so long rows are best fetched by many warps, longer ones by warps that fetch more ahead.
constexpr size_t kShortBytes = 256;
/// So many fill a GPU several times over.
constexpr int64_t kWarps = 8192;

struct Panels {
  RowOffsets slots;
  const int32_t* columns;
  const int32_t* order;  // null: identity
  int rows;
  int64_t share;  // slots of a warp
};

/// sums[j] += the products of slot lane / 4 + 8 * j with rows lane % 4 * 2 and the next.
template <int kSlots>
__device__ inline void Multiply(float (&sums)[kSlots][2], const Vector<float, 4>& row,
                                const Vector<float, 4> (&slots)[kSlots]) {
#pragma unroll
  for (int k = 0; k < 4; k += 2) {
    const Tf32Parts<2> b({row.at[k], row.at[k + 1]});
#pragma unroll
    for (int j = 0; j < kSlots; j += 2) {
      const Tf32Parts<4> a(
          {slots[j].at[k], slots[j + 1].at[k], slots[j].at[k + 1], slots[j + 1].at[k + 1]});
      MultiplyTile(sums[j][0], sums[j][1], sums[j + 1][0], sums[j + 1][1], a, b);
    }
  }
}

template <int kSlots>
__device__ inline void Multiply(double (&sums)[kSlots][2], const Vector<double, 2>& row,
                                const Vector<double, 2> (&slots)[kSlots]) {
#pragma unroll
  for (int k = 0; k < 2; ++k) {
#pragma unroll
    for (int j = 0; j < kSlots; ++j) {
      MultiplyTile(sums[j][0], sums[j][1], slots[j].at[k], row.at[k]);
    }
  }
}

template <int kSlots, typename T>
__device__ inline void Multiply(float (&sums)[kSlots][2], const Vector<T, 8>& row,
                                const Vector<T, 8> (&slots)[kSlots]) {
#pragma unroll
  for (int k = 0; k < 8; k += 4) {
    const auto pair = [&](const Vector<T, 8>& from, int i) {
      return Pair(from.at[k + i], from.at[k + i + 1]);
    };
    const uint32_t b[2] = {pair(row, 0), pair(row, 2)};
#pragma unroll
    for (int j = 0; j < kSlots; j += 2) {
      const uint32_t a[4] = {pair(slots[j], 0), pair(slots[j + 1], 0), pair(slots[j], 2),
                             pair(slots[j + 1], 2)};
      MultiplyTile<T>(sums[j][0], sums[j][1], sums[j + 1][0], sums[j + 1][1], a, b);
    }
  }
}

/// The first `count` elements at `from`, zeros behind them. kWide: all or none, in one load.
template <bool kWide, typename T, int kWidth = kWidest<T>>
__device__ inline Vector<T, kWidth> LoadUpTo(int count, const T* from) {
  Vector<T, kWidth> part = {};
  if constexpr (kWide) {
    if (count > 0) part = LoadVector<T, kWidth>(from);
  } else {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      if (i < count) part.at[i] = from[i];
    }
  }
  return part;
}

/// The dot products of `count` slots from `start` on, at most 8 * kSlots, with a panel's rows.
template <int kAhead, bool kWide, int kSlots, typename T>
__device__ inline void MultiplyChunk(const Panels& s, const SddmmOperands<T>& operands, int panel,
                                     int64_t start, int count) {
  constexpr int kWidth = kWidest<T>;
  const int lane = threadIdx.x % 32;
  const auto row_of = [&](int i) {
    const int row = min(panel * kRows + i, s.rows - 1);
    return operands.a.data + (s.order == nullptr ? row : __ldg(s.order + row)) * operands.a.stride;
  };
  const auto slot_of = [&](int i) {
    return operands.b.data + __ldg(s.columns + start + min(i, count - 1)) * operands.b.stride;
  };
  const int own_k = lane % 4 * kWidth;
  const T* const row = row_of(lane / 4) + own_k;
  const T* slots[kSlots];
#pragma unroll
  for (int j = 0; j < kSlots; ++j) slots[j] = slot_of(lane / 4 + 8 * j) + own_k;

  // All of a lane's loads for kAhead steps of K are in flight before the first is waited for.
  SumOf<T> sums[kSlots][2] = {};
#pragma unroll 1
  for (int k = 0; k < operands.k; k += kAhead * 4 * kWidth) {
    Vector<T, kWidth> a[kAhead], b[kAhead][kSlots];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int at = k + i * 4 * kWidth;
      a[i] = LoadUpTo<kWide>(operands.k - own_k - at, row + at);
#pragma unroll
      for (int j = 0; j < kSlots; ++j) {
        b[i][j] = LoadUpTo<kWide>(operands.k - own_k - at, slots[j] + at);
      }
    }
    // Tensor cores cut what they add instead of rounding it: over all of K the cuts would add up.
    SumOf<T> parts[kSlots][2] = {};
#pragma unroll
    for (int i = 0; i < kAhead; ++i) Multiply<kSlots>(parts, a[i], b[i]);
#pragma unroll
    for (int j = 0; j < kSlots; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) sums[j][i] += parts[j][i];
    }
  }
#pragma unroll
  for (int j = 0; j < kSlots; ++j) {
    const int slot = lane / 4 + 8 * j;
    if (slot >= count) continue;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = lane % 4 * 2 + i;
      if constexpr (std::is_same_v<T, float>) {
        if (!isfinite(sums[j][i])) {
          sums[j][i] = 0;
          for (int k = 0; k < operands.k; ++k) sums[j][i] += row_of(r)[k] * slot_of(slot)[k];
        }
      }
      operands.Store((start + slot) * kRows + r, sums[j][i]);
    }
  }
}

template <int kAhead, bool kWide, typename T>
__global__ void __launch_bounds__(kThreads, kAhead == 1 ? kBlocksPerMultiprocessor : 2)
    PanelDots(const Panels s, const SddmmOperands<T> operands) {
  const int lane = threadIdx.x % 32;
  const int64_t begin =
      (static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32) * s.share;
  if (begin >= s.slots.items) return;
  const int64_t end = min(begin + s.share, s.slots.items);
  // Chunks count from where their panel begins; this warp's are those that begin in its share.
  int panel = FindRow(s.slots, begin, lane);
  int64_t start = s.slots.begins[panel];
  start += (begin - start + kChunk - 1) / kChunk * kChunk;
  int64_t panel_end = s.slots.begins[panel + 1];
  while (true) {
    if (start >= panel_end) {
      start = panel_end;
      if (start >= end) break;
      panel_end = s.slots.begins[++panel + 1];
      if (panel_end == start) {  // empty, as many more may be
        panel = FindRow(s.slots, start, lane);
        panel_end = s.slots.begins[panel + 1];
      }
    }
    if (start >= end) break;
    const int count = static_cast<int>(min(panel_end - start, int64_t{kChunk}));
    if (count > kChunk / 2) {
      MultiplyChunk<kAhead, kWide, 4>(s, operands, panel, start, count);
    } else {
      MultiplyChunk<kAhead, kWide, 2>(s, operands, panel, start, count);
    }
    start += kChunk;
  }
}

template <typename T>
absl::Status RunOf(const Context& context, const SddmmArguments& arguments) {
  const Layout& layout = arguments.layout;
  if (layout.nnz == 0) return absl::OkStatus();
  const RowPanelsView view = ViewRowPanels(layout);
  const Panels s = {
      .slots = {view.panel_offsets.data(), static_cast<int>(view.panels()), view.slots()},
      .columns = view.panel_columns.data(),
      .order = view.row_order.empty() ? nullptr : view.row_order.data(),
      .rows = static_cast<int>(layout.rows),
      .share = std::clamp<int64_t>(view.slots() / (kWarps * kChunk), 1, 2) * kChunk};
  const SddmmOperands<T> operands(arguments);
  const int64_t per_block = kThreads / 32 * s.share;
  const auto blocks = static_cast<unsigned>((view.slots() + per_block - 1) / per_block);
  const auto stream = static_cast<cudaStream_t>(context.stream);
  if (!operands.wide()) {
    PanelDots<1, false, T><<<blocks, kThreads, 0, stream>>>(s, operands);
  } else if (operands.k * sizeof(T) <= kShortBytes) {
    PanelDots<1, true, T><<<blocks, kThreads, 0, stream>>>(s, operands);
  } else {
    PanelDots<2, true, T><<<blocks, kThreads, 0, stream>>>(s, operands);
  }
  return ToStatus(cudaGetLastError(), "starting SDDMM");
}

absl::Status Run(const Context& context, const Problem& problem, const SddmmArguments& arguments) {
  return VisitFloat(problem.type, [&]<typename T>(T) { return RunOf<T>(context, arguments); });
}

bool Supports(const Problem& problem, const Layout& layout) {
  return problem.device == DeviceKind::kCuda && problem.operation == Operation::kSddmm &&
         layout.kind == kRowPanels && layout.Parameter("rows") == kRows && layout.rows <= kMost &&
         problem.k <= kMost && (problem.type != ElementType::kF32 || problem.k >= kLeastFloatK);
}

}  // namespace

SddmmKernel RowPanelsSddmm() {
  return {.name = "cuda.row_panels.dots",
          .layout_kind = kRowPanels,
          .device = DeviceKind::kCuda,
          .deterministic = true,
          .supports = Supports,
          .workspace = NoWorkspace,
          .run = Run,
          .accuracy = TensorCoreAccuracy};
}

}  // namespace sparsed::cuda
