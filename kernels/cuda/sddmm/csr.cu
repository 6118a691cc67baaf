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

constexpr int kThreads = 256;
constexpr int kBlocksPerMultiprocessor = 4;           // 32 warps: at most 64 registers a thread
constexpr int kStep = 32;                             // nonzeros that a warp looks up at once
constexpr int64_t kMostRows = INT32_MAX - 2 * kStep;  // rows are counted in 32 bits

struct Rows {
  const int64_t* offsets;
  const int32_t* columns;
  const int32_t* order;  // null: identity
  int count;
  int64_t nnz;
  int64_t share;  // nonzeros of a warp, a multiple of kStep
};

/// The row of nonzero `position`, found by the whole warp: 32 places are looked at in each round.
__device__ inline int FindRow(const Rows& s, int64_t position, int lane) {
  int low = 0, high = s.count;  // offsets[low] <= position < offsets[high]
  while (high - low > 1) {
    const int step = (high - low - 1) / 32 + 1;
    const int64_t at = low + int64_t{lane} * step;
    const bool begins = at < high && s.offsets[at] <= position;
    const int last = 31 - __clz(__ballot_sync(kWarp, begins));  // lane 0 always says yes
    low += last * step;
    high = high - low > step ? low + step : high;
  }
  return low;
}

/// Of nonzero begin + lane, if `row` is the row of `begin` or one before it, and `ended` says where
/// row + lane ends, counted from `begin`.
__device__ inline int RowOf(const Rows& s, int64_t begin, int row, int ended, int lane) {
  int rows = 0;  // that end before this lane's nonzero
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    if (__shfl_sync(kWarp, ended, rows + step - 1) <= lane) rows += step;
  }
  if (__shfl_sync(kWarp, ended, rows) <= lane) ++rows;
  if (rows < 32 || begin + lane >= s.nnz) return min(row + rows, s.count - 1);
  return static_cast<int>(UpperBound(s.offsets, row + 33, s.count, begin + lane)) - 1;
}

/// What RowOf wants to know.
__device__ inline int RowEnd(const Rows& s, int64_t begin, int row, int lane) {
  const int64_t end = __ldg(s.offsets + min(row + 1 + lane, s.count));
  return static_cast<int>(min(end - begin, int64_t{kStep}));
}

template <typename T, int kWidth, int kGroup, typename Offset>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    RowDots(const Rows s, const SddmmOperands<T> operands) {
  constexpr int kTogether = kGroup < 8 ? kGroup : 8;  // nonzeros of a group that share a reduction
  constexpr int kLoads = kTogether > 4 && sizeof(T) == 8 ? 4 : kTogether;  // at once, of B
  constexpr int kHalf = kTogether / 2;                                     // the same for A and B
  constexpr int kBatch = kTogether * (32 / kGroup);                        // nonzeros of a warp
  constexpr int kSharers = kGroup / kTogether;                             // lanes with one sum
  using Part = Vector<T, kWidth>;
  const int lane = threadIdx.x % 32;
  int64_t begin = (static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32) * s.share;
  if (begin >= s.nnz) return;
  int steps = static_cast<int>((min(s.share, s.nnz - begin) + kStep - 1) / kStep);

  // Of the nonzeros of a step, this lane stores one: that of this batch, and of its group's the one
  // whose sum it gets.
  const int batch_kept = lane % kSharers;
  const int stored = batch_kept * kBatch + lane / kGroup * kTogether + lane % kGroup / kSharers;

  int row = FindRow(s, begin, lane);
  int ended = RowEnd(s, begin, row, lane);
  int column = __ldcs(s.columns + min(begin + lane, s.nnz - 1));
  for (; steps > 0; --steps, begin += kStep) {
    const int own_row = RowOf(s, begin, row, ended, lane);
    row = __shfl_sync(kWarp, own_row, kStep - 1);
    const unsigned starts = __ballot_sync(kWarp, own_row != __shfl_up_sync(kWarp, own_row, 1));
    const Offset own_b = static_cast<Offset>(column) * static_cast<Offset>(operands.b_stride);
    const Offset own_a =
        static_cast<Offset>(s.order == nullptr ? own_row : __ldg(s.order + own_row)) *
        static_cast<Offset>(operands.a_stride);
    if (steps > 1) {  // fetched ahead
      ended = RowEnd(s, begin + kStep, row, lane);
      column = __ldcs(s.columns + min(begin + kStep + lane, s.nnz - 1));
    }
    T kept = 0;
#pragma unroll 1
    for (int batch = 0; batch < kStep / kBatch; ++batch) {
      if (begin + batch * kBatch >= s.nnz) break;
      const int first = batch * kBatch + lane / kGroup * kTogether;
      const bool one_row = __all_sync(kWarp, (starts >> first & ((1u << kTogether) - 2)) == 0);
      T sums[kTogether] = {};
#pragma unroll 1
      for (int64_t k = 0; k < operands.k; k += kGroup * kWidth) {
        // Lanes behind the end load what others load, and add nothing.
        const int64_t own_k = k + lane % kGroup * kWidth;
        const bool inside = own_k < operands.k;
        const auto at = static_cast<Offset>((inside ? own_k : k) * sizeof(T));
        if (one_row) {
          const Part a = Load<T, kWidth>(operands.a, __shfl_sync(kWarp, own_a, first) + at);
#pragma unroll
          for (int j = 0; j < kTogether; j += kLoads) {
            Part b[kLoads];
#pragma unroll
            for (int i = 0; i < kLoads; ++i) {
              b[i] = Load<T, kWidth>(operands.b, __shfl_sync(kWarp, own_b, first + j + i) + at);
            }
#pragma unroll
            for (int i = 0; i < kLoads; ++i) {
              if (inside) AddProducts(sums[j + i], a, b[i]);
            }
          }
        } else {
#pragma unroll
          for (int j = 0; j < kTogether; j += kHalf) {
            Part a[kHalf], b[kHalf];
#pragma unroll
            for (int i = 0; i < kHalf; ++i) {
              b[i] = Load<T, kWidth>(operands.b, __shfl_sync(kWarp, own_b, first + j + i) + at);
              a[i] = Load<T, kWidth>(operands.a, __shfl_sync(kWarp, own_a, first + j + i) + at);
            }
#pragma unroll
            for (int i = 0; i < kHalf; ++i) {
              if (inside) AddProducts(sums[j + i], a[i], b[i]);
            }
          }
        }
      }
      const T sum = ReduceTogether<kGroup>(sums);
      if (batch == batch_kept) kept = sum;
    }
    if (begin + stored < s.nnz) operands.Store(begin + stored, kept);
  }
}

