// SpMM and transposed SpMM from heavy row segments and light rows: C = alpha * op(S) * B + beta *
// C.
//
// Idea: RS-SpMM (Hong et al., HPDC'18). "Vertical streaming": a block copies its panel's part of B
// into shared memory once, multiplies the panel's heavy segments from there and adds each segment's
// sums to C atomically. Transposed (section 6), shared memory holds the panel's part of C instead,
// to which the segments add their multiples of B's rows, and which the block adds to C at its end;
// unlike in the paper, a warp has columns of its own there, since floats are not added atomically
// in shared memory but by trying. "Horizontal streaming", of the light rows, is what the kernels
// over CSR do, better balanced than in the paper: they run before and also scale C. Thread
// coarsening: a lane takes 1, 2 or 4 columns, 16 bytes at the most, by the cost model of
// section 4.3; a group of lanes is as wide as K asks for.
// Layout in: "row_segments", the same arrays for both.
// Threads: a block a chunk of a panel's segments and column block; column blocks are gridDim.y. A
// group of 8, 16 or 32 lanes takes a segment at a time; transposed, every warp takes all of them.
// As many threads as registers or shared memory leave room for.
// Needs: what the CSR kernel of the light rows needs. f32 or f64. Values aligned to 16 bytes. Sums
// in no fixed order: not deterministic.
// Wins: where rows have runs of near columns in places that their neighbours do not share, from K =
// 32 on. Where neighbours share them, rows of B come from the L1 cache at the rate of shared
// memory, and the kernels over CSR and row_panels do better. Transposed: over scattering from CSR,
// at wide K and in f64; never over the transposed layout.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "kernels/cuda/check.h"
#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/shared_memory.cuh"
#include "kernels/cuda/spmm/spmm.h"
#include "kernels/formats/row_segments.h"

namespace sparsed::cuda {
namespace {

constexpr int kMostThreads = 512;
constexpr int kMostScatterWarps = 4;

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

// The segments of a block's chunk, handed out to the groups of kGroup lanes as they come. What is
// next is read while a segment is computed.
template <typename T, int kGroup>
class Segments {
 public:
  // `taken` is in shared memory; a barrier has to follow.
  __device__ Segments(const Product<T>& p, int* taken)
      : p_(p),
        taken_(taken),
        at_(p.chunk_offsets[blockIdx.x] + threadIdx.x / kGroup),
        first_(p.chunk_offsets[blockIdx.x]),
        end_(p.chunk_offsets[blockIdx.x + 1]) {
    if (threadIdx.x == 0) *taken = static_cast<int>(blockDim.x) / kGroup;
    Read();
  }
  // False after the last one.
  __device__ bool Next() {
    if (at_ >= end_) return false;
    row = next_row_;
    begin = next_begin_;
    count = static_cast<int>(next_end_ - next_begin_);
    int ticket = 0;
    if (threadIdx.x % kGroup == 0) ticket = atomicAdd(taken_, 1);
    at_ = first_ + __shfl_sync(GroupMask<kGroup>(), ticket, 0, kGroup);
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
  int* taken_;
  int64_t at_, first_, end_;
  int32_t next_row_ = 0;
  int64_t next_begin_ = 0, next_end_ = 0;
};

// Calls each(row, column, at) for the pieces, of kStep columns, of a column block of `rows` rows:
// `row` of the panel, `column` of the matrix of k, `at` in shared memory.
template <int kSlab, int kStep, typename Each>
__device__ inline void ForEachPiece(int rows, int64_t k, Each each) {
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kSlab;
  for (int i = static_cast<int>(threadIdx.x) * kStep; i < rows * kSlab;
       i += static_cast<int>(blockDim.x) * kStep) {
    const int64_t column = first + i % kSlab;
    if (column < k) each(i / kSlab, column, i);
  }
}

// Aligned to 16 bytes.
__device__ inline Vector<float, 4> ReadFour(const float* from) {
  const float4 four = __ldg(reinterpret_cast<const float4*>(from));
  return {{four.x, four.y, four.z, four.w}};
}
__device__ inline Vector<double, 4> ReadFour(const double* from) {
  const double2 one = __ldg(reinterpret_cast<const double2*>(from));
  const double2 two = __ldg(reinterpret_cast<const double2*>(from) + 1);
  return {{one.x, one.y, two.x, two.y}};
}

template <typename T>
__device__ inline int PanelColumns(const Product<T>& p, int64_t first) {
  return static_cast<int>(min(p.cols - first, int64_t{p.panel}));
}

template <typename T, int kGroup, int kCoarsen>
__global__ void __launch_bounds__(kMostThreads, 2) AddSegments(const Product<T> p) {
  constexpr int kSlab = kGroup * kCoarsen;
  using Part = Vector<T, kCoarsen>;
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  T* const shared = reinterpret_cast<T*>(shared_bytes);
  const int64_t panel_begin = static_cast<int64_t>(p.chunk_panels[blockIdx.x]) * p.panel;
  const T* const b = p.b + panel_begin * p.ldb;
  Segments<T, kGroup> segments(p, reinterpret_cast<int*>(shared + p.panel * kSlab));
  if (p.wide) {
    ForEachPiece<kSlab, kWidest<T>>(
        PanelColumns(p, panel_begin), p.k, [&](int row, int64_t column, int at) {
          const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared + at));
          CopyAsync<16>(to, b + row * p.ldb + column);
        });
    asm volatile("cp.async.wait_all;" ::: "memory");
  } else {
    ForEachPiece<kSlab, 1>(PanelColumns(p, panel_begin), p.k, [&](int row, int64_t column, int at) {
      shared[at] = __ldg(b + row * p.ldb + column);
    });
  }
  __syncthreads();

