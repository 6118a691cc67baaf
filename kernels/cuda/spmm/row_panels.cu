// SpMM from row panels: C = alpha * S * B + beta * C.
//
// Idea: a row of B is fetched once for all the rows of a panel and multiplied with a dense column
// of their values, the sums of all rows of the panel staying in registers (register tiles over a
// dense packing; the packing is that of layout "row_panels"). Padded values are zeros. They spoil a
// sum only where B is not finite, and then as NaN: sums that are NaN in the end are computed again,
// this time with the rows' masks.
// Layout in: "row_panels" of 8 rows.
// Threads: a group of 8 to 32 lanes a panel and slab of columns, 16 bytes a lane; slabs are
// gridDim.y, one after another. The slots' columns and values come through shared memory, copied
// asynchronously a chunk ahead, so that only the loads of B are waited for. Where there are too few
// panels to fill the device, several groups of a block share one, in turn chunk by chunk, and add
// their sums up in a fixed order; all groups of a block share a long one. Long panels come first.
// Needs: no workspace. Values aligned to 16 bytes.
// Wins: where neighbouring rows share columns, by themselves (bands, meshes) or after clustering.
#include <cuda_pipeline_primitives.h>

#include <cstdint>

#include "kernels/cuda/check.h"
#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/spmm/slice.cuh"
#include "kernels/cuda/spmm/spmm.h"
#include "kernels/formats/row_panels.h"

namespace sparsed::cuda {
namespace {

constexpr int kPanelRows = 8;
constexpr int kInFlight = 8;  // slots of a group whose operand rows are loaded at once

/// Of a block: a wide group needs many more for a long panel, narrow ones are many already.
template <int kGroup>
constexpr int kThreads = kGroup == 32 ? 256 : 128;

template <typename T>
struct Product {
  const int64_t* panel_offsets;
  const int32_t* columns;
  const int32_t* row_masks;
  const int32_t* long_panels;
  const int32_t* row_order;  // null: identity
  const T* values;
  const T* b;
  T* c;
  int64_t rows, panels, ldc, k;
  uint32_t b_stride;  // bytes from one row of B to the next
  int team;           // groups that share a panel: a power of two
  int long_blocks;    // long panels
  int long_slots;     // of a panel that is not long, at most
  T alpha, beta;
};

/// A slot's values.
template <typename T>
struct alignas(16) PanelColumn {
  T at[kPanelRows];
};

/// The sums of a panel's rows in a lane's columns.
template <typename Part>
struct Sums {
  using T = typename Part::Element;
  Part rows[kPanelRows];

  __device__ void Add(const PanelColumn<T>& values, const Part& b) {
#pragma unroll
    for (int r = 0; r < kPanelRows; ++r) rows[r].Add(values.at[r], b);
  }
  __device__ bool HaveNan() const {
    T sum = 0;
#pragma unroll
    for (int r = 0; r < kPanelRows; ++r) {
#pragma unroll
      for (int j = 0; j < Part::kWidth; ++j) sum += rows[r].at[j];
    }
    return sum != sum;
  }
};

/// Slots on their way to a group.
template <typename T, int kGroup>
struct Chunk {
  static constexpr int kSlots = kGroup == 32 ? 16 : 8;
  PanelColumn<T> values[kSlots];
  int32_t columns[kSlots];