template <typename T, int kWidth, int kGroup>
void Launch(cudaStream_t stream, const Rows& s, const SddmmOperands<T>& operands) {
  const int64_t per_block = s.share * (kThreads / 32);
  const auto blocks = static_cast<unsigned>((s.nnz + per_block - 1) / per_block);
  if (operands.small) {
    RowDots<T, kWidth, kGroup, uint32_t><<<blocks, kThreads, 0, stream>>>(s, operands);
  } else {
    RowDots<T, kWidth, kGroup, uint64_t><<<blocks, kThreads, 0, stream>>>(s, operands);
  }
}

template <typename T, int kWidth>
void LaunchGroup(cudaStream_t stream, const Rows& s, const SddmmOperands<T>& operands) {
  const int64_t k = operands.k;
  if (k <= 2 * kWidth) return Launch<T, kWidth, 2>(stream, s, operands);
  if (k <= 4 * kWidth) return Launch<T, kWidth, 4>(stream, s, operands);
  if (k <= 8 * kWidth) return Launch<T, kWidth, 8>(stream, s, operands);
  if (k <= 16 * kWidth) return Launch<T, kWidth, 16>(stream, s, operands);
  Launch<T, kWidth, 32>(stream, s, operands);
}

/// Enough warps to fill a GPU several times over, so that they end together; past that, long shares
/// save searches.
int64_t ShareOf(int64_t nnz) {
  constexpr int64_t kWarps = 16384;
  return std::clamp<int64_t>(nnz / (kWarps * kStep), 1, 8) * kStep;
}

template <typename T>
absl::Status RunOf(const Context& context, const SddmmArguments& arguments) {
  const Layout& layout = arguments.layout;
  if (layout.nnz == 0) return absl::OkStatus();
  const CsrView view = ViewCsr(layout);
  const Rows s = {.offsets = view.row_offsets.data(),
                  .columns = view.column_indices.data(),
                  .order = view.row_order.empty() ? nullptr : view.row_order.data(),
                  .count = static_cast<int>(layout.rows),
                  .nnz = layout.nnz,
                  .share = ShareOf(layout.nnz)};
  const SddmmOperands<T> operands(arguments);
  const auto stream = static_cast<cudaStream_t>(context.stream);
  if (operands.wide) {
    LaunchGroup<T, kWidest<T>>(stream, s, operands);
  } else {
    LaunchGroup<T, 1>(stream, s, operands);
  }
  return ToStatus(cudaGetLastError(), "starting SDDMM");
}

absl::Status Run(const Context& context, const Problem& problem, const SddmmArguments& arguments) {
  return problem.type == ElementType::kF32 ? RunOf<float>(context, arguments)
                                           : RunOf<double>(context, arguments);
}

bool Supports(const Problem& problem, const Layout& layout) {
  return problem.device == DeviceKind::kCuda && problem.operation == Operation::kSddmm &&
         layout.kind == kCsr && layout.rows <= kMostRows;
}

size_t Workspace(const Problem& /*problem*/, const Layout& /*layout*/, int /*threads*/) {
  return 0;
}

}  // namespace

SddmmKernel CsrSddmm() {
  return {.name = "cuda.csr.row_dots",
          .layout_kind = kCsr,
          .device = DeviceKind::kCuda,
          .deterministic = true,
          .supports = Supports,
          .workspace = Workspace,
          .run = Run};
}

}  // namespace sparsed::cuda
