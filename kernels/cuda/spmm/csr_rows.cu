// SpMM from CSR, plain or with permuted rows: C = alpha * S * B + beta * C.
//
// Idea: a row of S at a time and as little else as possible, so that the caches' rate is the only
// limit: a group of lanes keeps its slab of C's row in registers and gathers 16 bytes a lane from
// several rows of B at once (row splitting with vector loads, as in Sputnik, Gale et al., SC 2020,
// and GE-SpMM, Huang et al., SC 2020). Indices and values come by broadcast loads. Rows of more
// than two chunks of nonzeros are left to other groups, one for each chunk: those come first in the
// grid and find their row by a search, so nothing is prepared (the splitting of long rows in RoDe,
// Pang et al., PPoPP 2024). Layout in: "csr". Threads: a group of 2 to 32 lanes a row and slab;
// slabs are gridDim.y, one after another. Needs: nothing without splitting; with it a slab's row
// and a row number for each chunk, which a second kernel adds up in their order. Wins: on scattered
// patterns, where it runs at the rate of the L2 cache or of memory. Narrow slabs win where B does
// not fit the L2 cache but a slab of it does, or nearly.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/cuda/check.h"
#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/spmm/slice.cuh"
#include "kernels/cuda/spmm/spmm.h"

namespace sparsed::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
struct Product {
  const int64_t* row_offsets;
  const int32_t* columns;
  const int32_t* row_order;  // null: identity
  const T* values;
  const T* b;
  T* c;
  int64_t rows, nnz, ldc, k;
  uint32_t b_stride;  // bytes from one row of B to the next
  T alpha, beta;
  int64_t chunks;     // 0: rows are not split
  int chunk;          // nonzeros; rows of more than two are split
  int64_t* first_of;  // for each chunk: the split row whose first chunk it is, or -1
  T* partial;         // a row of partial_stride elements for each chunk
  int64_t partial_stride;

  __device__ bool IsSplit(int64_t length) const { return chunks > 0 && length > 2 * chunk; }
  __device__ int64_t Target(int64_t row) const {
    return row_order == nullptr ? row : row_order[row];
  }
};

// sum += the products of `count` nonzeros; `b` points at the lane's first column.
template <int kInFlight, typename Slice>
__device__ inline void AddNonzeros(const typename Slice::Element* b, uint32_t b_stride,
                                   const int32_t* columns, const typename Slice::Element* values,
                                   int count, int elements, Slice& sum) {
  using T = typename Slice::Element;
#pragma unroll 1
  for (; count >= kInFlight; count -= kInFlight) {
    Slice rows[kInFlight];
    T scales[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      rows[i] = Slice::Load(RowAt(b, __ldg(columns + i), b_stride), elements);
      scales[i] = __ldg(values + i);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) sum.Add(scales[i], rows[i]);
    columns += kInFlight;
    values += kInFlight;
  }
  if (count == 0) return;
  Slice rows[kInFlight];
  T scales[kInFlight];
#pragma unroll
  for (int i = 0; i + 1 < kInFlight; ++i) {
    scales[i] = T(0);
    if (i < count) {
      rows[i] = Slice::Load(RowAt(b, __ldg(columns + i), b_stride), elements);
      scales[i] = __ldg(values + i);
    }
  }
#pragma unroll
  for (int i = 0; i + 1 < kInFlight; ++i) sum.Add(scales[i], rows[i]);
}

// The row of a nonzero: every lane of the group probes one boundary a step.
template <int kGroup>
__device__ int64_t RowOf(const int64_t* row_offsets, int64_t rows, int64_t position, int lane) {
  const unsigned mask = GroupMask<kGroup>();
  int64_t low = 0, high = rows;  // row_offsets[low] <= position < row_offsets[high]
  while (high - low > 1) {
    const int64_t step = (high - low + kGroup) / (kGroup + 1);
    const int64_t probe = min(low + (lane + 1) * step, high);
    const int below = __popc(__ballot_sync(mask, row_offsets[probe] <= position) & mask);
    high = min(low + (below + 1) * step, high);
    low += below * step;
  }
  return low;
}

struct Span {
  int64_t begin, end;
};

// The part of a split row that belongs to a chunk: a row's part is the chunk that begins in it; its
// first chunk also takes what comes before.
template <typename T, int kGroup>
__device__ Span ChunkOf(const Product<T>& p, int64_t chunk, int lane, int64_t* first_of) {
  const int64_t position = chunk * p.chunk;
  *first_of = -1;
  if (position >= p.nnz) return {0, 0};
  const int64_t row = RowOf<kGroup>(p.row_offsets, p.rows, position, lane);
  const Span whole = {p.row_offsets[row], p.row_offsets[row + 1]};
  if (!p.IsSplit(whole.end - whole.begin)) return {0, 0};
  const bool first = whole.begin > position - p.chunk;
  if (first) *first_of = row;
  return {first ? whole.begin : position, min(position + p.chunk, whole.end)};
}