  /// Begins to copy `count` slots, at most kSlots of them. What is behind them repeats the last one
  /// with zeros as values; without any slot the columns are 0.
  __device__ void Copy(const int32_t* from_columns, const T* from_values, int count, int lane) {
    constexpr int kPieces = static_cast<int>(sizeof(values) / 16);
    constexpr int kSlotPieces = static_cast<int>(sizeof(PanelColumn<T>) / 16);
    const int last = max(count - 1, 0);
#pragma unroll
    for (int piece = lane; piece < kPieces; piece += kGroup) {
      const bool inside = piece < count * kSlotPieces;
      __pipeline_memcpy_async(reinterpret_cast<int4*>(values) + piece,
                              reinterpret_cast<const int4*>(from_values) + (inside ? piece : 0), 16,
                              inside ? 0 : 16);
    }
#pragma unroll
    for (int slot = lane; slot < kSlots; slot += kGroup) {
      __pipeline_memcpy_async(columns + slot, from_columns + min(slot, last), 4, count > 0 ? 0 : 4);
    }
  }
};

/// A panel's slots, of which a member of a team works on every team-th chunk.
template <typename T>
struct Share {
  const int32_t* columns;
  const T* values;
  const int32_t* row_masks;
  int slots, member, team;
};

template <typename Part, int kGroup>
__device__ inline void AddSlots(const typename Part::Element* b, uint32_t b_stride,
                                const Share<typename Part::Element>& share, int lane, int elements,
                                Chunk<typename Part::Element, kGroup>* stages, Sums<Part>& sums) {
  using Stage = Chunk<typename Part::Element, kGroup>;
  const int step = share.team * Stage::kSlots;
  const auto copy = [&](int slot, Stage& stage) {
    const int from = min(slot, share.slots);
    stage.Copy(share.columns + from, share.values + static_cast<int64_t>(from) * kPanelRows,
               min(share.slots - from, Stage::kSlots), lane);
  };
  // All groups of a warp stay together, so that they issue each instruction once.
  int left = share.slots - share.member * Stage::kSlots;
  left = __reduce_max_sync(0xffffffffu, left);
  if (left <= 0) return;
  int slot = share.member * Stage::kSlots;
  copy(slot, stages[0]);
  __pipeline_commit();
  int stage = 0;
#pragma unroll 1
  for (; left > 0; left -= step) {
    slot += step;
    if (left > step) copy(slot, stages[1 - stage]);
    __pipeline_commit();
    __pipeline_wait_prior(1);
    __syncwarp();
    const Stage& chunk = stages[stage];
#pragma unroll 1
    for (int first = 0; first < min(left, Stage::kSlots); first += kInFlight) {
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
      for (int i = 0; i < kInFlight; ++i) sums.Add(chunk.values[first + i], rows[i]);
    }
    __syncwarp();
    stage = 1 - stage;
  }
}

/// The same with the rows' own nonzeros alone.
template <typename Part, int kGroup>
__device__ inline void AddMaskedSlots(const typename Part::Element* b, uint32_t b_stride,
                                      const Share<typename Part::Element>& share, int elements,
                                      Sums<Part>& sums) {
  constexpr int kSlots = Chunk<typename Part::Element, kGroup>::kSlots;
  sums = {};
#pragma unroll 1
  for (int first = share.member * kSlots; first < share.slots; first += share.team * kSlots) {
#pragma unroll 1
    for (int slot = first; slot < min(first + kSlots, share.slots); ++slot) {
      const Part row = Part::Load(RowAt(b, share.columns[slot], b_stride), elements);
      const int mask = share.row_masks[slot];
#pragma unroll
      for (int r = 0; r < kPanelRows; ++r) {
        if ((mask >> r & 1) == 0) continue;
        sums.rows[r].Add(share.values[static_cast<int64_t>(slot) * kPanelRows + r], row);
      }
    }
  }
}

/// Where a team's sums are added up: an element of every thread of a team's upper half.
template <typename Part, int kGroup>
using Exchange = typename Part::Element[kPanelRows * Part::kWidth][kThreads<kGroup> / 2];

/// Member 0 gets the sum of the team's sums. Called by whole blocks.
template <typename Part, int kGroup>
__device__ inline void AddUpTeam(Exchange<Part, kGroup>& exchange, int team, Sums<Part>& sums) {
  const int group = threadIdx.x / kGroup, lane = threadIdx.x % kGroup;
  const int member = group % team;
  for (int half = team / 2; half > 0; half /= 2) {
    const int place = ((group / team) * half + member % half) * kGroup + lane;
    __syncthreads();
    if (member >= half && member < 2 * half) {
#pragma unroll
      for (int r = 0; r < kPanelRows; ++r) {
#pragma unroll
        for (int j = 0; j < Part::kWidth; ++j) {
          exchange[r * Part::kWidth + j][place] = sums.rows[r].at[j];
        }
      }
    }
    __syncthreads();
    if (member < half) {
#pragma unroll
      for (int r = 0; r < kPanelRows; ++r) {
#pragma unroll
        for (int j = 0; j < Part::kWidth; ++j) {
          sums.rows[r].at[j] += exchange[r * Part::kWidth + j][place];
        }
      }
    }
  }
}

/// Writes a panel's rows of C, from column `first` on.
template <typename Part>
__device__ inline void Emit(const Product<typename Part::Element>& p, int64_t panel, int64_t first,
                            int elements, const Sums<Part>& sums) {
#pragma unroll
  for (int r = 0; r < kPanelRows; ++r) {
    const int64_t row = panel * kPanelRows + r;
    if (row >= p.rows) break;
    const int64_t target = p.row_order == nullptr ? row : p.row_order[row];
    sums.rows[r].Emit(p.c + target * p.ldc + first, elements, p.alpha, p.beta);
  }
}

template <typename T, bool kAligned, int kGroup>
__global__ void __launch_bounds__(kThreads<kGroup>, 512 / kThreads<kGroup>)
    Panels(const Product<T> p) {
  using Part = Slice<T, kAligned, kGroup>;
  constexpr int kGroups = kThreads<kGroup> / kGroup;
  union Shared {
    Chunk<T, kGroup> stages[kGroups][2];
    Exchange<Part, kGroup> exchange;
    __device__ Shared() {}
  };
  __shared__ Shared shared;
  const int lane = threadIdx.x % kGroup;
  const int group = threadIdx.x / kGroup;
  const int64_t first = Part::First(blockIdx.y, lane);
  const int elements = Part::Count(p.k, first);
  const bool is_long = static_cast<int>(blockIdx.x) < p.long_blocks;
  const int team = is_long ? kGroups : p.team;
  const int64_t panel =
      is_long ? p.long_panels[blockIdx.x]
              : static_cast<int64_t>(blockIdx.x - p.long_blocks) * (kGroups / team) + group / team;
  Share<T> share = {p.columns, p.values, p.row_masks, 0, group % team, team};
  bool emits = panel < p.panels && share.member == 0;
  if (panel < p.panels) {
    const int64_t begin = __ldg(p.panel_offsets + panel);
    share.columns += begin;
    share.values += begin * kPanelRows;
    share.row_masks += begin;
    share.slots = static_cast<int>(__ldg(p.panel_offsets + panel + 1) - begin);
    if (!is_long && share.slots > p.long_slots) {
      share.slots = 0;
      emits = false;
    }
  }
  // Lanes without columns read those of the first one.
  const T* const b = p.b + (elements > 0 ? first : Part::First(blockIdx.y, 0));
  Sums<Part> sums;
  AddSlots<Part, kGroup>(b, p.b_stride, share, lane, elements, shared.stages[group], sums);
  if (sums.HaveNan()) AddMaskedSlots<Part, kGroup>(b, p.b_stride, share, elements, sums);
  if (team > 1) AddUpTeam<Part, kGroup>(shared.exchange, team, sums);
  if (!emits || elements == 0) return;
  Emit(p, panel, first, elements, sums);
}

/// Groups for each panel: more than one where a group for each would leave most of the device idle.
int TeamFor(int64_t panels, int64_t slabs, int lanes, int groups) {
  constexpr int64_t kEnoughLanes = 32 * 1024;
  int team = 1;
  while (team < groups && panels * slabs * team * lanes < kEnoughLanes) team *= 2;
  return team;
}

template <typename T, bool kAligned, int kGroup>
absl::Status Launch(cudaStream_t stream, Product<T> product) {
  constexpr int kGroups = kThreads<kGroup> / kGroup;
  constexpr int64_t kColumns = Slice<T, kAligned, kGroup>::kColumns;
  const int64_t slabs = (product.k + kColumns - 1) / kColumns;
  product.team = TeamFor(product.panels, slabs, kGroup, kGroups);
  const int64_t panels = kGroups / product.team;  // of a block
  const dim3 grid(
      static_cast<unsigned>(product.long_blocks + (product.panels + panels - 1) / panels),
      static_cast<unsigned>(slabs));
  Panels<T, kAligned, kGroup><<<grid, kThreads<kGroup>, 0, stream>>>(product);
  return ToStatus(cudaGetLastError(), "starting SpMM from row panels");
}

template <typename T, bool kAligned>
absl::Status LaunchGroup(cudaStream_t stream, const Product<T>& product) {
  const int64_t lanes = product.k / kWidest<T>;
  if (lanes > 16) return Launch<T, kAligned, 32>(stream, product);
  if (lanes > 8) return Launch<T, kAligned, 16>(stream, product);
  return Launch<T, kAligned, 8>(stream, product);
}

template <typename T>
absl::Status RunOf(const Context& context, const SpmmArguments& arguments) {
  const RowPanelsView s = ViewRowPanels(arguments.layout);
  if (s.rows == 0 || arguments.c.cols == 0) return absl::OkStatus();
  const absl::StatusOr<uint32_t> stride = RowStride<T>(arguments.b);
  if (!stride.ok()) return stride.status();
  const Product<T> product = {.panel_offsets = s.panel_offsets.data(),
                              .columns = s.panel_columns.data(),
                              .row_masks = s.row_masks.data(),
                              .long_panels = s.long_panels.data(),
                              .row_order = s.row_order.empty() ? nullptr : s.row_order.data(),
                              .values = static_cast<const T*>(arguments.values),
                              .b = static_cast<const T*>(arguments.b.data),
                              .c = static_cast<T*>(arguments.c.data),
                              .rows = s.rows,
                              .panels = s.panels(),
                              .ldc = arguments.c.leading_dimension,
                              .k = arguments.c.cols,
                              .b_stride = *stride,
                              .team = 1,
                              .long_blocks = static_cast<int>(s.long_panels.size()),
                              .long_slots = static_cast<int>(s.long_slots),
                              .alpha = static_cast<T>(arguments.alpha),
                              .beta = static_cast<T>(arguments.beta)};
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const bool aligned = RowsAreWide<T>(product.b, arguments.b.leading_dimension, product.k) &&
                       RowsAreWide<T>(product.c, product.ldc, product.k);
  return aligned ? LaunchGroup<T, true>(stream, product) : LaunchGroup<T, false>(stream, product);
}

absl::Status Run(const Context& context, const Problem& problem, const SpmmArguments& arguments) {
  return problem.type == ElementType::kF32 ? RunOf<float>(context, arguments)
                                           : RunOf<double>(context, arguments);
}

bool Supports(const Problem& problem, const Layout& layout) {
  return problem.device == DeviceKind::kCuda && !IsHalf(problem.type) &&
         problem.operation == Operation::kSpmm && !problem.transposed &&
         layout.kind == kRowPanels && layout.Parameter("rows") == kPanelRows;
}

size_t Workspace(const Problem& /*problem*/, const Layout& /*layout*/, int /*threads*/) {
  return 0;
}

}  // namespace

SpmmKernel RowPanelsSpmm() {
  return {.name = "cuda.row_panels.fma",
          .layout_kind = kRowPanels,
          .device = DeviceKind::kCuda,
          .deterministic = true,
          .supports = Supports,
          .workspace = Workspace,
          .run = Run};
}

}  // namespace sparsed::cuda
