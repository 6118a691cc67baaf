// SpMM and transposed SpMM from heavy row segments and light rows: C = alpha * op(S) * B + beta *
// C.
//
// Idea: RS-SpMM (Hong et al., HPDC'18). "Vertical streaming": a block copies its panel's part of B
// into shared memory once, multiplies the panel's heavy segments from there and adds each segment's
// sums to C atomically. Transposed (section 6), shared memory holds the panel's part of C instead,
// to which the segments' multiples of B's rows are added atomically; the block adds all of it to C
// at its end. "Horizontal streaming", of the light rows, is what the kernels over CSR do, better
// balanced than in the paper: they run before and also scale C, so that they need no atomic sums.
// Thread coarsening: a lane takes 1, 2 or 4 neighbouring columns (the paper: of neighbouring
// slices), by the cost model of section 4.3; a group of lanes as wide as K asks for.
// Layout in: "row_segments", the same arrays for both.
// Threads: a block a chunk of a panel's segments and slab of columns; slabs are gridDim.y. A group
// of 8, 16 or 32 lanes takes a segment at a time. As many threads as the shared memory leaves room
// for.
// Needs: what the CSR kernel of the light rows needs. f32 or f64. Sums in no fixed order: not
// deterministic.
// Wins: where rows have runs of near columns, in places that their neighbours do not share.
// Transposed: where the transposed layout is not there.
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/cuda/check.h"
#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/shared_memory.cuh"
#include "kernels/cuda/spmm/spmm.h"
#include "kernels/formats/row_segments.h"

namespace sparsed::cuda {
namespace {

template <typename T>
struct Product {
  const int32_t* chunk_panels;
  const int64_t* chunk_offsets;
  const int32_t* segment_rows;
  const int64_t* segment_offsets;
  const int32_t* columns;  // in the panel
  const T* values;
  const T* b;
  T* c;
  int64_t cols, ldb, ldc, k;
  int panel;  // columns
  bool wide;  // rows of B and C can be read and added to 16 bytes at a time
  T alpha;
};

// How the heavy segments are run.
struct Policy {
  int group;    // lanes to a segment
  int coarsen;  // columns a lane
  int slab() const { return group * coarsen; }
};

// Which columns of a slab a lane takes: pieces of at most 16 bytes, those of neighbouring lanes
// next to each other.
template <typename T, int kGroup, int kCoarsen>
struct LaneColumns {
  static constexpr int kPiece = kCoarsen < kWidest<T> ? kCoarsen : kWidest<T>;
  static constexpr int kPieces = kCoarsen / kPiece;
  static constexpr int kSlab = kGroup * kCoarsen;
  using Piece = Vector<T, kPiece>;

  __device__ static int First(int piece, int lane) { return (piece * kGroup + lane) * kPiece; }
};

// The segments of a block's chunk, one after another for each group; the next one's place is read
// while this one is computed.
template <typename T>
class Segments {
 public:
  __device__ Segments(const Product<T>& p, int group, int groups)
      : p_(p),
        groups_(groups),
        at_(p.chunk_offsets[blockIdx.x] + group),
        end_(p.chunk_offsets[blockIdx.x + 1]) {
    Read();
  }
  // False after the last one.
  __device__ bool Next() {
    if (at_ >= end_) return false;
    row = next_row_;
    begin = next_begin_;
    count = static_cast<int>(next_end_ - next_begin_);
    at_ += groups_;
    Read();
    return true;
  }

  int32_t row = 0;
  int64_t begin = 0;
  int count = 0;

 private:
  __device__ void Read() {
    if (at_ >= end_) return;
    next_row_ = __ldg(p_.segment_rows + at_);
    next_begin_ = __ldg(p_.segment_offsets + at_);
    next_end_ = __ldg(p_.segment_offsets + at_ + 1);
  }

