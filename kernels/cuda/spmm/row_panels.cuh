// What the SpMM kernels on row panels share: which slots a group of lanes works on, how groups that
// share a panel add up, and what is done about padding. Padded values are zeros. They spoil a sum
// only where B is not finite, and then as NaN: such sums are computed again with the rows' masks.
#pragma once

#include <cuda_pipeline_primitives.h>

#include <cstdint>

#include "kernels/cuda/check.h"
#include "kernels/cuda/spmm/slice.cuh"
#include "kernels/formats/row_panels.h"
#include "kernels/kernel_table.h"

namespace sparsed::cuda {

constexpr int kPanelRows = 8;

template <typename T>
struct PanelsProduct {
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
  SumOf<T> alpha, beta;
};

/// A panel's slots, of which a member of a team works on every team-th chunk.
template <typename T>
struct Share {
  const int32_t* columns;
  const T* values;
  const int32_t* row_masks;
  int slots, member, team;
};

/// What a group has to do. Long panels come first and have a block each.
template <typename T>
struct PanelTask {
  int64_t panel;
  Share<T> share;
  bool emits;  // the panel's rows of C

  __device__ PanelTask(const PanelsProduct<T>& p, int group, int groups) {
    const bool is_long = static_cast<int>(blockIdx.x) < p.long_blocks;
    const int team = is_long ? groups : p.team;
    panel = is_long
                ? p.long_panels[blockIdx.x]
                : static_cast<int64_t>(blockIdx.x - p.long_blocks) * (groups / team) + group / team;
    share = {p.columns, p.values, p.row_masks, 0, group % team, team};
    emits = panel < p.panels && share.member == 0;
    if (panel >= p.panels) return;
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
};

/// A slot's values.
template <typename T>
struct alignas(16) PanelColumn {
  T at[kPanelRows];
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

/// Calls multiply(chunk, count) for each chunk of a group's share and the number of its slots, the
/// next one on its way meanwhile. All groups of a warp stay together, so that they issue each
/// instruction once: `count` is that of the one with the most.
template <typename T, int kGroup, typename Multiply>
__device__ inline void ForEachChunk(const Share<T>& share, int lane, Chunk<T, kGroup>* stages,
                                    Multiply multiply) {
  constexpr int kSlots = Chunk<T, kGroup>::kSlots;
  const int step = share.team * kSlots;
  const auto copy = [&](int slot, Chunk<T, kGroup>& stage) {
    const int from = min(slot, share.slots);
    stage.Copy(share.columns + from, share.values + static_cast<int64_t>(from) * kPanelRows,
               min(share.slots - from, kSlots), lane);
  };
  int left = share.slots - share.member * kSlots;
  left = __reduce_max_sync(0xffffffffu, left);
  if (left <= 0) return;
  int slot = share.member * kSlots;
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
    multiply(stages[stage], min(left, kSlots));
    __syncwarp();
    stage = 1 - stage;
  }
}

/// The sums of kRows of a panel's rows in a lane's columns.
template <typename Part, int kRows = kPanelRows>
struct Sums {
  using Sum = typename SliceSum<Part>::Sum;
  SliceSum<Part> rows[kRows];

  __device__ bool HaveNan() const {
    Sum sum = 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int j = 0; j < Part::kWidth; ++j) sum += rows[r].at[j];
    }
    return sum != sum;
  }
  __device__ bool AreFinite() const {
    Sum sum = 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int j = 0; j < Part::kWidth; ++j) sum += rows[r].at[j] - rows[r].at[j];
    }
    return sum == 0;
  }
};

