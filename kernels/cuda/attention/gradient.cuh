// The gradients of attention over plain CSR, scores made again from the logarithms of the rows'
// sums: what one thread, group or block does. How it is started is in gradient.cu.
//
// Idea: with D[i] the dot product of row i of `out` and of its gradient, the gradient of a score is
// its weight times (gradient[i] . values[j] - D[i]) (Dao et al. 2022, appendix B). What belongs to
// column j is summed over row j of S^T, what belongs to row i over row i of S, so that nothing is
// added atomically and the same comes out every time. Both read two rows a nonzero, several on
// their way at a time. The pass over S leaves each nonzero's weight and the gradient of its score,
// with which the pass over S^T only adds rows up; where these numbers would take more memory than
// the operands and their gradients, that computes them again. Of scores that are sums, the first
// pass leaves the gradient of each nonzero's score, from which the gradient of `left` is added up:
// four bytes a head instead of a row.
//
// GATv2's sums over columns change with z = left + right by att times LeakyReLU's slope at z, and
// with att by LeakyReLU(z), so that what is added up along a row is the gradient of the score times
// the slope, att being multiplied at the end; of att's own gradient each warp leaves its rows' sum.
//
// Layout in: "csr", and that of S^T with a value source.
//
// Threads: groups of 8, 16 or 32 lanes, a row and as many heads as fit each; further heads are in
// gridDim.y, column blocks of wide heads in gridDim.z. Chunks of long rows come first in the grid,
// a second kernel adds them up.
//
// Needs: two numbers a nonzero and head, or a row and head; for long rows, a row of sums for each
// chunk; where gradients of nonzeros are asked for or added up, a number for each nonzero and head;
// for the gradient of att, a row of sums for each warp.
#pragma once

#include "kernels/attention.h"
#include "kernels/cuda/attention/heads.cuh"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/row_passes.cuh"

namespace sparsed::cuda::attention {

/// Of a row and head: the logarithm (of base 2) of the sum, and D.
template <typename W>
struct alignas(2 * sizeof(W)) RowStatistics {
  W logarithm, product;
};

/// Of a nonzero and head: its weight and the gradient of its score.
template <typename W>
struct alignas(2 * sizeof(W)) Edge {
  W weight, of_score;
};

/// What chunks of split rows have found, side by side in rows of `stride` sums, and where it goes.
template <typename T>
struct Partials {
  SumOf<T>* data = nullptr;
  int64_t stride = 0;
  static constexpr int kMost = 3;
  struct Target {
    T* data = nullptr;
    int64_t leading = 0;
    int columns = 0;
    SumOf<T> factor = 1;
  } targets[kMost];
};

template <typename T>
struct Backward : Operands<T> {
  using Sum = SumOf<T>;
  using Operands<T>::Operands;
  Nonzeros s;      // S or S^T
  Sum factor = 1;  // of gradients of `left` and `right`
  Rows<const T> out, out_gradient;
  Rows<const Sum> log_sums;
  bool by_nonzero = false;  // there is a bias, or something is written of each nonzero
  const RowStatistics<Sum>* statistics = nullptr;  // M x H
  Rows<T> left_gradient, right_gradient, values_gradient;
  Edge<Sum>* edges = nullptr;      // nnz x H in the order of S's CSR; null: not to be left
  Sum* score_gradients = nullptr;  // of what is added to `bias`, nnz x H in the order of S's CSR
  Sum* sum_gradients = nullptr;    // kSum: of left + right, likewise
  SumOf<T>* att_sums = nullptr;  // for each warp of OfRows, rows of att_stride; null: not asked for
  int64_t att_stride = 0;
  Partials<T> partials;
  int64_t values_at = 0;  // column of partials where those of values begin
};

template <typename T>
struct Dots {
  int64_t rows;
  int heads, width;
  Rows<const T> out, gradient;
  Rows<const SumOf<T>> log_sums;
  RowStatistics<SumOf<T>>* statistics;
};

// A group of 8 lanes for each row and head.
template <typename T>
__global__ void __launch_bounds__(kThreads) StatisticsOfRows(const Dots<T> p) {
  const int lane = threadIdx.x % 8;
  const int64_t item = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 8;
  if (item >= p.rows * p.heads) return;
  const int64_t row = item / p.heads;
  const int head = static_cast<int>(item % p.heads);
  const T* const out = p.out.At(row) + static_cast<int64_t>(head) * p.width;
  const T* const gradient = p.gradient.At(row) + static_cast<int64_t>(head) * p.width;
  SumOf<T> sum = 0;
  for (int j = lane; j < p.width; j += 8)
    sum += Widen(ReadOnly(out + j)) * Widen(ReadOnly(gradient + j));
  for (int mask = 4; mask > 0; mask /= 2) sum += __shfl_xor_sync(GroupMask<8>(), sum, mask, 8);
  if (lane != 0) return;
  const SumOf<T> logarithm = p.log_sums.At(row)[head];
  p.statistics[item] = {logarithm * static_cast<SumOf<T>>(kLog2E), sum};
}

/// The kernel that puts the chunks of split rows together may get ready; it waits for this grid.
__device__ inline void MergingMayGetReady() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

/// A group's row of S or S^T, and what it knows of nonzeros.
template <typename P, int kGroup>
struct Row : Lane<P, kGroup> {
  using T = typename P::Element;
  using Sum = typename P::Sum;
  using Statistics = RowStatistics<Sum>;
  using Lane<P, kGroup>::quarters, Lane<P, kGroup>::active, Lane<P, kGroup>::head;

