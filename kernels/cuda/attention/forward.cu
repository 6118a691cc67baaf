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
// gridDim.y. Of heads too wide for a warp's registers gridDim.z has column blocks, each of which
// computes the scores anew.
//
// Needs: for matrices with room for long rows, a row of sums for each chunk.
#include "kernels/attention.h"
#include "kernels/cuda/attention/heads.cuh"
#include "kernels/cuda/check.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/overlap.cuh"
#include "kernels/formats/csr.h"

namespace sparsed::cuda {
namespace {

using Kind = EdgeScores::Kind;
using attention::AsConst;
using attention::BlocksFor;
using attention::kLog2E;
using attention::kThreads;
using attention::kWarp;
using attention::Lane;
using attention::Logarithm;
using attention::Nonzeros;
using attention::Operands;
using attention::Power;
using attention::RowsOf;
using attention::Sums;
using attention::Task;
using attention::TaskOf;

template <typename T>
struct Forward : Operands<T> {
  using Sum = SumOf<T>;
  using Operands<T>::Operands;
  Nonzeros s;
  attention::Rows<T> out;
  attention::Rows<Sum> log_sums;
  // For each chunk: sums of values (a row of padded_width), greatest scores and sums (of heads).
  Sum* partial = nullptr;
  int64_t padded_width = 0;
  Sum* greatest = nullptr;
  Sum* total = nullptr;
};

/// Of a group's row: all that goes from nonzero to nonzero.
template <typename P, int kGroup, Kind kKind>
struct Row : Lane<P, kGroup> {
  using T = typename P::Element;
  using Sum = typename P::Sum;
  using Lane<P, kGroup>::quarters, Lane<P, kGroup>::head, Lane<P, kGroup>::at,
      Lane<P, kGroup>::values_at;
  static constexpr Sum kNone = -static_cast<Sum>(INFINITY);

  const Forward<T>& p;
  P query, att;
  Sum left = 0;
  Sum greatest = kNone;
  Sum total = 0;  // of this lane's quarter
  Sums<P> sums;

  __device__ Row(const Forward<T>& p, int lane, int64_t row) : Lane<P, kGroup>(p, lane), p(p) {
    if constexpr (kKind == Kind::kSum) {
      left = Widen(ReadOnly(p.left.At(row) + head));
    } else {
      query.Load(p.left.At(row), at);
      if constexpr (kKind == Kind::kGatv2) att.Load(p.att, at);
    }
  }

  /// Four nonzeros, or (not kAll) fewer; `columns` are theirs, `first` is the number of the first.
  template <bool kAll, typename Columns>
  __device__ void Add(const Columns& columns, int64_t first, int count) {
    P values[4];
    Sum score;
    const auto there = [&](int i) { return kAll || i < count; };
    if constexpr (kKind != Kind::kSum) {
      constexpr bool kGatv2 = kKind == Kind::kGatv2;
      P keys[4];
      Sum dots[4];
      p.template LoadFour<kGatv2>(columns, there, *this, keys, values);
#pragma unroll
      for (int i = 0; i < 4; ++i) dots[i] = p.template Share<kGatv2>(query, keys[i], att, at);
      score = p.scale * quarters.SumOf(dots);
    } else {
      const uint32_t own = columns.Of(quarters.quarter);
      const Sum right = there(quarters.quarter) ? Widen(ReadOnly(p.right.At(own) + head)) : Sum(0);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t column = columns.Of(i);
        if (there(i)) values[i].Load(p.values.At(column), values_at);
      }
      const Sum sum = left + right;
      score = p.scale * (sum > 0 ? sum : p.slope * sum);
    }
    if (p.bias.data != nullptr && there(quarters.quarter)) {
      score += p.Bias(p.s.position[first + quarters.quarter], head);
    }
    if (!there(quarters.quarter)) score = kNone;
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
      if (there(i)) sums.Add(own, values[i]);
    }
  }
};

template <typename P, int kGroup, Kind kKind>
__global__ void __launch_bounds__(kThreads, BlocksFor<P>(kKind == Kind::kGatv2 ? 1 : 0))
    Attend(const Forward<typename P::Element> p) {
  using Sum = typename P::Sum;
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();  // MergeChunks may get ready; it waits for this grid
#endif
  const int lane = threadIdx.x % kGroup;
  const Task task = TaskOf<kGroup>(p.s, lane);
  if (__all_sync(kWarp, task.row < 0)) return;
  auto columns = attention::ColumnsOf<kGroup>(p.s, task, lane);
  Row<P, kGroup, kKind> row(p, lane, task.existing_row());
  attention::ForEachFour(task, [&](int done, auto all) {
    columns.MoveTo(done);
    row.template Add<decltype(all)::value>(columns, task.begin + done, task.count - done);
  });
  const Sum total = row.quarters.Total(row.total);
  if (task.row < 0 || !row.active) return;
  const int head = row.head;
  const bool speaks = row.quarters.within == 0 && P::IsOfFirstSlab();
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

/// Of a head: its greatest score, the sum of exponentials from that, weighted sums of columns.
template <typename Sum, int kColumns>
struct Softened {
  static constexpr Sum kNone = -static_cast<Sum>(INFINITY);
  Sum best, total;
  Vector<Sum, kColumns> sums;

  __device__ static Softened None() { return {kNone, 0, {}}; }
  template <int kOthers>
  __device__ void Merge(const Softened (&others)[kOthers]) {
    Sum most = best;
#pragma unroll
    for (int i = 0; i < kOthers; ++i) most = max(most, others[i].best);
    const Sum base = most == kNone ? Sum(0) : most;
    Scale(Power(best - base));
    best = most;
#pragma unroll
    for (int i = 0; i < kOthers; ++i) {
      const Sum factor = Power(others[i].best - base);
      total += factor * others[i].total;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) sums.at[j] += factor * others[i].sums.at[j];
    }
  }

 private:
  __device__ void Scale(Sum factor) {
    total *= factor;
#pragma unroll
    for (int j = 0; j < kColumns; ++j) sums.at[j] *= factor;
  }
};