/// A share's sums for the panel's rows from first_row on, of the rows' own nonzeros alone. kSlots:
/// of a chunk.
template <int kSlots, typename Part, int kRows>
__device__ inline void AddMaskedSlots(const typename Part::Element* b, uint32_t b_stride,
                                      const Share<typename Part::Element>& share, int first_row,
                                      int elements, Sums<Part, kRows>& sums) {
  sums = {};
#pragma unroll 1
  for (int first = share.member * kSlots; first < share.slots; first += share.team * kSlots) {
#pragma unroll 1
    for (int slot = first; slot < min(first + kSlots, share.slots); ++slot) {
      const Part row = Part::Load(RowAt(b, share.columns[slot], b_stride), elements);
      const int mask = share.row_masks[slot] >> first_row;
      const auto* const values = share.values + static_cast<int64_t>(slot) * kPanelRows + first_row;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if ((mask >> r & 1) == 0) continue;
        sums.rows[r].Add(Widen(values[r]), row);
      }
    }
  }
}

/// Member 0 of each team of groups of kGroup lanes gets the sum of the team's sums. `exchange`:
/// kRows * Part::kWidth rows of half as many elements as a block has threads. Called by whole
/// blocks.
template <int kGroup, typename Part, int kRows>
__device__ inline void AddUpTeam(SumOf<typename Part::Element>* exchange, int half_threads,
                                 int team, Sums<Part, kRows>& sums) {
  const int group = threadIdx.x / kGroup, lane = threadIdx.x % kGroup;
  const int member = group % team;
  for (int half = team / 2; half > 0; half /= 2) {
    const int place = ((group / team) * half + member % half) * kGroup + lane;
    __syncthreads();
    if (member >= half && member < 2 * half) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int j = 0; j < Part::kWidth; ++j) {
          exchange[(r * Part::kWidth + j) * half_threads + place] = sums.rows[r].at[j];
        }
      }
    }
    __syncthreads();
    if (member < half) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int j = 0; j < Part::kWidth; ++j) {
          sums.rows[r].at[j] += exchange[(r * Part::kWidth + j) * half_threads + place];
        }
      }
    }
  }
}

/// Writes rows of C, those of the panel from first_row on, from column `first` on.
template <typename Part, int kRows>
__device__ inline void Emit(const PanelsProduct<typename Part::Element>& p, int64_t panel,
                            int first_row, int64_t first, int elements,
                            const Sums<Part, kRows>& sums) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t row = panel * kPanelRows + first_row + r;
    if (row >= p.rows) break;
    const int64_t target = p.row_order == nullptr ? row : p.row_order[row];
    sums.rows[r].Emit(p.c + target * p.ldc + first, elements, p.alpha, p.beta);
  }
}

/// Blocks of `groups` groups of `lanes` lanes; sets how many of them share a panel: more than one
/// where a group for each would leave most of the device idle.
template <typename T>
dim3 GridFor(PanelsProduct<T>& p, int64_t slab_columns, int lanes, int groups) {
  constexpr int64_t kEnoughLanes = 32 * 1024;
  const int64_t slabs = (p.k + slab_columns - 1) / slab_columns;
  p.team = 1;
  while (p.team < groups && p.panels * slabs * p.team * lanes < kEnoughLanes) p.team *= 2;
  const int64_t panels = groups / p.team;  // of a block
  return {static_cast<unsigned>(p.long_blocks + (p.panels + panels - 1) / panels),
          static_cast<unsigned>(slabs)};
}

template <typename T>
absl::StatusOr<PanelsProduct<T>> ProductOf(const SpmmArguments& arguments) {
  const RowPanelsView s = ViewRowPanels(arguments.layout);
  const absl::StatusOr<uint32_t> stride = RowStride<T>(arguments.b);
  if (!stride.ok()) return stride.status();
  return PanelsProduct<T>{.panel_offsets = s.panel_offsets.data(),
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
                          .alpha = static_cast<SumOf<T>>(arguments.alpha),
                          .beta = static_cast<SumOf<T>>(arguments.beta)};
}

inline bool IsPanelsSpmm(const Problem& problem, const Layout& layout) {
  return problem.device == DeviceKind::kCuda && problem.operation == Operation::kSpmm &&
         problem.k <= kMostSpmmWidth && !problem.transposed && layout.kind == kRowPanels &&
         layout.Parameter("rows") == kPanelRows;
}

}  // namespace sparsed::cuda