  const int first = static_cast<int>(threadIdx.x) % kGroup * kCoarsen;
  const int64_t column = static_cast<int64_t>(blockIdx.y) * kSlab + first;
  while (segments.Next()) {
    Part sum = {};
    const auto add = [&](int32_t index, T scale) {
      const Part row = *reinterpret_cast<const Part*>(shared + index * kSlab + first);
#pragma unroll
      for (int j = 0; j < kCoarsen; ++j) sum.at[j] += scale * row.at[j];
    };
    // Four nonzeros at a time where they are aligned: what is read of S goes the way of what is
    // read of shared memory, and a lane's load of one number takes as long as one of four.
    const int64_t end = segments.begin + segments.count;
    int64_t at = segments.begin;
    for (; at < end && at % 4 != 0; ++at) add(__ldg(p.columns + at), __ldg(p.values + at));
#pragma unroll 2
    for (; at + 4 <= end; at += 4) {
      const int4 columns = __ldg(reinterpret_cast<const int4*>(p.columns + at));
      const Vector<T, 4> scales = ReadFour(p.values + at);
      add(columns.x, scales.at[0]);
      add(columns.y, scales.at[1]);
      add(columns.z, scales.at[2]);
      add(columns.w, scales.at[3]);
    }
    for (; at < end; ++at) add(__ldg(p.columns + at), __ldg(p.values + at));
#pragma unroll
    for (int j = 0; j < kCoarsen; ++j) sum.at[j] *= p.alpha;
    T* const c = p.c + segments.row * p.ldc + column;
    if (p.wide) {
      if (column < p.k) AtomicAddVector<T, kCoarsen>(c, sum);
    } else {
#pragma unroll
      for (int j = 0; j < kCoarsen; ++j) {
        if (column + j < p.k) atomicAdd(c + j, sum.at[j]);
      }
    }
  }
}

// Every warp goes over all segments of the chunk, for columns of its own, so that nothing in shared
// memory is atomic; a lane has kOwn of them. Nonzeros are read a warp at a time, and passed around;
// rows of B are read kAhead segments ahead.
template <typename T, int kOwn>
__global__ void __launch_bounds__(32 * kMostScatterWarps) ScatterSegments(const Product<T> p) {
  constexpr unsigned kWarp = 0xffffffffu;
  constexpr int kAhead = 4, kInFlight = 8;
  using Part = Vector<T, kOwn>;
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  T* const shared = reinterpret_cast<T*>(shared_bytes);
  const int slab = static_cast<int>(blockDim.x) * kOwn;  // columns
  const int64_t panel_begin = static_cast<int64_t>(p.chunk_panels[blockIdx.x]) * p.panel;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t column =
      static_cast<int64_t>(blockIdx.y) * slab + static_cast<int64_t>(threadIdx.x) * kOwn;
  Part* const own = reinterpret_cast<Part*>(shared) + threadIdx.x;  // of the panel's first row
  const int panel_columns = PanelColumns(p, panel_begin);
  for (int i = 0; i < panel_columns; ++i) own[i * blockDim.x] = {};

  const int64_t first = p.chunk_offsets[blockIdx.x], last = p.chunk_offsets[blockIdx.x + 1];
  const auto end_of = [&](int64_t segment) {
    return __ldg(p.segment_offsets + min(segment + 1, last));
  };
  const auto number_of = [&](int64_t segment) {
    return __ldg(p.segment_rows + min(segment, last - 1));
  };
  const auto row_of_b = [&](int32_t number) {
    Part part = {};
    const T* const b = p.b + number * p.ldb + column;
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      if (column + j < p.k) part.at[j] = __ldg(b + j);
    }
    return part;
  };
  const int64_t end = __ldg(p.segment_offsets + last);
  int64_t at = __ldg(p.segment_offsets + first);
  int64_t held = at - 32;  // lane l holds nonzero held + l
  int32_t held_index = 0, next_index = at + lane < end ? __ldg(p.columns + at + lane) : 0;
  T held_value = 0, next_value = at + lane < end ? __ldg(p.values + at + lane) : T(0);
  Part rows[kAhead];
  int32_t numbers[kAhead];  // of the rows after those
  int64_t ends[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    rows[i] = row_of_b(number_of(first + i));
    numbers[i] = number_of(first + i + kAhead);
    ends[i] = end_of(first + i);
  }
#pragma unroll 1
  for (int64_t segment = first; segment < last; segment += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (segment + i >= last) break;
      Part row = rows[i];
#pragma unroll
      for (int j = 0; j < kOwn; ++j) row.at[j] *= p.alpha;
      const int64_t segment_end = ends[i];
      rows[i] = row_of_b(numbers[i]);
      numbers[i] = number_of(segment + i + 2 * kAhead);
      ends[i] = end_of(segment + i + kAhead);
#pragma unroll 1
      while (at < segment_end) {
        if (at == held + 32) {
          held = at;
          held_index = next_index;
          held_value = next_value;
          const int64_t next = at + 32 + lane;
          next_index = next < end ? __ldg(p.columns + next) : 0;
          next_value = next < end ? __ldg(p.values + next) : T(0);
        }
        const int begin = static_cast<int>(at - held);
        const int count = min(kInFlight, min(static_cast<int>(segment_end - at), 32 - begin));
        // Those behind are read for nothing, so that there is one way through; a segment's columns
        // differ, so that all can be read before the first is written.
        Part* to[kInFlight];
        Part sums[kInFlight];
#pragma unroll
        for (int n = 0; n < kInFlight; ++n) {
          to[n] = own + __shfl_sync(kWarp, held_index, begin + n) * static_cast<int>(blockDim.x);
          sums[n] = *to[n];
        }
#pragma unroll
        for (int n = 0; n < kInFlight; ++n) {
          const T scale = __shfl_sync(kWarp, held_value, begin + n);
#pragma unroll
          for (int j = 0; j < kOwn; ++j) sums[n].at[j] += scale * row.at[j];
        }
#pragma unroll
        for (int n = 0; n < kInFlight; ++n) {
          if (n < count) *to[n] = sums[n];
        }
        at += count;
      }
    }
  }

  T* const c = p.c + panel_begin * p.ldc + column;
  for (int i = 0; i < panel_columns; ++i) {
    const Part sum = own[i * blockDim.x];
    if (p.wide) {
      if (column < p.k) AtomicAddVector<T, kOwn>(c + i * p.ldc, sum);
    } else {
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        if (column + j < p.k) atomicAdd(c + i * p.ldc + j, sum.at[j]);
      }
    }
  }
}