  const Backward<T>& p;

  __device__ Row(const Backward<T>& p, int lane) : Lane<P, kGroup>(p, lane), p(p) {}

  __device__ Statistics StatisticsOf(uint32_t row) const {
    return p.statistics[static_cast<int64_t>(row) * p.heads.heads + head];
  }

  /// Of a row of S, by the head's lanes; `gradient` is their part of that of `out`.
  __device__ Statistics StatisticsOf(int64_t at, const P& gradient) const {
    P out;
    out.Load(p.out.At(at), this->values_at);
    const Sum logarithm = p.log_sums.At(at)[head];
    Sum product = out.Dot(gradient, this->values_at);
    for (int lanes = quarters.half; lanes > 0; lanes /= 2) product += quarters.From(product, lanes);
    return {logarithm * static_cast<Sum>(kLog2E), product};
  }

  /// `product`: of its values with the gradient of `out`; `steepness`: of a sum's LeakyReLU (kSum);
  /// `nonzero`: its number in the layout; `speaks`: this lane is the one that writes of it.
  template <bool kSum>
  __device__ Edge<Sum> Weigh(Sum score, Sum product, const Statistics& statistics, Sum steepness,
                             int64_t nonzero, bool there, bool speaks) const {
    score *= p.scale;
    int64_t position = 0;
    if (p.by_nonzero && there) {
      position = p.s.position[nonzero];
      if (p.bias.data != nullptr) score += p.Bias(position, head);
    }
    Edge<Sum> edge;
    // The logarithm of a row of which all is masked is minus infinity, from which nothing differs.
    edge.weight = there && statistics.logarithm != -static_cast<Sum>(INFINITY)
                      ? Power(score - statistics.logarithm)
                      : Sum(0);
    edge.of_score = edge.weight == 0 ? Sum(0) : edge.weight * (product - statistics.product);
    if (p.by_nonzero && there && active && speaks && P::IsOfFirstSlab()) {
      const int64_t to = position * p.heads.heads + head;
      if (!kSum && p.edges != nullptr) p.edges[to] = edge;
      if (p.score_gradients != nullptr) p.score_gradients[to] = edge.of_score;
      if (kSum && p.sum_gradients != nullptr) p.sum_gradients[to] = steepness * edge.of_score;
    }
    return edge;
  }
};

/// Row j of the gradients of `right` and of `values`, of scores of two rows.
template <typename P, int kGroup>
__device__ inline void StoreOfColumn(const Backward<typename P::Element>& p,
                                     const Lane<P, kGroup>& row, const Task& task,
                                     const Sums<P>& key_sums, const Sums<P>& value_sums) {
  using Sum = typename P::Sum;
  if (task.row < 0 || !row.active) return;
  if (task.chunk >= 0) {
    Sum* const to = p.partials.data + task.chunk * p.partials.stride;
    key_sums.Store(to, row.at, Sum(1));
    value_sums.Store(to + p.values_at, row.values_at, Sum(1));
    return;
  }
  if (p.right_gradient.data != nullptr) {
    key_sums.Store(p.right_gradient.At(task.row), row.at, p.factor);
  }
  if (p.values_gradient.data != nullptr) {
    value_sums.Store(p.values_gradient.At(task.row), row.values_at, Sum(1));
  }
}

/// Leaves the sum of what the warp's groups have, `warp` being its number in the grid.
template <typename P, int kGroup>
__device__ inline void StoreOfAtt(const Backward<typename P::Element>& p,
                                  const Lane<P, kGroup>& row, Sums<P> sums) {
#pragma unroll
  for (int other = kGroup; other < 32; other *= 2) {
#pragma unroll
    for (int j = 0; j < P::kWidth; ++j) sums.at[j] += __shfl_xor_sync(kWarp, sums.at[j], other);
  }
  const int64_t warp = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  if (row.active && threadIdx.x % 32 < kGroup) {
    sums.Store(p.att_sums + warp * p.att_stride, row.at, typename P::Sum(1));
  }
}

/// Row i of S: the gradient of row i of `left`, of scores of two rows, and what row j of S^T needs
/// of the row's nonzeros. Four at a time, each quarter of a head's lanes sees to one.
template <typename P, int kGroup, bool kGatv2>
__global__ void __launch_bounds__(kThreads, BlocksFor<P>(kGatv2 ? 2 : 0))
    OfRows(const Backward<typename P::Element> p) {
  using Sum = typename P::Sum;
  MergingMayGetReady();
  const int lane = threadIdx.x % kGroup;
  const Task task = TaskOf<kGroup>(p.s, lane);
  // Each warp leaves a sum of GATv2's, and be it of nothing.
  if (!kGatv2 && __all_sync(kWarp, task.row < 0)) return;
  auto columns = ColumnsOf<kGroup>(p.s, task, lane);
  const Row<P, kGroup> row(p, lane);
  const int number = row.quarters.quarter;
  P query, gradient, att;
  query.Load(p.left.At(task.existing_row()), row.at);
  if constexpr (kGatv2) att.Load(p.att, row.at);
  gradient.Load(p.out_gradient.At(task.existing_row()), row.values_at);
  const RowStatistics<Sum> statistics = row.StatisticsOf(task.existing_row(), gradient);
  Sums<P> sums, att_sums;
  ForEachFour(task, [&](int done, auto all) {
    const auto there = [&](int i) { return decltype(all)::value || done + i < task.count; };
    P keys[4], values[4];
    Sum scores[4], products[4];
    columns.MoveTo(done);
    p.template LoadFour<kGatv2>(columns, there, row, keys, values);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scores[i] = p.template Share<kGatv2>(query, keys[i], att, row.at);
      products[i] = gradient.Dot(values[i], row.values_at);
    }
    const auto edge =
        row.template Weigh<false>(row.quarters.SumOf(scores), row.quarters.SumOf(products),
                                  statistics, 1, task.begin + done + number, there(number),
                                  row.quarters.within == number * row.quarters.fourth);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Sum of_score = row.quarters.Of(edge.of_score, i);
      if (!there(i)) continue;
      if constexpr (kGatv2) {
        sums.AddSlopes(of_score, query, keys[i], p.slope, &att_sums);
      } else {
        sums.Add(of_score, keys[i]);
      }
    }
  });
  if constexpr (kGatv2) {
    if (p.att_sums != nullptr) StoreOfAtt<P, kGroup>(p, row, att_sums);
    sums.Multiply(att);
  }
  if (task.row < 0 || !row.active || p.left_gradient.data == nullptr) return;
  if (task.chunk >= 0) {
    sums.Store(p.partials.data + task.chunk * p.partials.stride, row.at, Sum(1));
  } else {
    sums.Store(p.left_gradient.At(task.row), row.at, p.factor);
  }
}

