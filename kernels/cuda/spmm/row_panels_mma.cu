// SpMM from row panels on tensor cores: C = alpha * S * B + beta * C.
//
// Idea: the product of a panel is taken transposed, C^T = B^T * S^T, so that the panel's eight rows
// are the eight columns of the instruction's tile and nothing is padded to sixteen (the swap of
// FlashSparse, Shi et al., PPoPP'25). Which of the tile's rows are which columns of C is free, so
// that lanes load 16 bytes of a row of B. f16 and bf16 are multiplied as they are. f32 is rounded
// to TF32 where that is allowed; elsewhere it is split in two TF32 parts (mma.cuh). f64 has tensor
// cores of its own.
// Layout in: "row_panels" of 8 rows.
// Threads: a warp a panel and column block of up to 512 bytes of columns (256 for f16 and bf16);
// column blocks are gridDim.y, one after another. The slots' columns and values come through shared
// memory, as for row_panels.fma. Eight lanes load 128 bytes of a slot's row; shuffles bring them to
// the lanes whose part of the tile they are. Those would load quarters of cache lines, four slots'
// at a time.
// Needs: no workspace. Values aligned to 16 bytes.
// Wins: for f16 and bf16. For wider types, whose rows of B mostly come no faster than
// row_panels.fma multiplies them: at small K, and where panels find rows of B in the L1 cache.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/check.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/spmm/row_panels.cuh"
#include "kernels/cuda/spmm/slice.cuh"
#include "kernels/cuda/spmm/spmm.h"