  const Product<T>& p_;
  int groups_;
  int64_t at_, end_;
  int32_t next_row_ = 0;
  int64_t next_begin_ = 0, next_end_ = 0;
};

// Calls each(at, in_shared) for the elements, in pieces of kStep columns, of the panel's part of a
// row-major matrix: `at` is the row of the panel, `column` that of the matrix.
template <int kSlab, int kStep, typename Each>
__device__ inline void ForEachPiece(int rows, int64_t k, Each each) {
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kSlab;
  for (int i = static_cast<int>(threadIdx.x) * kStep; i < rows * kSlab;
       i += static_cast<int>(blockDim.x) * kStep) {
    const int64_t column = first + i % kSlab;
    if (column < k) each(i / kSlab, column, i);
  }
}

template <typename T>
__device__ inline int PanelColumns(const Product<T>& p, int64_t first) {
  return static_cast<int>(min(p.cols - first, int64_t{p.panel}));
}

template <typename T, int kGroup, int kCoarsen>
__global__ void __launch_bounds__(1024) AddSegments(const Product<T> p) {
  using Lane = LaneColumns<T, kGroup, kCoarsen>;
  constexpr int kInFlight = 4;
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  T* const shared = reinterpret_cast<T*>(shared_bytes);
  const int64_t panel_begin = static_cast<int64_t>(p.chunk_panels[blockIdx.x]) * p.panel;
  const T* const b = p.b + panel_begin * p.ldb;
  const int lane = static_cast<int>(threadIdx.x) % kGroup;
  Segments<T> segments(p, static_cast<int>(threadIdx.x) / kGroup,
                       static_cast<int>(blockDim.x) / kGroup);
  if (p.wide) {
    ForEachPiece<Lane::kSlab, kWidest<T>>(
        PanelColumns(p, panel_begin), p.k, [&](int row, int64_t column, int at) {
          const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared + at));
          CopyAsync<16>(to, b + row * p.ldb + column);
        });
    asm volatile("cp.async.wait_all;" ::: "memory");
  } else {
    ForEachPiece<Lane::kSlab, 1>(
        PanelColumns(p, panel_begin), p.k,
        [&](int row, int64_t column, int at) { shared[at] = __ldg(b + row * p.ldb + column); });
  }
  __syncthreads();

  const int64_t slab = static_cast<int64_t>(blockIdx.y) * Lane::kSlab;
  while (segments.Next()) {
    typename Lane::Piece sums[Lane::kPieces] = {};
    const int32_t* const columns = p.columns + segments.begin;
    const T* const values = p.values + segments.begin;
    int done = 0;
    const auto add = [&](auto in_flight) {
      constexpr int kCount = decltype(in_flight)::value;
      int32_t from[kCount];
      T scales[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        from[i] = __ldg(columns + done + i);
        scales[i] = __ldg(values + done + i);
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const T* const row = shared + from[i] * Lane::kSlab;
#pragma unroll
        for (int piece = 0; piece < Lane::kPieces; ++piece) {
          const auto part =
              *reinterpret_cast<const typename Lane::Piece*>(row + Lane::First(piece, lane));
#pragma unroll
          for (int j = 0; j < Lane::kPiece; ++j) sums[piece].at[j] += scales[i] * part.at[j];
        }
      }
      done += kCount;
    };
    while (done + kInFlight <= segments.count) add(std::integral_constant<int, kInFlight>());
    while (done < segments.count) add(std::integral_constant<int, 1>());
    T* const c = p.c + segments.row * p.ldc + slab;
#pragma unroll
    for (int piece = 0; piece < Lane::kPieces; ++piece) {
      const int first = Lane::First(piece, lane);
#pragma unroll
      for (int j = 0; j < Lane::kPiece; ++j) sums[piece].at[j] *= p.alpha;
      if (p.wide) {
        if (slab + first < p.k) AtomicAddVector<T, Lane::kPiece>(c + first, sums[piece]);
      } else {
#pragma unroll
        for (int j = 0; j < Lane::kPiece; ++j) {
          if (slab + first + j < p.k) atomicAdd(c + first + j, sums[piece].at[j]);
        }
      }
    }
  }
}

template <typename T, int kGroup, int kCoarsen>
__global__ void __launch_bounds__(1024) ScatterSegments(const Product<T> p) {
  using Lane = LaneColumns<T, kGroup, kCoarsen>;
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  T* const shared = reinterpret_cast<T*>(shared_bytes);
  const int64_t panel_begin = static_cast<int64_t>(p.chunk_panels[blockIdx.x]) * p.panel;
  const int lane = static_cast<int>(threadIdx.x) % kGroup;
  Segments<T> segments(p, static_cast<int>(threadIdx.x) / kGroup,
                       static_cast<int>(blockDim.x) / kGroup);
  for (int i = static_cast<int>(threadIdx.x); i < p.panel * Lane::kSlab;
       i += static_cast<int>(blockDim.x)) {
    shared[i] = 0;
  }
  __syncthreads();

  const int64_t slab = static_cast<int64_t>(blockIdx.y) * Lane::kSlab;
  while (segments.Next()) {
    T row[Lane::kPieces][Lane::kPiece] = {};
    const T* const b = p.b + segments.row * p.ldb + slab;
#pragma unroll
    for (int piece = 0; piece < Lane::kPieces; ++piece) {
#pragma unroll
      for (int j = 0; j < Lane::kPiece; ++j) {
        const int column = Lane::First(piece, lane) + j;
        if (slab + column < p.k) row[piece][j] = p.alpha * __ldg(b + column);
      }
    }
    const int32_t* const columns = p.columns + segments.begin;
    const T* const values = p.values + segments.begin;
#pragma unroll 2
    for (int i = 0; i < segments.count; ++i) {
      T* const to = shared + __ldg(columns + i) * Lane::kSlab;
      const T scale = __ldg(values + i);
#pragma unroll
      for (int piece = 0; piece < Lane::kPieces; ++piece) {
#pragma unroll
        for (int j = 0; j < Lane::kPiece; ++j) {
          const int column = Lane::First(piece, lane) + j;
          if (slab + column < p.k) atomicAdd(to + column, scale * row[piece][j]);
        }
      }
    }
  }
  __syncthreads();

  T* const c = p.c + panel_begin * p.ldc;
  if (p.wide) {
    ForEachPiece<Lane::kSlab, kWidest<T>>(
        PanelColumns(p, panel_begin), p.k, [&](int row, int64_t column, int at) {
          AtomicAddVector<T, kWidest<T>>(
              c + row * p.ldc + column,
              *reinterpret_cast<const Vector<T, kWidest<T>>*>(shared + at));
        });
  } else {
    ForEachPiece<Lane::kSlab, 1>(
        PanelColumns(p, panel_begin), p.k,
        [&](int row, int64_t column, int at) { atomicAdd(c + row * p.ldc + column, shared[at]); });
  }
}

