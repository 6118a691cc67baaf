// The products of a row of C = S * T, shared evenly among the lanes of a team: a part of a warp, or
// a block. The team takes as many of S's nonzeros at once as it has lanes; their rows of T lie one
// after the other, and each lane finds by a search in which of them its product is.
#pragma once

#include <cstdint>

#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/spgemm/host.h"
#include "kernels/kernel_table.h"

namespace sparsed::cuda {

template <typename T>
struct SparsePair {
  const int64_t* s_offsets;
  const int32_t* s_columns;
  const T* s_values;
  const int64_t* t_offsets;
  const int32_t* t_columns;
  const T* t_values;
  int64_t cols;  // of C
};

template <typename T>
SparsePair<T> PairOf(const SpgemmArguments& arguments) {
  const CsrView &s = arguments.left, &t = arguments.right;
  return {s.row_offsets.data(),
          s.column_indices.data(),
          static_cast<const T*>(arguments.left_values),
          t.row_offsets.data(),
          t.column_indices.data(),
          static_cast<const T*>(arguments.right_values),
          t.cols};
}

/// Where rows of C go.
template <typename T>
struct RowTarget {
  int64_t first, count;      // of C
  const int64_t* row_begin;  // null: rows are only counted
  int32_t* columns;
  T* values;
  int64_t* row_nnz;
};

template <typename T>
RowTarget<T> TargetOf(const RowsCall& call) {
  return {call.range.begin,    call.range.end - call.range.begin, call.row_begin.data(),
          call.column_indices, static_cast<T*>(call.values),      call.row_nnz.data()};
}

/// First position in [low, high) whose column is at least `column`, or high.
__device__ inline int64_t FirstFrom(const int32_t* columns, int64_t low, int64_t high,
                                    int32_t column) {
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (__ldg(columns + middle) < column) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/// The sum of `mine` over the lanes of a team up to this one, for teams that fill their warp.
template <int kLanes>
__device__ inline int32_t SumThrough(int32_t mine) {
  const int lane = threadIdx.x % kLanes;
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) {
    const int32_t before = __shfl_up_sync(0xffffffffu, mine, distance, kLanes);
    if (lane >= distance) mine += before;
  }
  return mine;
}

/// What the warps of a block before this one have in `totals`; in *all, all of them together.
template <int kWarps>
__device__ inline int32_t SumBefore(const int32_t* totals, int32_t* all) {
  const int warp = threadIdx.x / 32;
  int32_t before = 0;
  *all = 0;
#pragma unroll
  for (int other = 0; other < kWarps; ++other) {
    if (other == warp) before = *all;
    *all += totals[other];
  }
  return before;
}

/// What a team of kLanes knows of the nonzeros of S that it has taken; in shared memory.
template <typename T, int kLanes>
struct Batch {
  int32_t offsets[kLanes + 1];  // products before each nonzero's; the last one: all of them
  int64_t starts[kLanes];       // where its product p is in T: starts + p
  T scales[kLanes];

  /// The nonzero that product p belongs to.
  __device__ int Find(int32_t p) const {
    int at = 0;
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) {
      if (offsets[at + step] <= p) at += step;
    }
    return at;
  }
};

