// SpGEMM under a mask: C has the positions of M that have products, no others; in every semiring.
//
// Idea: each nonzero of S asks which columns of its row of T the row of M has, too. The shorter of
// the two is walked through and looked up in the other one by bisection, so that neither hubs of T
// nor long rows of M cost more than the other's length (as in triangle counting by edges; Green,
// Yalamanchili, Munguia, IA3 2014). M's positions have sums of their own, and flags: every entry's
// place is known, and nothing is hashed or sorted. A second kernel gathers each row's.
// Layout in: plain CSR of all three. `prepare` makes the sums and flags: 5 or 9 bytes for each
// position of M.
// Threads: eight lanes for a nonzero of S; warps take 32 neighbouring nonzeros. Gathering, a warp a
// row.
// Wins: what it needs not multiply. Sums depend on the order in which lanes come.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "kernels/cuda/check.h"
#include "kernels/cuda/spgemm/host.h"
#include "kernels/cuda/spgemm/products.cuh"
#include "kernels/cuda/spgemm/semirings.cuh"
#include "kernels/cuda/spgemm/spgemm.h"

namespace sparsed::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kEdgeLanes = 8;
/// Searching a row costs so many steps of walking.
constexpr int64_t kSearch = 4;

struct Prepared {
  Buffer memory;
  uint8_t* hits = nullptr;  ///< of each position of M: whether there are products; else 0
  void* sums = nullptr;     ///< ... and their sum; else what a sum begins with
};

// ---- Kernels

struct Mask {
  const int64_t* offsets;
  const int32_t* columns;
  uint8_t* hits;
  void* sums;
};

/// A nonzero of S, with its rows of T and of M.
template <typename T>
struct Edge {
  int64_t t_begin, t_end, m_begin, m_end;
  T scale;
};

template <typename T>
__device__ inline Edge<T> Shuffled(const Edge<T>& edge, int lane) {
  constexpr unsigned kWarp = 0xffffffffu;
  return {__shfl_sync(kWarp, edge.t_begin, lane), __shfl_sync(kWarp, edge.t_end, lane),
          __shfl_sync(kWarp, edge.m_begin, lane), __shfl_sync(kWarp, edge.m_end, lane),
          __shfl_sync(kWarp, edge.scale, lane)};
}

/// The products of rows [first, end) that meet the mask.
template <typename Semiring>
__global__ void __launch_bounds__(kThreads)
    MultiplyEdges(const SparsePair<typename Semiring::Element> p, const Mask mask, int64_t first,
                  int64_t end) {
  using T = typename Semiring::Element;
  const int lane = threadIdx.x % 32;
  const int64_t warp = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t nonzeros_end = p.s_offsets[end];
  for (int64_t base = p.s_offsets[first] + warp * 32; base < nonzeros_end; base += stride) {
    Edge<T> mine = {};
    const int64_t nonzero = base + lane;
    if (nonzero < nonzeros_end) {
      const int64_t row = UpperBound(p.s_offsets, first, end, nonzero) - 1;
      const int32_t k = __ldg(p.s_columns + nonzero);
      mine.t_begin = __ldg(p.t_offsets + k);
      mine.t_end = __ldg(p.t_offsets + k + 1);
      mine.m_begin = __ldg(mask.offsets + row);
      mine.m_end = __ldg(mask.offsets + row + 1);
      if constexpr (Semiring::kSums) mine.scale = __ldg(p.s_values + nonzero);
    }
    for (int source = lane / kEdgeLanes; source < 32; source += 32 / kEdgeLanes) {
      const Edge<T> edge = Shuffled(mine, source);
      const auto hit = [&](int64_t in_mask, int64_t in_t) {
        mask.hits[in_mask] = 1;
        if constexpr (Semiring::kSums) {
          Semiring::Add(static_cast<T*>(mask.sums) + in_mask,
                        Semiring::Product(edge.scale, __ldg(p.t_values + in_t)));
        }
      };
      if (edge.t_end - edge.t_begin <= kSearch * (edge.m_end - edge.m_begin)) {
        for (int64_t j = edge.t_begin + lane % kEdgeLanes; j < edge.t_end; j += kEdgeLanes) {
          const int32_t column = __ldg(p.t_columns + j);
          const int64_t at = FirstFrom(mask.columns, edge.m_begin, edge.m_end, column);
          if (at < edge.m_end && __ldg(mask.columns + at) == column) hit(at, j);
        }
      } else {
        for (int64_t j = edge.m_begin + lane % kEdgeLanes; j < edge.m_end; j += kEdgeLanes) {
          const int32_t column = __ldg(mask.columns + j);
          const int64_t at = FirstFrom(p.t_columns, edge.t_begin, edge.t_end, column);
          if (at < edge.t_end && __ldg(p.t_columns + at) == column) hit(j, at);
        }
      }
      __syncwarp();
    }
  }
}