/// Row j of S^T: the gradients of row j of `right` and of `values`, of scores of two rows, from
/// what is known of the row's nonzeros.
template <typename P, int kGroup, bool kGatv2>
__global__ void __launch_bounds__(kThreads, BlocksFor<P>(kGatv2 ? 1 : 0))
    OfEdges(const Backward<typename P::Element> p) {
  using Sum = typename P::Sum;
  MergingMayGetReady();
  const int lane = threadIdx.x % kGroup;
  const Task task = TaskOf<kGroup>(p.s, lane);
  if (__all_sync(kWarp, task.row < 0)) return;
  auto columns = ColumnsOf<kGroup>(p.s, task, lane);
  const auto read = [&](int i) { return static_cast<uint32_t>(p.s.position[task.begin + i]); };
  Ahead<kGroup, decltype(read)> positions(read, task.count, lane);
  const Lane<P, kGroup> row(p, lane);
  P key;
  if constexpr (kGatv2) key.Load(p.right.At(task.existing_row()), row.at);
  Sums<P> key_sums, value_sums;
  ForEachFour(task, [&](int done, auto all) {
    const auto there = [&](int i) { return decltype(all)::value || done + i < task.count; };
    P queries[4], gradients[4];
    Edge<Sum> edges[4];
    columns.MoveTo(done);
    positions.MoveTo(done);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t other = columns.Of(i);
      const int64_t position = positions.Of(i);
      if (!there(i)) continue;
      edges[i] = p.edges[position * p.heads.heads + row.head];
      queries[i].Load(p.left.At(other), row.at);
      gradients[i].Load(p.out_gradient.At(other), row.values_at);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (!there(i)) continue;
      value_sums.Add(edges[i].weight, gradients[i]);
      if constexpr (kGatv2) {
        key_sums.AddSlopes(edges[i].of_score, queries[i], key, p.slope, nullptr);
      } else {
        key_sums.Add(edges[i].of_score, queries[i]);
      }
    }
  });
  if constexpr (kGatv2) {
    P att;
    att.Load(p.att, row.at);
    key_sums.Multiply(att);
  }
  StoreOfColumn<P, kGroup>(p, row, task, key_sums, value_sums);
}