namespace sparsed::cuda {
namespace {

/// Of a block: long panels need many, others leave a multiprocessor sooner with fewer.
constexpr int kThreads = 128;
constexpr int kThreadsWithLong = 256;
constexpr int kLaneRows = 2;  // of the panel whose sums a lane has

/// A lane's slots that one instruction multiplies.
template <typename T>
constexpr int kTileSlots = 8 / sizeof(T);

/// A lane's slots, every fourth of a batch, whose operand rows are loaded at once.
template <typename T>
constexpr int LaneSlots(int pieces) {
  return std::max(pieces == 4 ? 2 : 4, kTileSlots<T>);
}

/// sums += the products of kTileSlots<T> slots: their rows of B with their values of panel row
/// lane / 4. kRound: f32 as TF32.
template <bool kRound, typename Part, typename T>
__device__ inline void MultiplySlots(Sums<Part, kLaneRows>& sums, const Part* slots,
                                     const T* values) {
  auto& low = sums.rows[0].at;
  auto& high = sums.rows[1].at;
  if constexpr (std::is_same_v<T, double>) {
#pragma unroll
    for (int j = 0; j < Part::kWidth; ++j) {
      MultiplyTile(low[j], high[j], slots[0].at[j], values[0]);
    }
  } else if constexpr (kIsHalf<T>) {
    const uint32_t b[2] = {Pair(values[0], values[1]), Pair(values[2], values[3])};
#pragma unroll
    for (int j = 0; j < Part::kWidth; j += 2) {
      const uint32_t a[4] = {
          Pair(slots[0].at[j], slots[1].at[j]), Pair(slots[0].at[j + 1], slots[1].at[j + 1]),
          Pair(slots[2].at[j], slots[3].at[j]), Pair(slots[2].at[j + 1], slots[3].at[j + 1])};
      MultiplyTile<T>(low[j], high[j], low[j + 1], high[j + 1], a, b);
    }
  } else if constexpr (kRound) {
    const float b[2] = {RoundToTf32(values[0]), RoundToTf32(values[1])};
#pragma unroll
    for (int j = 0; j < Part::kWidth; j += 2) {
      const float a[4] = {RoundToTf32(slots[0].at[j]), RoundToTf32(slots[0].at[j + 1]),
                          RoundToTf32(slots[1].at[j]), RoundToTf32(slots[1].at[j + 1])};
      MultiplyTile(low[j], high[j], low[j + 1], high[j + 1], a, b);
    }
  } else {
    const Tf32Parts<2> b({values[0], values[1]});
#pragma unroll
    for (int j = 0; j < Part::kWidth; j += 2) {
      const Tf32Parts<4> a(
          {slots[0].at[j], slots[0].at[j + 1], slots[1].at[j], slots[1].at[j + 1]});
      // Tensor cores cut what they add instead of rounding it: the cuts would add up.
      float part[4] = {};
      MultiplyTile(part[0], part[1], part[2], part[3], a, b);
      low[j] += part[0], high[j] += part[1];
      low[j + 1] += part[2], high[j + 1] += part[3];
    }
  }
}

/// From the order in which loads are fast, neighbouring lanes having neighbouring columns of a
/// slot, to that of tiles: lane l gets what lane l % 4 * 8 + l / 4 has.
template <typename Part>
__device__ inline void Reorder(Part& part, int lane) {
  uint32_t words[sizeof(part.at) / sizeof(uint32_t)];
  __builtin_memcpy(words, part.at, sizeof(words));
#pragma unroll
  for (uint32_t& word : words) word = __shfl_sync(0xffffffffu, word, lane % 4 * 8 + lane / 4);
  __builtin_memcpy(part.at, words, sizeof(words));
}

/// Whether that pays: loads of single pieces may be less than cache lines.
template <typename Part>
constexpr bool kReorders = Part::kWidth > kWidest<typename Part::Element>;

/// `b` points at a column of the lane's loads and has so many elements there.
template <bool kRound, int kCount, typename Part, typename T>
__device__ inline void AddSlots(const T* b, uint32_t b_stride, const Share<T>& share, int lane,
                                int elements, Chunk<T, 32>* stages, Sums<Part, kLaneRows>& sums) {
  constexpr int kTile = kTileSlots<T>;
  const int loader = kReorders<Part> ? lane / 8 : lane % 4;  // of every fourth slot
  ForEachChunk(share, lane, stages, [&](const Chunk<T, 32>& chunk, int count) {
#pragma unroll 1
    for (int first = 0; first < count; first += 4 * kCount) {
      Part rows[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int column = chunk.columns[first + i * 4 + loader];
        rows[i] = Part::Load(RowAt(b, column, b_stride), elements);
      }
#pragma unroll
      for (int i = 0; i < kCount; i += kTile) {
        T values[kTile];
#pragma unroll
        for (int j = 0; j < kTile; ++j) {
          if constexpr (kReorders<Part>) Reorder(rows[i + j], lane);
          values[j] = chunk.values[first + (i + j) * 4 + lane % 4].at[lane / 4];
        }
        MultiplySlots<kRound>(sums, rows + i, values);
      }
    }
  });
}

template <typename T, bool kRound, bool kAligned, int kPieces>
__global__ void __launch_bounds__(kThreadsWithLong, kPieces == 1 ? 3 : 2)
    Panels(const PanelsProduct<T> p) {
  using Part = Slice<T, kAligned, 8, kPieces>;
  constexpr int kCount = LaneSlots<T>(kPieces);
  extern __shared__ int4 shared[];  // chunks, then sums of teams
  auto* const stages = reinterpret_cast<Chunk<T, 32>*>(shared) + threadIdx.x / 32 * 2;
  const int lane = threadIdx.x % 32;
  const PanelTask<T> task(p, static_cast<int>(threadIdx.x) / 32, static_cast<int>(blockDim.x) / 32);
  // Lanes without columns load those of the first one.
  const auto columns_of = [&](int part) {
    const int64_t first = Part::First(blockIdx.y, part);
    return first < p.k ? first : Part::First(blockIdx.y, 0);
  };
  Sums<Part, kLaneRows> sums;
  const int64_t loaded = columns_of(kReorders<Part> ? lane % 8 : lane / 4);
  AddSlots<kRound, kCount>(p.b + loaded, p.b_stride, task.share, lane, Part::Count(p.k, loaded),
                           stages, sums);
  const int64_t first = columns_of(lane / 4);
  const int elements = Part::Count(p.k, Part::First(blockIdx.y, lane / 4));
  const int first_row = lane % 4 * kLaneRows;
  if (std::is_same_v<T, float> ? !sums.AreFinite() : sums.HaveNan()) {
    AddMaskedSlots<Chunk<T, 32>::kSlots>(p.b + first, p.b_stride, task.share, first_row, elements,
                                         sums);
  }
  if (task.share.team > 1) {
    AddUpTeam<32>(reinterpret_cast<SumOf<T>*>(shared), static_cast<int>(blockDim.x) / 2,
                  task.share.team, sums);
  }
  if (!task.emits || elements == 0) return;
  Emit(p, task.panel, first_row, first, elements, sums);
}

template <typename T, bool kRound, bool kAligned, int kPieces>
absl::Status Launch(cudaStream_t stream, PanelsProduct<T> product) {
  using Part = Slice<T, kAligned, 8, kPieces>;
  const int threads = product.long_blocks > 0 ? kThreadsWithLong : kThreads;
  const dim3 grid = GridFor(product, Part::kColumns, 32, threads / 32);
  const size_t chunks = threads / 32 * 2 * sizeof(Chunk<T, 32>);
  const size_t exchange = kLaneRows * Part::kWidth * (threads / 2) * sizeof(SumOf<T>);
  Panels<T, kRound, kAligned, kPieces>
      <<<grid, threads, std::max(chunks, exchange), stream>>>(product);
  return ToStatus(cudaGetLastError(), "starting SpMM from row panels");
}

template <typename T, bool kRound = false>
absl::Status RunOf(const Context& context, const SpmmArguments& arguments) {
  if (arguments.layout.rows == 0 || arguments.c.cols == 0) return absl::OkStatus();
  const absl::StatusOr<PanelsProduct<T>> product = ProductOf<T>(arguments);
  if (!product.ok()) return product.status();
  const auto stream = static_cast<cudaStream_t>(context.stream);
  if (!RowsAreWide<T>(product->b, arguments.b.leading_dimension, product->k) ||
      !RowsAreWide<T>(product->c, product->ldc, product->k)) {
    return Launch<T, kRound, false, 1>(stream, *product);
  }
  if (product->k * sizeof(T) <= 128) return Launch<T, kRound, true, 1>(stream, *product);
  if constexpr (!kIsHalf<T>) {
    if (product->k * sizeof(T) > 256) return Launch<T, kRound, true, 4>(stream, *product);
  }
  return Launch<T, kRound, true, 2>(stream, *product);
}

absl::Status Run(const Context& context, const Problem& problem, const SpmmArguments& arguments) {
  if (problem.allow_tf32 && problem.type == ElementType::kF32) {
    return RunOf<float, true>(context, arguments);
  }
  return VisitFloat(problem.type, [&]<typename T>(T) { return RunOf<T>(context, arguments); });
}

}  // namespace

SpmmKernel RowPanelsMmaSpmm() {
  return {.name = "cuda.row_panels.mma",
          .layout_kind = kRowPanels,
          .device = DeviceKind::kCuda,
          .deterministic = true,
          .supports = IsPanelsSpmm,
          .workspace = NoWorkspace,
          .run = Run,
          .accuracy = TensorCoreAccuracy};
}

}  // namespace sparsed::cuda