/// Gathers the rows, and leaves flags and sums as they were before them.
template <typename Semiring>
__global__ void __launch_bounds__(kThreads)
    GatherRows(const Mask mask, const RowTarget<typename Semiring::Element> to) {
  using T = typename Semiring::Element;
  const int lane = threadIdx.x % 32;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * (kThreads / 32);
  int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  for (; i < to.count; i += stride) {
    const int64_t begin = mask.offsets[to.first + i], end = mask.offsets[to.first + i + 1];
    int64_t out = to.row_begin == nullptr ? 0 : to.row_begin[i];
    const int64_t before = out;
    for (int64_t base = begin; base < end; base += 32) {
      const int64_t at = base + lane;
      const bool hit = at < end && mask.hits[at] != 0;
      const unsigned set = __ballot_sync(0xffffffffu, hit);
      if (hit) {
        mask.hits[at] = 0;
        if (to.row_begin != nullptr) {
          const int64_t place = out + __popc(set & ((1u << lane) - 1));
          to.columns[place] = mask.columns[at];
          if constexpr (Semiring::kSums) {
            T* const sum = static_cast<T*>(mask.sums) + at;
            to.values[place] = *sum;
            *sum = Semiring::Nothing();
          } else {
            to.values[place] = 1;
          }
        }
      }
      out += __popc(set);
    }
    if (lane == 0) to.row_nnz[i] = out - before;
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) FillWithNan(T* sums, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) sums[i] = MinPlus<T>::Nothing();
}

__global__ void __launch_bounds__(kThreads)
    BoundRows(const int64_t* s_offsets, const int32_t* s_columns, const int64_t* t_offsets,
              const int64_t* m_offsets, int64_t rows, int64_t* bounds,
              unsigned long long* products) {
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kEdgeLanes;
  unsigned long long sum = 0;
  if (row < rows) {
    const int64_t end = s_offsets[row + 1];
    for (int64_t j = s_offsets[row] + threadIdx.x % kEdgeLanes; j < end; j += kEdgeLanes) {
      const int32_t k = s_columns[j];
      sum += t_offsets[k + 1] - t_offsets[k];
    }
  }
#pragma unroll
  for (int distance = kEdgeLanes / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  }
  if (row < rows && threadIdx.x % kEdgeLanes == 0) {
    bounds[row] = min(static_cast<int64_t>(sum), m_offsets[row + 1] - m_offsets[row]);
  }
#pragma unroll
  for (int distance = kEdgeLanes; distance < 32; distance *= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  }
  if (threadIdx.x % 32 == 0 && sum > 0) atomicAdd(products, sum);
}

// ---- Phases

absl::StatusOr<std::shared_ptr<void>> Prepare(const Context& context, const Problem& problem,
                                              const SpgemmArguments& arguments,
                                              MemorySource& memory) {
  const int64_t positions = arguments.mask->nnz();
  const size_t hits = RoundUp(positions);
  const bool has_sums = problem.semiring != Semiring::kBoolean;
  const size_t sums = has_sums ? positions * SizeOf(problem.type) : 0;
  absl::StatusOr<Buffer> buffer = memory.Allocate(hits + sums);
  if (!buffer.ok()) return buffer.status();
  auto prepared = std::make_shared<Prepared>();
  prepared->memory = *std::move(buffer);
  prepared->hits = reinterpret_cast<uint8_t*>(prepared->memory.mutable_data());
  prepared->sums = prepared->hits + hits;
  const auto stream = static_cast<cudaStream_t>(context.stream);
  cudaError_t error = cudaMemsetAsync(prepared->hits, 0, hits + sums, stream);
  if (error == cudaSuccess && problem.semiring == Semiring::kMinPlus && positions > 0) {
    if (problem.type == ElementType::kF64) {
      FillWithNan<<<BlocksFor(positions, kThreads), kThreads, 0, stream>>>(
          static_cast<double*>(prepared->sums), positions);
    } else {
      FillWithNan<<<BlocksFor(positions, kThreads), kThreads, 0, stream>>>(
          static_cast<float*>(prepared->sums), positions);
    }
    error = cudaGetLastError();
  }
  if (absl::Status s = ToStatus(error, "preparing SpGEMM under a mask"); !s.ok()) {
    return Settled(context.stream, std::move(s));
  }
  return std::static_pointer_cast<void>(prepared);
}