/// Row j of S^T: the same, all computed again, which takes more registers.
template <typename P, int kGroup, bool kGatv2>
__global__ void __launch_bounds__(kThreads, 8) OfColumns(const Backward<typename P::Element> p) {
  using Sum = typename P::Sum;
  MergingMayGetReady();
  const int lane = threadIdx.x % kGroup;
  const Task task = TaskOf<kGroup>(p.s, lane);
  if (__all_sync(kWarp, task.row < 0)) return;
  auto columns = ColumnsOf<kGroup>(p.s, task, lane);
  const Row<P, kGroup> row(p, lane);
  const int number = row.quarters.quarter;
  P key, value, att;
  if constexpr (kGatv2) att.Load(p.att, row.at);
  key.Load(p.right.At(task.existing_row()), row.at);
  value.Load(p.values.At(task.existing_row()), row.values_at);
  Sums<P> key_sums, value_sums;
  ForEachFour(task, [&](int done, auto all) {
    const auto there = [&](int i) { return decltype(all)::value || done + i < task.count; };
    P queries[4], gradients[4];
    Sum scores[4], products[4];
    columns.MoveTo(done);
    const auto statistics = row.StatisticsOf(columns.Of(number));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t other = columns.Of(i);
      if (!there(i)) continue;
      queries[i].Load(p.left.At(other), row.at);
      gradients[i].Load(p.out_gradient.At(other), row.values_at);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scores[i] = p.template Share<kGatv2>(queries[i], key, att, row.at);
      products[i] = value.Dot(gradients[i], row.values_at);
    }
    const auto edge =
        row.template Weigh<false>(row.quarters.SumOf(scores), row.quarters.SumOf(products),
                                  statistics, 1, task.begin + done + number, there(number),
                                  row.quarters.within == number * row.quarters.fourth);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Sum weight = row.quarters.Of(edge.weight, i);
      const Sum of_score = row.quarters.Of(edge.of_score, i);
      if (!there(i)) continue;
      value_sums.Add(weight, gradients[i]);
      if constexpr (kGatv2) {
        key_sums.AddSlopes(of_score, queries[i], key, p.slope, nullptr);
      } else {
        key_sums.Add(of_score, queries[i]);
      }
    }
  });
  if constexpr (kGatv2) key_sums.Multiply(att);
  StoreOfColumn<P, kGroup>(p, row, task, key_sums, value_sums);
}

