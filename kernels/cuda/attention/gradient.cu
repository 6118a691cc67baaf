// The gradients of attention: how the kernels of gradient.cuh are started.
#include "kernels/attention.h"
#include "kernels/cuda/attention/gradient.cuh"
#include "kernels/cuda/check.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/overlap.cuh"
#include "kernels/formats/csr.h"

namespace sparsed::cuda {
namespace {

using attention::AsConst;
using attention::Backward;
using attention::Dots;
using attention::Edge;
using attention::kThreads;
using attention::LeftOfSums;
using attention::RowsOf;
using attention::RowStatistics;

template <typename T>
cudaError_t LaunchAddChunks(cudaStream_t stream, const Backward<T>& p) {
  const cudaError_t error = cudaGetLastError();  // of what was started before
  if (error != cudaSuccess || p.s.chunks == 0) return error;
  int64_t columns = 0;
  for (const auto& target : p.partials.targets) columns += target.columns;
  return LaunchOverlapping(stream, MergingGrid(p.s.chunks, (columns + 3) / 4), kMerging,
                           attention::AddChunks<T>, p);
}

/// The gradient of att, from what each warp of OfRows left. `rest`: kSumsOfRows rows.
template <typename T>
cudaError_t LaunchOfAtt(cudaStream_t stream, const Backward<T>& p, int64_t warps, SumOf<T>* rest,
                        const Dense& att) {
  const auto columns = static_cast<int>(att.cols);
  const dim3 threads(attention::kColumnsOfSums, attention::kRowsOfSums);
  const int64_t blocks =
      std::clamp<int64_t>(warps / attention::kRowsOfSums, 1, attention::kSumsOfRows);
  const auto across =
      static_cast<unsigned>((columns + attention::kColumnsOfSums - 1) / attention::kColumnsOfSums);
  attention::SumRows<SumOf<T>, SumOf<T>>
      <<<dim3(static_cast<unsigned>(blocks), across), threads, 0, stream>>>(
          p.att_sums, warps, p.att_stride, columns, rest, p.att_stride);
  attention::SumRows<SumOf<T>, T><<<dim3(1, across), threads, 0, stream>>>(
      rest, blocks, p.att_stride, columns, static_cast<T*>(att.data), columns);
  return cudaGetLastError();
}

/// The workspace, part by part.
struct Workspace {
  size_t statistics = 0, edges = 0, score_gradients = 0, sum_gradients = 0;
  size_t row_chunks = 0, row_partials = 0, column_chunks = 0, column_partials = 0;
  size_t att_sums = 0, att_rest = 0;
  int64_t row_stride = 0, column_stride = 0, values_at = 0;