// What a column block's heavy segments take on 32 lanes, in picoseconds: for the end of a segment
// and for a nonzero (C1 and C2 of section 4.3).
struct Costs {
  int coarsen;
  double segment, nonzero;
};
// Measured on an H100 as the paper says, by the times T1 and T2 at K = 128 of two matrices that are
// all heavy: `sparsed_bench spmm --generated dense4k thin4k --k 128 --type f32,f64 --pipeline
// "row_segments(force,panel=256,min_heavy=1,coarsen=1)"`, then 2 and 4. Both have 65,536 segments,
// of 256 and of 8 nonzeros; 128 columns are 4, 2 and 1 column blocks. A lane takes 16 bytes at the
// most.
constexpr Costs kCostsF32[] = {{1, 188, 13.0}, {2, 217, 19.5}, {4, 537, 30.1}};
constexpr Costs kCostsF64[] = {{1, 188, 21.4}, {2, 460, 40.2}};

// Lanes for a row of k elements, `coarsen` each.
int GroupFor(int64_t k, int coarsen) { return k > 16 * coarsen ? 32 : k > 8 * coarsen ? 16 : 8; }

// Of a block of AddSegments: a column block of the panel's rows of B, and how many segments were
// taken.
int64_t SharedBytes(const Policy& policy, int64_t panel, ElementType type) {
  return panel * policy.slab() * static_cast<int64_t>(SizeOf(type)) + 16;
}

// Of a warp of ScatterSegments.
int64_t ScatterBytes(int64_t panel, int own, ElementType type) {
  return panel * 32 * own * static_cast<int64_t>(SizeOf(type));
}