/// The same of scores that are sums, and the gradients of those.
template <typename P, int kGroup>
__global__ void __launch_bounds__(kThreads, BlocksFor<P>())
    OfColumnsOfSums(const Backward<typename P::Element> p) {
  using Sum = typename P::Sum;
  MergingMayGetReady();
  const int lane = threadIdx.x % kGroup;
  const Task task = TaskOf<kGroup>(p.s, lane);
  if (__all_sync(kWarp, task.row < 0)) return;
  auto columns = ColumnsOf<kGroup>(p.s, task, lane);
  const Row<P, kGroup> row(p, lane);
  const int number = row.quarters.quarter;
  P value;
  value.Load(p.values.At(task.existing_row()), row.values_at);
  const Sum own_right = Widen(ReadOnly(p.right.At(task.existing_row()) + row.head));
  Sums<P> value_sums;
  Sum right_sum = 0;  // of this lane's nonzeros
  ForEachFour(task, [&](int done, auto all) {
    const auto there = [&](int i) { return decltype(all)::value || done + i < task.count; };
    P gradients[4];
    Sum dots[4];
    columns.MoveTo(done);
    const uint32_t own = columns.Of(number);
    const auto statistics = row.StatisticsOf(own);
    const Sum sum = own_right + Widen(ReadOnly(p.left.At(own) + row.head));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t other = columns.Of(i);
      if (there(i)) gradients[i].Load(p.out_gradient.At(other), row.values_at);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) dots[i] = value.Dot(gradients[i], row.values_at);
    const Sum steepness = sum > 0 ? Sum(1) : p.slope;
    const auto edge =
        row.template Weigh<true>(steepness * sum, row.quarters.SumOf(dots), statistics, steepness,
                                 task.begin + done + number, there(number),
                                 row.quarters.within == number * row.quarters.fourth);
    right_sum += steepness * edge.of_score;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Sum weight = row.quarters.Of(edge.weight, i);
      if (there(i)) value_sums.Add(weight, gradients[i]);
    }
  });
  right_sum = row.quarters.Total(right_sum);
  if (task.row < 0 || !row.active) return;
  const bool speaks = row.quarters.within == 0 && P::IsOfFirstSlab();
  if (task.chunk >= 0) {
    Sum* const to = p.partials.data + task.chunk * p.partials.stride;
    if (speaks) to[row.head] = right_sum;
    value_sums.Store(to + p.values_at, row.values_at, Sum(1));
    return;
  }
  if (p.right_gradient.data != nullptr && speaks) {
    p.right_gradient.At(task.row)[row.head] = Narrow<typename P::Element>(right_sum);
  }
  if (p.values_gradient.data != nullptr) {
    value_sums.Store(p.values_gradient.At(task.row), row.values_at, Sum(1));
  }
}