  Workspace(const EdgeAttentionGradient& of, ElementType type) {
    const size_t size = SumSize(type);
    const EdgeScores& scores = of.scores;
    const auto heads = static_cast<size_t>(scores.heads);
    const bool sums = scores.kind == EdgeScores::Kind::kSum;
    const auto nnz_by_heads = static_cast<size_t>(of.layout.nnz) * heads;
    const int64_t chunks_of_rows = attention::ChunksOf(of.layout);
    row_stride = attention::PaddedWidth(scores.left.cols);
    if (of.att.data != nullptr) {
      // At most one of a warp, with blocks that are not full.
      const int64_t warps = of.layout.rows + chunks_of_rows + kThreads / 32;
      att_sums = static_cast<size_t>(warps * row_stride) * size;
      att_rest = static_cast<size_t>(attention::kSumsOfRows * row_stride) * size;
    }
    if (of.right.data != nullptr || of.values_gradient.data != nullptr || of.bias.data != nullptr) {
      const auto operands =
          static_cast<size_t>(of.layout.rows * scores.left.cols +
                              of.layout.cols * (scores.right.cols + of.values.cols)) *
          SizeOf(type);
      if (!sums && 2 * nnz_by_heads * size + att_sums <= 2 * operands &&
          of.layout.nnz <= UINT32_MAX) {
        edges = 2 * nnz_by_heads * size;
      } else if (of.bias.data != nullptr) {
        score_gradients = nnz_by_heads * size;
      }
    }
    if (edges == 0) statistics = static_cast<size_t>(of.layout.rows) * heads * 2 * size;
    if (sums && of.left.data != nullptr) sum_gradients = nnz_by_heads * size;
    values_at = attention::PaddedWidth(scores.right.cols);
    column_stride = values_at + attention::PaddedWidth(of.values.cols);
    if (!sums && (of.left.data != nullptr || edges > 0 || att_sums > 0)) {
      const auto chunks = static_cast<size_t>(chunks_of_rows);
      row_chunks = chunks * sizeof(int64_t);
      if (of.left.data != nullptr) row_partials = chunks * static_cast<size_t>(row_stride) * size;
    }
    const auto chunks = static_cast<size_t>(attention::ChunksOf(of.transposed));
    column_chunks = chunks * sizeof(int64_t);
    column_partials = chunks * static_cast<size_t>(column_stride) * size;
  }
  /// Each part begins at 64 bytes.
  static size_t Padded(size_t bytes) { return (bytes + 63) / 64 * 64; }
  size_t bytes() const {
    return Padded(statistics) + Padded(edges) + Padded(score_gradients) + Padded(sum_gradients) +
           Padded(row_chunks) + Padded(row_partials) + Padded(column_chunks) +
           Padded(column_partials) + Padded(att_sums) + Padded(att_rest);
  }
};

template <typename T>
cudaError_t Launch(cudaStream_t stream, const EdgeAttentionGradient& of,
                   const attention::Shape& shape, std::byte* memory) {
  using Sum = SumOf<T>;
  const EdgeScores& scores = of.scores;
  const bool sums = scores.kind == EdgeScores::Kind::kSum;
  const bool gatv2 = scores.kind == EdgeScores::Kind::kGatv2;
  const int64_t heads = scores.heads;
  const Workspace parts(of, ElementTypeOf<T>());
  const auto take = [&]<typename As>(size_t bytes, As*& to) {
    to = bytes > 0 ? reinterpret_cast<As*>(memory) : nullptr;
    memory += Workspace::Padded(bytes);
  };
  Backward<T> p(scores, of.values, shape.heads);
  RowStatistics<Sum>* statistics;
  take(parts.statistics, statistics);
  take(parts.edges, p.edges);
  take(parts.score_gradients, p.score_gradients);
  take(parts.sum_gradients, p.sum_gradients);
  SumOf<T>* att_rest;
  take(parts.att_sums, p.att_sums);
  take(parts.att_rest, att_rest);
  p.att_stride = parts.row_stride;
  p.statistics = statistics;
  p.factor = static_cast<Sum>(scores.kind == EdgeScores::Kind::kDot ? scores.scale : 1);
  p.out = RowsOf<const T>(of.out);
  p.out_gradient = RowsOf<const T>(of.gradient);
  p.log_sums = RowsOf<const Sum>(of.log_sums);
  p.left_gradient = RowsOf<T>(of.left);
  p.right_gradient = RowsOf<T>(of.right);
  p.values_gradient = RowsOf<T>(of.values_gradient);
  p.values_at = parts.values_at;
  p.by_nonzero =
      p.bias.data != nullptr || p.score_gradients != nullptr || p.sum_gradients != nullptr;

  if (statistics != nullptr) {
    const Dots<T> dots = {of.layout.rows, static_cast<int>(heads), p.values_width,
                          p.out,          p.out_gradient,          p.log_sums,
                          statistics};
    const int64_t threads = of.layout.rows * heads * 8;
    attention::StatisticsOfRows<T>
        <<<static_cast<unsigned>((threads + kThreads - 1) / kThreads), kThreads, 0, stream>>>(dots);
  }
  if (p.att_sums != nullptr && of.layout.rows == 0) {
    cudaMemsetAsync(of.att.data, 0, static_cast<size_t>(of.att.cols) * sizeof(T), stream);
  }
  if (!sums && (of.left.data != nullptr || p.edges != nullptr || p.att_sums != nullptr) &&
      of.layout.rows > 0) {
    Backward<T> rows = p;
    rows.by_nonzero = p.bias.data != nullptr || p.edges != nullptr;
    rows.score_gradients = nullptr;
    rows.s = attention::NonzerosOf(of.layout);
    take(parts.row_chunks, rows.s.first_of);
    take(parts.row_partials, rows.partials.data);
    rows.partials.stride = parts.row_stride;
    rows.partials.targets[0] = {p.left_gradient.data, of.left.leading_dimension,
                                static_cast<int>(of.left.cols), p.factor};
    const dim3 grid = shape.Grid(rows.s);
    attention::WithShape<T>(shape, [&]<typename P, typename Group>(P, Group) {
      if (gatv2) {
        attention::OfRows<P, Group::value, true><<<grid, kThreads, 0, stream>>>(rows);
      } else {
        attention::OfRows<P, Group::value, false><<<grid, kThreads, 0, stream>>>(rows);
      }
    });
    cudaError_t error =
        of.left.data == nullptr ? cudaGetLastError() : LaunchAddChunks(stream, rows);
    if (error == cudaSuccess && p.att_sums != nullptr) {
      error = LaunchOfAtt<T>(stream, p, int64_t{grid.x} * (kThreads / 32), att_rest, of.att);
    }
    if (error != cudaSuccess) return error;
  }
  const bool of_columns = of.right.data != nullptr || of.values_gradient.data != nullptr ||
                          p.score_gradients != nullptr || p.sum_gradients != nullptr;
  if (of_columns && of.transposed.rows > 0) {
    p.s = attention::NonzerosOf(of.transposed);
    take(parts.column_chunks, p.s.first_of);
    take(parts.column_partials, p.partials.data);
    p.partials.stride = parts.column_stride;
    // Those of values begin at a multiple of 16 columns; what lies between goes nowhere.
    p.partials.targets[0] = {p.right_gradient.data, of.right.leading_dimension,
                             static_cast<int>(scores.right.cols), p.factor};
    p.partials.targets[1].columns = static_cast<int>(parts.values_at - scores.right.cols);
    p.partials.targets[2] = {p.values_gradient.data, of.values_gradient.leading_dimension,
                             static_cast<int>(of.values.cols), Sum(1)};
    attention::WithShape<T>(shape, [&]<typename P, typename Group>(P, Group) {
      const dim3 grid = shape.Grid(p.s);
      if (sums) {
        attention::OfColumnsOfSums<P, Group::value><<<grid, kThreads, 0, stream>>>(p);
      } else if (p.edges != nullptr && gatv2) {
        attention::OfEdges<P, Group::value, true><<<grid, kThreads, 0, stream>>>(p);
      } else if (p.edges != nullptr) {
        attention::OfEdges<P, Group::value, false><<<grid, kThreads, 0, stream>>>(p);
      } else if (gatv2) {
        attention::OfColumns<P, Group::value, true><<<grid, kThreads, 0, stream>>>(p);
      } else {
        attention::OfColumns<P, Group::value, false><<<grid, kThreads, 0, stream>>>(p);
      }
    });
    const cudaError_t error = LaunchAddChunks(stream, p);
    if (error != cudaSuccess) return error;
  }
  if (sums && of.left.data != nullptr && of.layout.rows > 0) {
    const LeftOfSums<T> work = {p.sum_gradients, heads, p.left_gradient};
    const cudaError_t error = LaunchPass(stream, ViewCsr(of.layout).row_offsets, heads, work);
    if (error != cudaSuccess) return error;
  }
  if (of.bias.data != nullptr && of.layout.nnz > 0) {
    const bool each = of.bias.cols > 1 || heads == 1;
    const int64_t threads = of.layout.nnz * (each ? heads : 1);
    attention::BiasOfScores<T>
        <<<static_cast<unsigned>((threads + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
            of.layout.nnz, static_cast<int>(heads),
            p.edges != nullptr ? &p.edges->of_score : p.score_gradients, p.edges != nullptr ? 2 : 1,
            RowsOf<T>(of.bias), each);
  }
  return cudaGetLastError();
}

}  // namespace

size_t EdgeAttentionWorkspace(const EdgeAttentionGradient& of, ElementType type) {
  return Workspace(of, type).bytes();
}

absl::Status ComputeEdgeAttentionGradient(const Context& context, const EdgeAttentionGradient& of,
                                          ElementType type) {
  const EdgeScores& scores = of.scores;
  return VisitFloat(type, [&]<typename T>(T) {
    const absl::StatusOr<attention::Shape> shape = attention::ShapeOf<T>(
        scores, of.values, {AsConst(of.left), AsConst(of.right), AsConst(of.att)},
        {of.out, of.gradient, AsConst(of.values_gradient)}, {of.log_sums, AsConst(of.bias)});
    if (!shape.ok()) return shape.status();
    return ToStatus(
        Launch<T>(static_cast<cudaStream_t>(context.stream), of, *shape, context.workspace.data()),
        "starting the gradient of attention");
  });
}

}  // namespace sparsed::cuda