bool Supports(const Problem& problem) { return IsFloatSpgemm(problem) && problem.masked; }

absl::Status Analyse(const Context& context, const SpgemmArguments& arguments,
                     std::span<int64_t> row_bounds, int64_t* products) {
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const int64_t rows = arguments.left.rows;
  cudaError_t error = cudaMemsetAsync(products, 0, sizeof(*products), stream);
  if (error == cudaSuccess && rows > 0) {
    BoundRows<<<BlocksFor(rows * kEdgeLanes, kThreads), kThreads, 0, stream>>>(
        arguments.left.row_offsets.data(), arguments.left.column_indices.data(),
        arguments.right.row_offsets.data(), arguments.mask->row_offsets.data(), rows,
        row_bounds.data(), reinterpret_cast<unsigned long long*>(products));
    error = cudaGetLastError();
  }
  return ToStatus(error, "analysing SpGEMM under a mask");
}

template <typename Semiring>
absl::Status Compute(const RowsCall& call) {
  using T = typename Semiring::Element;
  if (call.range.begin == call.range.end) return absl::OkStatus();
  const auto stream = static_cast<cudaStream_t>(call.context.stream);
  const auto& prepared = *static_cast<const Prepared*>(call.context.prepared);
  const SparsePair<T> pair = PairOf<T>(call.arguments);
  const Mask mask = {call.arguments.mask->row_offsets.data(),
                     call.arguments.mask->column_indices.data(), prepared.hits, prepared.sums};
  const RowTarget<T> to = TargetOf<T>(call);
  constexpr int64_t kBlocksPerMultiprocessor = 16;
  // As BlocksForRows: each is to end soon.
  constexpr int64_t kMostTurns = 64;
  const int64_t fill = Multiprocessors() * kBlocksPerMultiprocessor;
  const auto blocks = [&](int64_t threads) {
    const int64_t turns = BlocksFor(threads, kThreads);
    return static_cast<unsigned>(std::min(turns, std::max(fill, turns / kMostTurns)));
  };
  if (call.arguments.left.nnz() > 0) {
    MultiplyEdges<Semiring><<<blocks(call.arguments.left.nnz()), kThreads, 0, stream>>>(
        pair, mask, call.range.begin, call.range.end);
  }
  GatherRows<Semiring><<<blocks(to.count * 32), kThreads, 0, stream>>>(mask, to);
  return ToStatus(cudaGetLastError(), "starting SpGEMM under a mask");
}

absl::Status Symbolic(const Context& context, const SpgemmArguments& arguments, RowRange range,
                      std::span<int64_t> row_nnz) {
  return Compute<Boolean<float>>({context, arguments, range, row_nnz});
}

template <typename T>
absl::Status ComputeIn(const RowsCall& call) {
  switch (call.semiring) {
    case Semiring::kBoolean:
      return Compute<Boolean<T>>(call);
    case Semiring::kMinPlus:
      return Compute<MinPlus<T>>(call);
    case Semiring::kPlusPair:
      return Compute<PlusPair<T>>(call);
    case Semiring::kSumProduct:
      break;
  }
  return Compute<SumProduct<T>>(call);
}

}  // namespace

SpgemmKernel MaskedSpgemm() {
  return {.name = "cuda.csr.masked",
          .device = DeviceKind::kCuda,
          .deterministic = false,
          .supports = Supports,
          .workspace = NoSpgemmWorkspace,
          .analyse = Analyse,
          .symbolic = Symbolic,
          .numeric = NumericByType<ComputeIn<float>, ComputeIn<double>>,
          .prepare = Prepare};
}

}  // namespace sparsed::cuda
