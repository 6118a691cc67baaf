// Attention over each row of plain CSR: scores, softmax and the weighted sum in one pass.
//
// Idea: a group of lanes goes over a row's nonzeros with the row's query and its sums in registers;
// four rows of K and V are on their way at a time. A head's lanes are in quarters, one for each of
// the four: they exchange halves of what their dot products add up to, so that each quarter ends
// with one score and computes one exponential. The running maximum is raised once for all four
// (Milakov and Gimelshein 2018). Long rows are left to groups for chunks of them, first in the
// grid; a second kernel puts those together by their (maximum, sum) pairs, in their order, so that
// the same comes out every time.
//
// Layout in: "csr".
//
// Threads: groups of 8, 16 or 32 lanes, a row and as many heads as fit each; further heads are in
// gridDim.y.
//
// Needs: for matrices with room for long rows, a row of sums for each chunk.
#include "kernels/attention.h"
#include "kernels/cuda/attention/heads.cuh"
#include "kernels/cuda/check.h"
#include "kernels/cuda/device.h"
#include "kernels/formats/csr.h"

namespace sparsed::cuda {
namespace {

using attention::BlocksFor;
using attention::Heads;
using attention::kLog2E;
using attention::kThreads;
using attention::Logarithm;
using attention::Nonzeros;
using attention::Power;
using attention::Quarters;
using attention::RowsOf;
using attention::Sums;
using attention::Task;
using attention::TaskOf;

template <typename T>
struct Forward {
  using Sum = SumOf<T>;
  Nonzeros s;
  Heads heads;
  Sum scale = 1;  // times log2(e)
  Sum slope = 0;
  attention::Rows<const T> left, right, values, bias;  // no bias: null
  int bias_step = 0;                                   // 0: one for all heads
  attention::Rows<T> out;
  attention::Rows<Sum> log_sums;
  int width = 0;         // columns of a head of `left` and `right`; kSum: 1
  int values_width = 0;  // of `values` and `out`
  // For each chunk: sums of values (a row of padded_width), greatest scores and sums (of heads).
  Sum* partial = nullptr;
  int64_t padded_width = 0;
  Sum* greatest = nullptr;
  Sum* total = nullptr;
};

/// Of a group's row: all that goes from nonzero to nonzero.
template <typename P, int kGroup, bool kDot>
struct Row {
  using T = typename P::Element;
  using Sum = typename P::Sum;
  using Place = typename P::Place;
  static constexpr Sum kNone = -static_cast<Sum>(INFINITY);

  const Forward<T>& p;
  const Quarters<kGroup> quarters;
  const int head;  // that is there
  const Place at, values_at;
  P query;
  Sum left = 0;
  Sum greatest = kNone;
  Sum total = 0;  // of this lane's quarter
  Sums<P> sums;

  __device__ Row(const Forward<T>& p, int lane, int head, bool active)
      : p(p),
        quarters(p.heads, lane),
        head(active ? head : 0),
        at(p.heads, head, quarters.within, p.width, active),
        values_at(p.heads, head, quarters.within, p.values_width, active) {}

  __device__ void Begin(int64_t row) {
    if constexpr (kDot) {
      query.Load(p.left.At(row), at);
    } else {
      left = Widen(ReadOnly(p.left.At(row) + head));
    }
  }

  /// Four nonzeros, or (not kAll) fewer; `columns` are theirs, `first` is the number of the first.
  template <bool kAll>
  __device__ void Add(const int32_t* columns, int64_t first, int count) {
    P values[4];
    Sum score;
    const auto column_of = [&](int i) {
      return static_cast<uint32_t>(__ldg(columns + (kAll ? i : min(i, count - 1))));
    };
    if constexpr (kDot) {
      P keys[4];
      Sum dots[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t column = column_of(i);
        keys[i].Load(p.right.At(column), at);
        values[i].Load(p.values.At(column), values_at);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) dots[i] = query.Dot(keys[i], at);
      score = p.scale * quarters.SumOf(dots);
    } else {
      const Sum right = Widen(ReadOnly(p.right.At(column_of(quarters.quarter)) + head));
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i].Load(p.values.At(column_of(i)), values_at);
      const Sum sum = left + right;
      score = p.scale * (sum > 0 ? sum : p.slope * sum);
    }
    if (p.bias.data != nullptr && (kAll || quarters.quarter < count)) {
      const T* const bias = p.bias.At(p.s.position[first + quarters.quarter]);
      score += static_cast<Sum>(kLog2E) * Widen(ReadOnly(bias + head * p.bias_step));
    }
    if (!kAll && quarters.quarter >= count) score = kNone;
    const Sum most = max(greatest, quarters.Greatest(score));
    // While nothing is above minus infinity, differences from it are no numbers.
    const Sum base = most == kNone ? Sum(0) : most;
    const Sum fading = Power(greatest - base);
    const Sum weight = Power(score - base);
    greatest = most;
    total = total * fading + weight;
    sums.Scale(fading);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Sum own = quarters.Of(weight, i);
      if (kAll || i < count) sums.Add(own, values[i]);
    }
  }
};