/// Calls visit(column, product) for each product of the row whose nonzeros are [begin, end), for
/// teams of a warp or less. All lanes of the warp call it and stay together, whatever their rows.
/// Lanes of a team may come with the same column at once.
template <int kLanes, bool kValues, typename Semiring, typename Visit>
__device__ inline void VisitProducts(const SparsePair<typename Semiring::Element>& p, int64_t begin,
                                     int64_t end, Batch<typename Semiring::Element, kLanes>& batch,
                                     Visit visit) {
  using T = typename Semiring::Element;
  constexpr unsigned kWarp = 0xffffffffu;
  constexpr int kAtOnce = 2;  // products of a lane
  const int lane = threadIdx.x % kLanes;
  for (int64_t first = begin; __any_sync(kWarp, first < end); first += kLanes) {
    int64_t start = 0;
    int32_t length = 0;
    T scale = 0;
    if (first + lane < end) {
      const int32_t row = __ldg(p.s_columns + first + lane);
      start = __ldg(p.t_offsets + row);
      length = static_cast<int32_t>(__ldg(p.t_offsets + row + 1) - start);
      if (kValues) scale = __ldg(p.s_values + first + lane);
    }
    const int32_t through = SumThrough<kLanes>(length);
    batch.offsets[lane] = through - length;
    batch.starts[lane] = start - (through - length);
    if (kValues) batch.scales[lane] = scale;
    const int32_t all = __shfl_sync(kWarp, through, kLanes - 1, kLanes);
    if (lane == 0) batch.offsets[kLanes] = all;
    __syncwarp();
    const auto taken = static_cast<int>(min(static_cast<int64_t>(kLanes), end - first));
    if (kLanes >= 16 && __all_sync(kWarp, all >= kLanes / 2 * taken)) {
      // Long rows of T: one after the other needs no search. The next one's beginning is on its way
      // meanwhile.
      const auto load = [&](int at, int32_t product, T* value) {
        if (at >= taken || product >= batch.offsets[at + 1]) return -1;
        const int64_t position = batch.starts[at] + product;
        if (kValues) *value = Semiring::Product(batch.scales[at], __ldg(p.t_values + position));
        return __ldg(p.t_columns + position);
      };
      T next_value = 0;
      int32_t next = load(0, lane, &next_value);
      for (int at = 0; at < taken; ++at) {
        int32_t column = next;
        T value = next_value;
        next = load(at + 1, batch.offsets[at + 1] + lane, &next_value);
        for (int32_t product = batch.offsets[at] + lane; product - lane < batch.offsets[at + 1];) {
          if (column >= 0) visit(column, value);
          product += kLanes;
          column = load(at, product, &value);
          __syncwarp(GroupMask<kLanes>());
        }
      }
      __syncwarp();
      continue;
    }
    const int32_t most = kLanes == 32 ? all : __reduce_max_sync(kWarp, all);
    for (int32_t done = 0; done < most; done += kLanes * kAtOnce) {
      int32_t columns[kAtOnce];
      T products[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int32_t product = done + i * kLanes + lane;
        columns[i] = -1;
        if (product < all) {
          const int at = batch.Find(product);
          const int64_t position = batch.starts[at] + product;
          columns[i] = __ldg(p.t_columns + position);
          if (kValues)
            products[i] = Semiring::Product(batch.scales[at], __ldg(p.t_values + position));
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (columns[i] >= 0) visit(columns[i], kValues ? products[i] : T(0));
        __syncwarp();
      }
    }
  }
}

/// A window of columns [begin, end) that a block looks at; whole: all of the row's are in it.
struct ColumnWindow {
  int32_t begin, end;
  bool whole;
};

/// The nonzero of S of this thread, if the row has no more of them than the block has threads.
template <typename T>
struct HeldNonzero {
  bool held;
  int64_t start, stop;  // its row of T
  T scale;
};

/// For a block: takes the nonzeros from `first` on, one a thread, with the parts of their rows of T
/// in the window. Returns their products, and makes *behind the least column behind the window that
/// this thread met, if it is less. What threads wrote to shared memory before is visible to all
/// afterwards. `totals` has room for a number a warp.
template <int kLanes, bool kScales, typename T>
__device__ inline int32_t TakeNonzeros(const SparsePair<T>& p, int64_t first, int64_t end,
                                       const HeldNonzero<T>& mine, const ColumnWindow& window,
                                       Batch<T, kLanes>& batch, int32_t* totals, int32_t* behind) {
  constexpr int kWarps = kLanes / 32;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  int64_t start = mine.start, stop = mine.stop;
  T scale = mine.scale;
  if (!mine.held) {
    start = stop = 0;
    if (first + threadIdx.x < end) {
      const int32_t row = __ldg(p.s_columns + first + threadIdx.x);
      start = __ldg(p.t_offsets + row);
      stop = __ldg(p.t_offsets + row + 1);
      if (kScales) scale = __ldg(p.s_values + first + threadIdx.x);
    }
  }
  if (!window.whole && start < stop) {
    if (__ldg(p.t_columns + start) < window.begin) {
      start = FirstFrom(p.t_columns, start + 1, stop, window.begin);
    }
    if (start < stop && __ldg(p.t_columns + stop - 1) >= window.end) {
      stop = FirstFrom(p.t_columns, start, stop - 1, window.end);
      *behind = min(*behind, __ldg(p.t_columns + stop));
    }
  }
  const auto length = static_cast<int32_t>(stop - start);
  const int32_t through = SumThrough<32>(length);
  if (lane == 31) totals[warp] = through;
  __syncthreads();
  int32_t all = 0;
  const int32_t offset = SumBefore<kWarps>(totals, &all) + through - length;
  batch.offsets[threadIdx.x] = offset;
  batch.starts[threadIdx.x] = start - offset;
  if (kScales) batch.scales[threadIdx.x] = scale;
  if (threadIdx.x == 0) batch.offsets[kLanes] = all;
  __syncthreads();
  return all;
}

/// Calls visit(column, product) for the `all` products of what the block has taken.
template <int kLanes, bool kValues, typename Semiring, typename Visit>
__device__ inline void VisitTaken(const SparsePair<typename Semiring::Element>& p,
                                  const Batch<typename Semiring::Element, kLanes>& batch,
                                  int32_t all, Visit visit) {
  using T = typename Semiring::Element;
  constexpr int kAtOnce = 4;  // products of a lane
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  for (int32_t product = warp * 32 * kAtOnce + lane; product < all; product += kLanes * kAtOnce) {
    int at = batch.Find(product);
    int32_t columns[kAtOnce];
    T products[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      columns[i] = -1;
      if (product + 32 * i < all) {
        while (batch.offsets[at + 1] <= product + 32 * i) ++at;
        const int64_t position = batch.starts[at] + product + 32 * i;
        columns[i] = __ldg(p.t_columns + position);
        if (kValues)
          products[i] = Semiring::Product(batch.scales[at], __ldg(p.t_values + position));
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (columns[i] >= 0) visit(columns[i], kValues ? products[i] : T(0));
    }
  }
}

}  // namespace sparsed::cuda