// What a slab's heavy segments take on 32 lanes, in units of no matter, by coarsening 1, 2, 4: for
// the end of a segment and for a nonzero (C1 and C2 of section 4.3).
struct Costs {
  std::array<double, 3> segment;
  std::array<double, 3> nonzero;
};
// Measured on an H100 as the paper says, by the times T1 and T2 at K = 128 of two matrices all of
// which is heavy: `sparsed_bench spmm --generated dense4k thin4k --k 128 --kernel row_segments
// --recipe "row_segments(force,panel=256,min_heavy=1,coarsen=1)"`, then 2 and 4. Both have 65,536
// segments, of 256 and of 8 nonzeros.
constexpr Costs kSpmmCosts = {{1, 1.5, 2.5}, {1, 1.2, 2}};

// Lanes for a row of k elements, `coarsen` each.
int GroupFor(int64_t k, int coarsen) { return k > 16 * coarsen ? 32 : k > 8 * coarsen ? 16 : 8; }

int64_t SharedBytes(const Policy& policy, int64_t panel, ElementType type) {
  return panel * policy.slab() * static_cast<int64_t>(SizeOf(type));
}

// The coarsening with the least estimated time (section 4.3) of those that shared memory has room
// for; or the layout's own.
Policy PolicyFor(const RowSegmentsView& s, const Problem& problem) {
  Policy best = {GroupFor(problem.k, 1), 1};
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 3; ++i) {
    const Policy policy = {GroupFor(problem.k, 1 << i), 1 << i};
    if (SharedBytes(policy, s.panel, problem.type) > MostSharedBytes()) break;
    const auto slabs = static_cast<double>((problem.k + policy.slab() - 1) / policy.slab());
    const double time = slabs * policy.group *
                        (kSpmmCosts.segment[i] * static_cast<double>(s.segments()) +
                         kSpmmCosts.nonzero[i] * static_cast<double>(s.heavy_nnz()));
    if (s.coarsen != 0) {
      if (policy.coarsen <= s.coarsen) best = policy;
      continue;
    }
    if (time < least) {
      least = time;
      best = policy;
    }
  }
  return best;
}

// So many that a multiprocessor is full, or nearly: 2048, shared by the blocks that it has memory
// for.
int ThreadsFor(int64_t shared_bytes) {
  const int64_t blocks = std::max<int64_t>(MostSharedBytes() / (shared_bytes + 1024), 1);
  return static_cast<int>(std::clamp<int64_t>(2048 / blocks / 32 * 32, 128, 1024));
}

template <typename T, int kGroup, int kCoarsen, bool kTransposed>
absl::Status Launch(cudaStream_t stream, const Product<T>& product, int64_t chunks) {
  const Policy policy = {kGroup, kCoarsen};
  const int64_t bytes = SharedBytes(policy, product.panel, ElementTypeOf<T>());
  const auto kernel =
      kTransposed ? ScatterSegments<T, kGroup, kCoarsen> : AddSegments<T, kGroup, kCoarsen>;
  const cudaError_t error =
      // The same for every launch: it is the function's, and others may be launching it.
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, MostSharedBytes());
  if (error != cudaSuccess) return ToStatus(error, "reserving shared memory");
  const dim3 grid(static_cast<unsigned>(chunks),
                  static_cast<unsigned>((product.k + policy.slab() - 1) / policy.slab()));
  kernel<<<grid, ThreadsFor(bytes), bytes, stream>>>(product);
  return ToStatus(cudaGetLastError(), "starting SpMM from row segments");
}