template <typename T, bool kAligned, int kGroup, int kInFlight>
__global__ void __launch_bounds__(kThreads, kInFlight == 4 ? 6 : 4) Rows(const Product<T> p) {
  using Part = Slice<T, kAligned, kGroup>;
  constexpr int kGroups = kThreads / kGroup;
  const int lane = threadIdx.x % kGroup;
  const int64_t group = static_cast<int64_t>(blockIdx.x) * kGroups + threadIdx.x / kGroup;
  const int64_t first = Part::First(blockIdx.y, lane);
  const int elements = Part::Count(p.k, first);
  T* out;
  Span span;
  const bool is_chunk = group < p.chunks;
  if (is_chunk) {
    int64_t first_of;
    span = ChunkOf<T, kGroup>(p, group, lane, &first_of);
    if (lane == 0 && blockIdx.y == 0) p.first_of[group] = first_of;
    if (span.begin == span.end) return;
    out = p.partial + group * p.partial_stride + first;
  } else {
    const int64_t row = group - p.chunks;
    if (row >= p.rows) return;
    span = {__ldg(p.row_offsets + row), __ldg(p.row_offsets + row + 1)};
    if (p.IsSplit(span.end - span.begin)) return;
    out = p.c + p.Target(row) * p.ldc + first;
  }
  if (elements == 0) return;
  Part sum;
  AddNonzeros<kInFlight>(p.b + first, p.b_stride, p.columns + span.begin, p.values + span.begin,
                         static_cast<int>(span.end - span.begin), elements, sum);
  if (is_chunk) {
    sum.Emit(out, elements, T(1), T(0));
  } else {
    sum.Emit(out, elements, p.alpha, p.beta);
  }
}

// Adds up the chunks of each split row: threadIdx.y takes every kSummers-th, the sums of those
// follow in their order.
constexpr int kSummers = 8;
constexpr int kChunksPerBlock = 32;
template <typename T>
__global__ void __launch_bounds__(32 * kSummers) AddChunks(const Product<T> p) {
  __shared__ T sums[kSummers][32];
  const int64_t column = static_cast<int64_t>(blockIdx.y) * 32 + threadIdx.x;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kChunksPerBlock;
  const int64_t first_of = begin + threadIdx.x < p.chunks ? p.first_of[begin + threadIdx.x] : -1;
  unsigned firsts = __ballot_sync(0xffffffffu, first_of >= 0);  // the same in every warp
  for (; firsts != 0; firsts &= firsts - 1) {
    const int next = __ffs(static_cast<int>(firsts)) - 1;
    const int64_t row = __shfl_sync(0xffffffffu, first_of, next);
    const int64_t last = (p.row_offsets[row + 1] - 1) / p.chunk;
    T sum = 0;
    if (column < p.k) {
#pragma unroll 4
      for (int64_t i = begin + next + threadIdx.y; i <= last; i += kSummers) {
        sum += p.partial[i * p.partial_stride + column];
      }
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && column < p.k) {
      for (int i = 1; i < kSummers; ++i) sum += sums[i][threadIdx.x];
      T& c = p.c[p.Target(row) * p.ldc + column];
      c = p.beta == T(0) ? p.alpha * sum : p.alpha * sum + p.beta * c;
    }
    __syncthreads();
  }
}

// Nonzeros of a chunk: enough chunks to fill the device, few enough to search and store.
int ChunkFor(int64_t nnz) {
  int chunk = 128;
  while (chunk < 2048 && nnz / chunk > 8192) chunk *= 2;
  return chunk;
}

// Chunks, in whole blocks of the narrowest group.
int64_t Chunks(const Layout& layout) {
  const int chunk = ChunkFor(layout.nnz);
  if (layout.nnz <= 2 * chunk || layout.cols <= 2 * chunk) return 0;
  constexpr int64_t kRound = kThreads / 2;
  return ((layout.nnz + chunk - 1) / chunk + kRound - 1) / kRound * kRound;
}

int64_t PaddedWidth(int64_t k) { return (k + 127) / 128 * 128; }

// How a kernel of this file goes about it.
struct Policy {
  int slab;    // most columns at a time
  bool split;  // long rows
};

template <typename T, bool kAligned, int kGroup, int kInFlight>
absl::Status Launch(cudaStream_t stream, const Product<T>& product) {
  constexpr int64_t kGroups = kThreads / kGroup;
  constexpr int64_t kColumns = Slice<T, kAligned, kGroup>::kColumns;
  const dim3 grid(static_cast<unsigned>((product.chunks + product.rows + kGroups - 1) / kGroups),
                  static_cast<unsigned>((product.k + kColumns - 1) / kColumns));
  Rows<T, kAligned, kGroup, kInFlight><<<grid, kThreads, 0, stream>>>(product);
  if (product.chunks > 0) {
    const dim3 add_grid(
        static_cast<unsigned>((product.chunks + kChunksPerBlock - 1) / kChunksPerBlock),
        static_cast<unsigned>((product.k + 31) / 32));
    AddChunks<T><<<add_grid, dim3(32, kSummers), 0, stream>>>(product);
  }
  return ToStatus(cudaGetLastError(), "starting SpMM");
}