// Puts the chunks of each split row together: a lane has kColumns columns of a head.
template <typename T, int kColumns>
__global__ void __launch_bounds__(32 * kMergers) MergeChunks(const Forward<T> p) {
  AwaitTheKernelBefore();
  using Sum = SumOf<T>;
  using One = Softened<Sum, kColumns>;
  __shared__ One shared[kMergers][32];
  const int column = static_cast<int>(blockIdx.y * 32 + threadIdx.x) * kColumns;
  const int head = column / p.values_width;
  const bool inside = head < p.heads.heads;
  ForEachSplitRow(p.s, [&](int64_t row, const Share& share) {
    One all = One::None();
    for (int64_t next = share.first; inside && next <= share.last; next += 4 * share.step) {
      One parts[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t chunk = next + i * share.step;
        parts[i] = One::None();
        if (chunk > share.last) continue;
        parts[i].best = p.greatest[chunk * p.heads.heads + head];
        parts[i].total = p.total[chunk * p.heads.heads + head];
        parts[i].sums = LoadVector<Sum, kColumns>(p.partial + chunk * p.padded_width + column);
      }
      all.Merge(parts);
    }
    const bool writes = OverShares(share, all, shared, [](One& mine, const One& other) {
      const One others[1] = {other};
      mine.Merge(others);
    });
    if (!writes || !inside) return;
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      p.out.At(row)[column + j] = Narrow<T>(all.total == 0 ? Sum(0) : all.sums.at[j] / all.total);
    }
    if (p.log_sums.data != nullptr && column % p.values_width == 0) {
      p.log_sums.At(row)[head] = all.total == 0
                                     ? One::kNone
                                     : (all.best + Logarithm(all.total)) / static_cast<Sum>(kLog2E);
    }
  });
}

template <typename T, int kColumns>
cudaError_t LaunchMergeChunks(cudaStream_t stream, const Forward<T>& p) {
  const int64_t columns = static_cast<int64_t>(p.heads.heads) * p.values_width;
  return LaunchOverlapping(stream, MergingGrid(p.s.chunks, columns / kColumns), kMerging,
                           MergeChunks<T, kColumns>, p);
}

}  // namespace

size_t EdgeAttentionWorkspace(const EdgeAttention& of, ElementType type) {
  const int64_t each = attention::PaddedWidth(of.out.cols) + 2 * of.scores.heads;
  const auto chunks = static_cast<size_t>(attention::ChunksOf(of.layout));
  return chunks * (sizeof(int64_t) + static_cast<size_t>(each) * SumSize(type));
}

absl::Status ComputeEdgeAttention(const Context& context, const EdgeAttention& of,
                                  ElementType type) {
  const EdgeScores& scores = of.scores;
  if (of.layout.rows == 0 || of.out.cols == 0) return absl::OkStatus();
  return VisitFloat(type, [&]<typename T>(T) {
    const absl::StatusOr<attention::Shape> shape =
        attention::ShapeOf<T>(scores, of.values, {}, {AsConst(of.out)}, {AsConst(of.log_sums)});
    if (!shape.ok()) return shape.status();
    Forward<T> p(scores, of.values, shape->heads);
    p.s = attention::NonzerosOf(of.layout);
    p.out = RowsOf<T>(of.out);
    p.log_sums = RowsOf<SumOf<T>>(of.log_sums);
    p.padded_width = attention::PaddedWidth(of.out.cols);
    p.s.first_of = reinterpret_cast<int64_t*>(context.workspace.data());
    p.partial = reinterpret_cast<SumOf<T>*>(p.s.first_of + p.s.chunks);
    p.greatest = p.partial + p.s.chunks * p.padded_width;
    p.total = p.greatest + p.s.chunks * scores.heads;
    const auto stream = static_cast<cudaStream_t>(context.stream);
    attention::WithShape<T>(*shape, [&]<typename P, typename Group>(P, Group) {
      const dim3 grid = shape->Grid(p.s);
      if (scores.kind == Kind::kDot) {
        Attend<P, Group::value, Kind::kDot><<<grid, kThreads, 0, stream>>>(p);
      } else if (scores.kind == Kind::kSum) {
        Attend<P, Group::value, Kind::kSum><<<grid, kThreads, 0, stream>>>(p);
      } else {
        Attend<P, Group::value, Kind::kGatv2><<<grid, kThreads, 0, stream>>>(p);
      }
    });
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess && p.s.chunks > 0) {
      error = p.values_width % 4 == 0 ? LaunchMergeChunks<T, 4>(stream, p)
                                      : LaunchMergeChunks<T, 1>(stream, p);
    }
    return ToStatus(error, "starting attention");
  });
}

}  // namespace sparsed::cuda