template <typename T, int kCoarsen, bool kTransposed>
absl::Status LaunchGroup(cudaStream_t stream, const Policy& policy, const Product<T>& product,
                         int64_t chunks) {
  switch (policy.group) {
    case 8:
      return Launch<T, 8, kCoarsen, kTransposed>(stream, product, chunks);
    case 16:
      return Launch<T, 16, kCoarsen, kTransposed>(stream, product, chunks);
    default:
      return Launch<T, 32, kCoarsen, kTransposed>(stream, product, chunks);
  }
}

// The kernel over CSR for the light rows.
const SpmmKernel& LightKernel(const Problem& problem, const Layout& light) {
  static const SpmmKernel transposed = CsrTransposedSpmm();
  if (problem.transposed) return transposed;
  const std::span<const SpmmKernel> kernels = CsrRowsSpmm();
  return *std::find_if(kernels.begin(), kernels.end() - 1,
                       [&](const SpmmKernel& kernel) { return kernel.supports(problem, light); });
}

template <typename T, bool kTransposed>
absl::Status RunOf(const Context& context, const Problem& problem, const SpmmArguments& arguments) {
  const RowSegmentsView s = ViewRowSegments(arguments.layout);
  const Layout light = LightRows(arguments.layout);
  const absl::Status status =
      LightKernel(problem, light)
          .run(context, problem,
               {light, static_cast<const T*>(arguments.values) + s.heavy_nnz(), arguments.b,
                arguments.c, arguments.alpha, arguments.beta});
  if (!status.ok() || s.chunks() == 0 || arguments.c.cols == 0) return status;
  const Product<T> product = {
      .chunk_panels = s.chunk_panels.data(),
      .chunk_offsets = s.chunk_offsets.data(),
      .segment_rows = s.segment_rows.data(),
      .segment_offsets = s.segment_offsets.data(),
      .columns = s.heavy_columns.data(),
      .values = static_cast<const T*>(arguments.values),
      .b = static_cast<const T*>(arguments.b.data),
      .c = static_cast<T*>(arguments.c.data),
      .cols = s.cols,
      .ldb = arguments.b.leading_dimension,
      .ldc = arguments.c.leading_dimension,
      .k = arguments.c.cols,
      .panel = static_cast<int>(s.panel),
      .wide = RowsAreWide<T>(arguments.b.data, arguments.b.leading_dimension, arguments.c.cols) &&
              RowsAreWide<T>(arguments.c.data, arguments.c.leading_dimension, arguments.c.cols),
      .alpha = static_cast<T>(arguments.alpha)};
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const Policy policy = PolicyFor(s, problem);
  switch (policy.coarsen) {
    case 1:
      return LaunchGroup<T, 1, kTransposed>(stream, policy, product, s.chunks());
    case 2:
      return LaunchGroup<T, 2, kTransposed>(stream, policy, product, s.chunks());
    default:
      return LaunchGroup<T, 4, kTransposed>(stream, policy, product, s.chunks());
  }
}

template <bool kTransposed>
absl::Status Run(const Context& context, const Problem& problem, const SpmmArguments& arguments) {
  return problem.type == ElementType::kF32
             ? RunOf<float, kTransposed>(context, problem, arguments)
             : RunOf<double, kTransposed>(context, problem, arguments);
}

template <bool kTransposed>
bool Supports(const Problem& problem, const Layout& layout) {
  return problem.device == DeviceKind::kCuda && problem.operation == Operation::kSpmm &&
         (problem.type == ElementType::kF32 || problem.type == ElementType::kF64) &&
         problem.k <= kMostSpmmWidth && problem.transposed == kTransposed &&
         layout.kind == kRowSegments &&
         SharedBytes({GroupFor(problem.k, 1), 1}, layout.Parameter("panel"), problem.type) <=
             MostSharedBytes();
}

size_t Workspace(const Problem& problem, const Layout& layout, int threads) {
  const Layout light = LightRows(layout);
  return LightKernel(problem, light).workspace(problem, light, threads);
}

template <bool kTransposed>
SpmmKernel Kernel(std::string_view name) {
  return {.name = name,
          .layout_kind = kRowSegments,
          .device = DeviceKind::kCuda,
          .deterministic = false,
          .supports = Supports<kTransposed>,
          .workspace = Workspace,
          .run = Run<kTransposed>};
}

}  // namespace

SpmmKernel RowSegmentsSpmm() { return Kernel<false>("cuda.row_segments.streams"); }
SpmmKernel RowSegmentsTransposedSpmm() { return Kernel<true>("cuda.row_segments.scatter"); }

}  // namespace sparsed::cuda