template <typename P, int kGroup, bool kDot>
__global__ void __launch_bounds__(kThreads, BlocksFor<P>(false))
    Attend(const Forward<typename P::Element> p) {
  using Sum = typename P::Sum;
  const int lane = threadIdx.x % kGroup;
  const Task task = TaskOf<kGroup>(p.s, lane);
  if (task.row < 0) return;
  const int head = p.heads.Of(lane, kGroup);
  const bool active = head < p.heads.heads;
  Row<P, kGroup, kDot> row(p, lane, head, active);
  row.Begin(task.row);
  const int32_t* columns = p.s.columns + task.begin;
  int64_t first = task.begin;
  int left = task.count;
#pragma unroll 1
  for (; left >= 4; left -= 4, columns += 4, first += 4) row.template Add<true>(columns, first, 4);
  if (left > 0) row.template Add<false>(columns, first, left);
  const Sum total = row.quarters.Total(row.total);
  if (!active) return;
  const bool speaks = row.quarters.within == 0;
  if (task.chunk >= 0) {
    row.sums.Store(p.partial + task.chunk * p.padded_width, row.values_at, Sum(1));
    if (speaks) {
      p.greatest[task.chunk * p.heads.heads + head] = row.greatest;
      p.total[task.chunk * p.heads.heads + head] = total;
    }
    return;
  }
  row.sums.Store(p.out.At(task.row), row.values_at, total == 0 ? Sum(0) : 1 / total);
  if (speaks && p.log_sums.data != nullptr) {
    p.log_sums.At(task.row)[head] =
        total == 0 ? row.kNone : (row.greatest + Logarithm(total)) / static_cast<Sum>(kLog2E);
  }
}

// Puts the chunks of each split row together: threadIdx.y takes every kMergers-th.
constexpr int kMergers = 8;
constexpr int kChunksPerBlock = 32;

template <typename T>
__global__ void __launch_bounds__(32 * kMergers) MergeChunks(const Forward<T> p) {
  using Sum = SumOf<T>;
  constexpr Sum kNone = -static_cast<Sum>(INFINITY);
  __shared__ Sum bests[kMergers][32], totals[kMergers][32], sums[kMergers][32];
  const int column = static_cast<int>(blockIdx.y * 32 + threadIdx.x);
  const int head = column / p.values_width;
  const bool inside = head < p.heads.heads;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kChunksPerBlock;
  const int64_t first_of =
      begin + threadIdx.x < p.s.chunks ? p.s.first_of[begin + threadIdx.x] : -1;
  unsigned firsts = __ballot_sync(~0U, first_of >= 0);  // the same in every warp
  for (; firsts != 0; firsts &= firsts - 1) {
    const int next = __ffs(static_cast<int>(firsts)) - 1;
    const int64_t row = __shfl_sync(~0U, first_of, next);
    const int64_t last = (p.s.row_offsets[row + 1] - 1) / p.s.chunk;
    Sum best = kNone, total = 0, sum = 0;
    const auto merge = [&](Sum other_best, Sum other_total, Sum other_sum) {
      const Sum most = max(best, other_best);
      const Sum base = most == kNone ? Sum(0) : most;
      const Sum mine = Power(best - base), theirs = Power(other_best - base);
      total = total * mine + other_total * theirs;
      sum = sum * mine + other_sum * theirs;
      best = most;
    };
    if (inside) {
      for (int64_t i = begin + next + threadIdx.y; i <= last; i += kMergers) {
        merge(p.greatest[i * p.heads.heads + head], p.total[i * p.heads.heads + head],
              p.partial[i * p.padded_width + column]);
      }
    }
    bests[threadIdx.y][threadIdx.x] = best;
    totals[threadIdx.y][threadIdx.x] = total;
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && inside) {
      for (int i = 1; i < kMergers; ++i) {
        merge(bests[i][threadIdx.x], totals[i][threadIdx.x], sums[i][threadIdx.x]);
      }
      p.out.At(row)[column] = Narrow<T>(total == 0 ? Sum(0) : sum / total);
      if (p.log_sums.data != nullptr && column % p.values_width == 0) {
        p.log_sums.At(row)[head] =
            total == 0 ? kNone : (best + Logarithm(total)) / static_cast<Sum>(kLog2E);
      }
    }
    __syncthreads();
  }
}