template <typename T, bool kAligned, int kInFlight>
absl::Status LaunchGroup(cudaStream_t stream, int64_t slab, const Product<T>& product) {
  const int64_t lanes = std::min(product.k, slab) / kWidest<T>;
  if (lanes > 16) return Launch<T, kAligned, 32, kInFlight>(stream, product);
  if (lanes > 8) return Launch<T, kAligned, 16, kInFlight>(stream, product);
  if (lanes > 4) return Launch<T, kAligned, 8, kInFlight>(stream, product);
  if (lanes > 2) return Launch<T, kAligned, 4, kInFlight>(stream, product);
  return Launch<T, kAligned, 2, kInFlight>(stream, product);
}

template <typename T, int kInFlight>
absl::Status RunOf(const Policy& policy, const Context& context, const SpmmArguments& arguments) {
  const Layout& layout = arguments.layout;
  if (layout.rows == 0 || arguments.c.cols == 0) return absl::OkStatus();
  const absl::StatusOr<uint32_t> stride = RowStride<T>(arguments.b);
  if (!stride.ok()) return stride.status();
  const CsrView s = ViewCsr(layout);
  Product<T> product = {.row_offsets = s.row_offsets.data(),
                        .columns = s.column_indices.data(),
                        .row_order = s.row_order.empty() ? nullptr : s.row_order.data(),
                        .values = static_cast<const T*>(arguments.values),
                        .b = static_cast<const T*>(arguments.b.data),
                        .c = static_cast<T*>(arguments.c.data),
                        .rows = layout.rows,
                        .nnz = layout.nnz,
                        .ldc = arguments.c.leading_dimension,
                        .k = arguments.c.cols,
                        .b_stride = *stride,
                        .alpha = static_cast<T>(arguments.alpha),
                        .beta = static_cast<T>(arguments.beta),
                        .chunks = policy.split ? Chunks(layout) : 0,
                        .chunk = ChunkFor(layout.nnz),
                        .first_of = reinterpret_cast<int64_t*>(context.workspace.data()),
                        .partial = nullptr,
                        .partial_stride = PaddedWidth(arguments.c.cols)};
  product.partial = reinterpret_cast<T*>(product.first_of + product.chunks);
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const bool aligned = RowsAreWide<T>(product.b, arguments.b.leading_dimension, product.k) &&
                       RowsAreWide<T>(product.c, product.ldc, product.k);
  return aligned ? LaunchGroup<T, true, kInFlight>(stream, policy.slab, product)
                 : LaunchGroup<T, false, kInFlight>(stream, policy.slab, product);
}

template <Policy kPolicy, int kInFlight>
absl::Status Run(const Context& context, const Problem& problem, const SpmmArguments& arguments) {
  return problem.type == ElementType::kF32 ? RunOf<float, kInFlight>(kPolicy, context, arguments)
                                           : RunOf<double, kInFlight>(kPolicy, context, arguments);
}

// The chunks' numbers keep the sums behind them aligned: there is an even number of them.
template <Policy kPolicy>
size_t Workspace(const Problem& problem, const Layout& layout, int /*threads*/) {
  if (!kPolicy.split) return 0;
  return static_cast<size_t>(Chunks(layout)) *
         (sizeof(int64_t) + static_cast<size_t>(PaddedWidth(problem.k)) * SizeOf(problem.type));
}

// A slab that holds all columns would be the wider kernel twice.
template <Policy kPolicy>
bool Supports(const Problem& problem, const Layout& layout) {
  return problem.device == DeviceKind::kCuda && problem.operation == Operation::kSpmm &&
         !problem.transposed && layout.kind == kCsr &&
         (kPolicy.slab == 128 || problem.k > kPolicy.slab) &&
         (!kPolicy.split || Chunks(layout) > 0);
}

template <Policy kPolicy, int kInFlight = 4>
SpmmKernel Kernel(std::string_view name) {
  return {.name = name,
          .layout_kind = kCsr,
          .device = DeviceKind::kCuda,
          .deterministic = true,
          .supports = Supports<kPolicy>,
          .workspace = Workspace<kPolicy>,
          .run = Run<kPolicy, kInFlight>};
}

}  // namespace

SpmmKernel CsrRowsSpmm() { return Kernel<Policy{128, false}>("cuda.csr.rows"); }
SpmmKernel CsrSplitRowsSpmm() { return Kernel<Policy{128, true}>("cuda.csr.split_rows"); }
SpmmKernel CsrSplitRowsSlab64Spmm() {
  return Kernel<Policy{64, true}>("cuda.csr.split_rows_slab64");
}
SpmmKernel CsrSplitRowsSlab32Spmm() {
  return Kernel<Policy{32, true}>("cuda.csr.split_rows_slab32");
}
SpmmKernel CsrSplitRowsSlab16Spmm() {
  return Kernel<Policy{16, true}>("cuda.csr.split_rows_slab16");
}
SpmmKernel CsrRows8Spmm() { return Kernel<Policy{128, false}, 8>("cuda.csr.rows8"); }
SpmmKernel CsrSplitRows8Spmm() { return Kernel<Policy{128, true}, 8>("cuda.csr.split_rows8"); }

}  // namespace sparsed::cuda