// Adds up the chunks of each split row: a lane has four columns.
template <typename T>
__global__ void __launch_bounds__(32 * kMergers) AddChunks(const Backward<T> backward) {
  AwaitTheKernelBefore();
  using Sum = SumOf<T>;
  using Four = Vector<Sum, 4>;
  const Partials<T>& p = backward.partials;
  __shared__ Four sums[kMergers][32];
  const int at = static_cast<int>(blockIdx.y * 32 + threadIdx.x) * 4;
  const auto add = [](Four& mine, const Four& other) {
#pragma unroll
    for (int j = 0; j < 4; ++j) mine.at[j] += other.at[j];
  };
  ForEachSplitRow(backward.s, [&](int64_t row, const Share& share) {
    Four sum = {};
    if (at < p.stride) {
#pragma unroll 4
      for (int64_t i = share.first; i <= share.last; i += share.step) {
        add(sum, LoadVector<Sum, 4>(p.data + i * p.stride + at));
      }
    }
    if (!OverShares(share, sum, sums, add)) return;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      int column = at + j;
      for (const auto& target : p.targets) {
        if (column >= 0 && column < target.columns && target.data != nullptr) {
          target.data[row * target.leading + column] = Narrow<T>(target.factor * sum.at[j]);
        }
        column -= target.columns;
      }
    }
  });
}

/// Row b of `to` is the sum of rows b, b + gridDim.x, ... of `from`, of `columns` numbers each. So
/// many columns and rows a block sees to at once:
constexpr int kColumnsOfSums = 32, kRowsOfSums = 8;
/// ... and so many rows are left for a second round, of one block.
constexpr int64_t kSumsOfRows = 256;
template <typename W, typename Out>
__global__ void __launch_bounds__(kColumnsOfSums* kRowsOfSums)
    SumRows(const W* from, int64_t rows, int64_t stride, int columns, Out* to, int64_t to_stride) {
  __shared__ W shared[kRowsOfSums][kColumnsOfSums];
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const int column = static_cast<int>(blockIdx.y) * kColumnsOfSums + x;
  W sum = 0;
  if (column < columns) {
    const int64_t step = static_cast<int64_t>(gridDim.x) * kRowsOfSums;
    for (int64_t row = blockIdx.x + static_cast<int64_t>(y) * gridDim.x; row < rows; row += step) {
      sum += from[row * stride + column];
    }
  }
  shared[y][x] = sum;
  __syncthreads();
  if (y != 0 || column >= columns) return;
  for (int i = 1; i < kRowsOfSums; ++i) sum += shared[i][x];
  to[blockIdx.x * to_stride + column] = Narrow<Out>(sum);
}

/// The gradient of `left`, of scores that are sums: of each row's nonzeros'.
template <typename T>
struct LeftOfSums {
  using Found = Summed<SumOf<T>>;
  static constexpr bool kOfRows = true;
  const SumOf<T>* gradients;
  int64_t heads;
  Rows<T> left;

  __device__ void Find(int64_t i, int64_t head, Found& found) const {
    found.Add(gradients[i * heads + head]);
  }
  __device__ void WriteRow(int64_t row, int64_t head, const Found& found) const {
    left.At(row)[head] = Narrow<T>(found.sum);
  }
};

/// `gradients`: of scores, one every `step` numbers; `each`: the bias is of a head.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    BiasOfScores(int64_t nnz, int heads, const SumOf<T>* gradients, int step, Rows<T> bias,
                 bool each) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (each) {
    if (at < nnz * heads) bias.At(at / heads)[at % heads] = Narrow<T>(gradients[at * step]);
    return;
  }
  if (at >= nnz) return;
  SumOf<T> sum = 0;
  for (int head = 0; head < heads; ++head) sum += gradients[(at * heads + head) * step];
  *bias.At(at) = Narrow<T>(sum);
}

}  // namespace sparsed::cuda::attention