int64_t PaddedWidth(int64_t columns) { return (columns + 15) / 16 * 16; }

size_t SumSize(ElementType type) { return type == ElementType::kF64 ? 8 : 4; }

}  // namespace

size_t EdgeAttentionWorkspace(const EdgeAttention& of, ElementType type) {
  const int64_t each = PaddedWidth(of.out.cols) + 2 * of.scores.heads;
  const auto chunks = static_cast<size_t>(attention::ChunksOf(of.layout, of.out.cols));
  return chunks * (sizeof(int64_t) + static_cast<size_t>(each) * SumSize(type));
}

absl::Status ComputeEdgeAttention(const Context& context, const EdgeAttention& of,
                                  ElementType type) {
  const EdgeScores& scores = of.scores;
  if (of.layout.rows == 0 || of.out.cols == 0) return absl::OkStatus();
  const bool dot = scores.kind == EdgeScores::Kind::kDot;
  return VisitFloat(type, [&]<typename T>(T) {
    if (!attention::StridesFit({scores.left, scores.right, scores.bias, of.values,
                                attention::AsConst(of.out), attention::AsConst(of.log_sums)})) {
      return absl::UnimplementedError("the operands are too wide for the GPU's kernel");
    }
    const int64_t heads = scores.heads;
    const int64_t width = dot ? scores.left.cols / heads : 1;
    const int64_t values_width = of.values.cols / heads;
    const bool aligned = attention::HeadsAreWide<T>(of.values, heads) &&
                         attention::HeadsAreWide<T>(of.out, heads) &&
                         (!dot || (attention::HeadsAreWide<T>(scores.left, heads) &&
                                   attention::HeadsAreWide<T>(scores.right, heads)));
    const absl::StatusOr<attention::Shape> shape =
        attention::ShapeOf<T>(heads, std::max(width, values_width), aligned);
    if (!shape.ok()) return shape.status();
    Forward<T> p;
    p.s = attention::NonzerosOf(of.layout, of.out.cols);
    p.heads = shape->heads;
    p.scale = static_cast<SumOf<T>>((dot ? scores.scale : 1) * kLog2E);
    p.slope = static_cast<SumOf<T>>(scores.slope);
    p.left = RowsOf<const T>(scores.left);
    p.right = RowsOf<const T>(scores.right);
    p.values = RowsOf<const T>(of.values);
    p.bias = RowsOf<const T>(scores.bias);
    p.bias_step = scores.bias.cols > 1 ? 1 : 0;
    p.out = RowsOf<T>(of.out);
    p.log_sums = RowsOf<SumOf<T>>(of.log_sums);
    p.width = static_cast<int>(width);
    p.values_width = static_cast<int>(values_width);
    p.padded_width = PaddedWidth(of.out.cols);
    p.s.first_of = reinterpret_cast<int64_t*>(context.workspace.data());
    p.partial = reinterpret_cast<SumOf<T>*>(p.s.first_of + p.s.chunks);
    p.greatest = p.partial + p.s.chunks * p.padded_width;
    p.total = p.greatest + p.s.chunks * heads;
    const auto stream = static_cast<cudaStream_t>(context.stream);
    attention::WithShape<T>(*shape, [&]<typename P, typename Group>(P, Group) {
      const dim3 grid = shape->Grid(p.s);
      if (dot) {
        Attend<P, Group::value, true><<<grid, kThreads, 0, stream>>>(p);
      } else {
        Attend<P, Group::value, false><<<grid, kThreads, 0, stream>>>(p);
      }
    });
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess && p.s.chunks > 0) {
      const dim3 grid(static_cast<unsigned>((p.s.chunks + kChunksPerBlock - 1) / kChunksPerBlock),
                      static_cast<unsigned>((of.out.cols + 31) / 32));
      MergeChunks<T><<<grid, dim3(32, kMergers), 0, stream>>>(p);
      error = cudaGetLastError();
    }
    return ToStatus(error, "starting attention");
  });
}

}  // namespace sparsed::cuda