// The coarsening with the least estimated time (section 4.3) of those that shared memory has room
// for; or the layout's own.
Policy PolicyFor(const RowSegmentsView& s, const Problem& problem) {
  const std::span<const Costs> all_costs = problem.type == ElementType::kF32
                                               ? std::span<const Costs>(kCostsF32)
                                               : std::span<const Costs>(kCostsF64);
  Policy best = {GroupFor(problem.k, 1), 1};
  double least = std::numeric_limits<double>::infinity();
  for (const Costs& costs : all_costs) {
    const Policy policy = {GroupFor(problem.k, costs.coarsen), costs.coarsen};
    if (SharedBytes(policy, s.panel, problem.type) > MostSharedBytes()) break;
    if (s.coarsen != 0) {
      if (policy.coarsen <= s.coarsen) best = policy;
      continue;
    }
    const auto slabs = static_cast<double>((problem.k + policy.slab() - 1) / policy.slab());
    const double time = slabs * policy.group *
                        (costs.segment * static_cast<double>(s.segments()) +
                         costs.nonzero * static_cast<double>(s.heavy_nnz()));
    if (time < least) {
      least = time;
      best = policy;
    }
  }
  return best;
}

// As many as a multiprocessor has registers for, shared by the blocks that it has memory for.
int ThreadsFor(int64_t shared_bytes) {
  const int64_t blocks = std::max<int64_t>(MostSharedBytes() / (shared_bytes + 1024), 1);
  return static_cast<int>(std::clamp<int64_t>(1024 / blocks / 32 * 32, 128, kMostThreads));
}

template <typename T>
absl::Status Start(cudaStream_t stream, void (*kernel)(Product<T>), const Product<T>& product,
                   int64_t chunks, int slab, int threads, int64_t shared_bytes) {
  const cudaError_t error =
      // The same for every launch: it is the function's, and others may be launching it.
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, MostSharedBytes());
  if (error != cudaSuccess) return ToStatus(error, "reserving shared memory");
  const dim3 grid(static_cast<unsigned>(chunks),
                  static_cast<unsigned>((product.k + slab - 1) / slab));
  kernel<<<grid, threads, shared_bytes, stream>>>(product);
  return ToStatus(cudaGetLastError(), "starting SpMM from row segments");
}

template <typename T, int kCoarsen>
absl::Status AddSegmentsBy(cudaStream_t stream, const Policy& policy, const Product<T>& product,
                           int64_t chunks) {
  const int64_t bytes = SharedBytes(policy, product.panel, ElementTypeOf<T>());
  const auto kernel = policy.group == 8    ? AddSegments<T, 8, kCoarsen>
                      : policy.group == 16 ? AddSegments<T, 16, kCoarsen>
                                           : AddSegments<T, 32, kCoarsen>;
  return Start(stream, kernel, product, chunks, policy.slab(), ThreadsFor(bytes), bytes);
}

template <typename T, int kOwn>
absl::Status StartScatter(cudaStream_t stream, const Product<T>& product, int64_t chunks) {
  // Warps that share what they read of S, as long as there is room for two blocks.
  constexpr int kColumns = 32 * kOwn;  // of a warp
  const int64_t bytes = ScatterBytes(product.panel, kOwn, ElementTypeOf<T>());
  const int64_t needed = (product.k + kColumns - 1) / kColumns;
  const auto warps = static_cast<int>(std::clamp<int64_t>(
      std::min(needed, MostSharedBytes() / (2 * (bytes + 1024))), 1, kMostScatterWarps));
  return Start(stream, ScatterSegments<T, kOwn>, product, chunks, warps * kColumns, warps * 32,
               warps * bytes);
}

// The kernel over CSR for the light rows.
const SpmmKernel& LightKernel(const Problem& problem, const Layout& light) {
  static const SpmmKernel transposed = CsrTransposedSpmm();
  return problem.transposed ? transposed : CsrRowsFor(problem, light);
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
  if constexpr (kTransposed) {
    constexpr int kOwn = 8 / sizeof(T);
    return product.k <= 32 || ScatterBytes(s.panel, kOwn, problem.type) > MostSharedBytes()
               ? StartScatter<T, 1>(stream, product, s.chunks())
               : StartScatter<T, kOwn>(stream, product, s.chunks());
  } else {
    const Policy policy = PolicyFor(s, problem);
    if (policy.coarsen == 1) return AddSegmentsBy<T, 1>(stream, policy, product, s.chunks());
    if (policy.coarsen == 2) return AddSegmentsBy<T, 2>(stream, policy, product, s.chunks());
    return AddSegmentsBy<T, kWidest<T>>(stream, policy, product, s.chunks());
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
         (kTransposed ? ScatterBytes(layout.Parameter("panel"), 1, problem.type)
                      : SharedBytes({GroupFor(problem.k, 1), 1}, layout.Parameter("panel"),
                                    problem.type)) <= MostSharedBytes();
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
