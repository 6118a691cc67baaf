// SpMM from CSR, plain or with permuted rows: C = alpha * S * B + beta * C; or the mean of a row's
// products, or the greatest or least of them.
//
// Idea: a row of S at a time and as little else as possible, so that the caches' rate is the only
// limit: a group of lanes keeps its column block of C's row in registers and gathers 16 bytes a
// lane from several rows of B at once (row splitting with vector loads, as in Sputnik, Gale et al.,
// SC 2020, and GE-SpMM, Huang et al., SC 2020). Rows of more than two chunks of nonzeros are left
// to other groups, one for each chunk: those come first in the grid and find their row by a search,
// so nothing is prepared (the splitting of long rows of RoDe, Pang et al., PPoPP 2024).
// Layout in: "csr".
// Threads: a group of 2 to 32 lanes, 16 bytes a lane, a column block; column blocks are gridDim.y,
// one after another. By policy, a group has a row of its own, its lanes reading the same index and
// value or each its own and passing them around, or the groups of a warp share a row.
// Needs: nothing without splitting; with it a column block's row and a row number for each chunk,
// which a second kernel adds up in their order.
// Wins: on scattered patterns, where it runs at the rate of the L2 cache or of memory.
//   rows               short rows of about equal length: meshes, road networks
//   warp_rows          longer rows at small K, where a group for each row is too few of them
//   split_rows,        power-law graphs; the first has more loads in flight, the second more warps,
//   split_warp_rows    and a warp for a row at small K
//   slabs_256_bytes    many nonzeros a row: rows of B, cut to 256 bytes, meet in the L1 cache
//   slabs_128_bytes    B does not fit the L2 cache, but 128 bytes of each row do, or nearly
#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/cuda/check.h"
#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/row_chunks.cuh"
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
  SumOf<T> alpha, beta;
  bool mean;
  SumOf<T> sign;      // -1: the least, of the negated the greatest
  int64_t chunks;     // 0: rows are not split
  int chunk;          // nonzeros; rows of more than two are split
  int64_t* first_of;  // for each chunk: the split row whose first chunk it is, or -1
  SumOf<T>* partial;  // a row of partial_stride elements for each chunk
  int64_t partial_stride;

  __device__ bool IsSplit(int64_t length) const { return chunks > 0 && length > 2 * chunk; }
  __device__ int64_t Target(int64_t row) const {
    return row_order == nullptr ? row : row_order[row];
  }
};

/// What is kept of a row's products.
enum class Keep : uint8_t {
  kSum,
  kSumOfOnes,  // S's values are ones, and there are none
  kBest,       // there may be none
};

// AddNonzeros with the group's lanes reading the indices and values of as many nonzeros at once,
// which are then passed around. The groups of a warp stay together.
template <int kInFlight, int kGroup, typename Slice>
__device__ inline void AddNonzerosTogether(const typename Slice::Element* b, uint32_t b_stride,
                                           const int32_t* columns,
                                           const typename Slice::Element* values, int count,
                                           int elements, int lane, SliceSum<Slice>& sum) {
  using Sum = typename SliceSum<Slice>::Sum;
  constexpr unsigned kWarp = 0xffffffffu;
  const int most = kGroup == 32 ? count : __reduce_max_sync(kWarp, count);
  const int least = kGroup == 32 ? count : __reduce_min_sync(kWarp, count);
  int32_t column = 0;
  Sum value = 0;
  if (lane < count) {
    column = __ldg(columns + lane);
    value = Widen(ReadOnly(values + lane));
  }
#pragma unroll 1
  for (int done = 0; done < most; done += kGroup) {
    const int32_t held_column = column;
    const Sum held_value = value;
    if (done + kGroup + lane < count) {
      column = __ldg(columns + done + kGroup + lane);
      value = Widen(ReadOnly(values + done + kGroup + lane));
    }
#pragma unroll(kGroup <= 8 ? 8 : 1)
    for (int at = 0; at < kGroup; at += kInFlight) {
      if (done + at >= most) break;
      Slice rows[kInFlight];
      Sum scales[kInFlight];
      if (done + at + kInFlight <= least) {
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
          const int32_t from = __shfl_sync(kWarp, held_column, at + i, kGroup);
          rows[i] = Slice::Load(RowAt(b, from, b_stride), elements);
          scales[i] = __shfl_sync(kWarp, held_value, at + i, kGroup);
        }
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) sum.Add(scales[i], rows[i]);
      } else {
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
          const int32_t from = __shfl_sync(kWarp, held_column, at + i, kGroup);
          scales[i] = __shfl_sync(kWarp, held_value, at + i, kGroup);
          if (done + at + i < count) rows[i] = Slice::Load(RowAt(b, from, b_stride), elements);
        }
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
          if (done + at + i < count) sum.Add(scales[i], rows[i]);
        }
      }
    }
  }
}

// How the lanes of a warp share rows.
enum class Sharing : uint8_t {
  kGroups,    // a row for each group
  kTogether,  // the same, the lanes of a group loading its nonzeros together
  kWarp,      // a row for the warp, whose groups take nonzeros in turn
};

template <typename T, bool kAligned, int kGroup, int kPieces, int kInFlight, Sharing kSharing,
          Keep kKeep>
__global__ void __launch_bounds__(kThreads, kInFlight == 8 || kPieces == 2 || kIsHalf<T> ? 4
                                            : kSharing == Sharing::kTogether             ? 5
                                                                                         : 6)
    Rows(const Product<T> p) {
  using Part = Slice<T, kAligned, kGroup, kPieces>;
  constexpr int kTeam = kSharing == Sharing::kWarp ? 32 / kGroup : 1;  // groups to a row
  constexpr int kTeams = kThreads / kGroup / kTeam;
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();  // AddChunks may get ready; it waits for this grid
#endif
  const int lane = threadIdx.x % kGroup;
  const int member = threadIdx.x / kGroup % kTeam;
  const int64_t team = static_cast<int64_t>(blockIdx.x) * kTeams + threadIdx.x / kGroup / kTeam;
  const int64_t first = Part::First(blockIdx.y, lane);
  const int elements = Part::Count(p.k, first);
  void* out = nullptr;  // T of C, or sums of a chunk
  Span span = {0, 0};
  const bool is_chunk = team < p.chunks;
  if (is_chunk) {
    int64_t first_of;
    span = ChunkOf<kGroup * kTeam>(p, team, threadIdx.x % (kGroup * kTeam), &first_of);
    if (lane == 0 && member == 0 && blockIdx.y == 0) p.first_of[team] = first_of;
    if (span.begin < span.end) out = p.partial + team * p.partial_stride + first;
  } else if (team - p.chunks < p.rows) {
    const int64_t row = team - p.chunks;
    span = {__ldg(p.row_offsets + row), __ldg(p.row_offsets + row + 1)};
    if (p.IsSplit(span.end - span.begin)) {
      span.end = span.begin;
    } else {
      out = p.c + p.Target(row) * p.ldc + first;
    }
  }
  constexpr bool kAlone = kSharing == Sharing::kGroups;  // no lane needs another
  static_assert(kSharing != Sharing::kTogether || kKeep == Keep::kSum);
  if (kSharing != Sharing::kTogether && out == nullptr) return;
  if (kAlone && elements == 0) return;
  const int count = static_cast<int>(span.end - span.begin);
  const int32_t* const columns = p.columns + span.begin;
  const T* const values = p.values + span.begin;
  // The others without columns read those of the first lane.
  const T* const b = p.b + (kAlone || elements > 0 ? first : Part::First(blockIdx.y, 0));
  std::conditional_t<kKeep == Keep::kBest, SliceBest<Part>, SliceSum<Part>> sum;
  if constexpr (kSharing == Sharing::kTogether) {
    AddNonzerosTogether<kInFlight, kGroup>(b, p.b_stride, columns, values, count, elements, lane,
                                           sum);
  } else {
    const int share = (count - member + kTeam - 1) / kTeam;
    if constexpr (kKeep == Keep::kSum) {
      AddNonzeros<kInFlight, kTeam>(b, p.b_stride, columns + member,
                                    PlainValues<T>{values + member}, share, elements, sum);
    } else {
      const SignedValues<T> own = {values + member, p.sign, p.values == nullptr};
      AddNonzeros<kInFlight, kTeam>(b, p.b_stride, columns + member, own, share, elements, sum);
    }
#pragma unroll
    for (int distance = kGroup; distance < kGroup * kTeam; distance *= 2) sum.AddFrom(distance);
  }
  if (out == nullptr || elements == 0 || member > 0) return;
  if (is_chunk) {
    sum.Emit(static_cast<SumOf<T>*>(out), elements, SumOf<T>(1), SumOf<T>(0));
  } else if constexpr (kKeep == Keep::kBest) {
    if (count == 0) sum.Clear();
    sum.Emit(static_cast<T*>(out), elements, p.sign, SumOf<T>(0));
  } else {
    if (p.mean) sum.Divide(count);
    sum.Emit(static_cast<T*>(out), elements, p.alpha, p.beta);
  }
}

// Puts the chunks of each split row together.
template <typename T, bool kBest>
__global__ void __launch_bounds__(32 * kMergers) AddChunks(const Product<T> p) {
  AwaitTheKernelBefore();
  using Sum = SumOf<T>;
  __shared__ Sum sums[kMergers][32];
  const int64_t column = static_cast<int64_t>(blockIdx.y) * 32 + threadIdx.x;
  ForEachSplitRow(p, [&](int64_t row, const Share& share) {
    const auto add = [](Sum& mine, Sum other) {
      mine = kBest ? Greater(other, mine) : mine + other;
    };
    Sum sum = kBest ? -static_cast<Sum>(INFINITY) : Sum(0);
    if (column < p.k) {
#pragma unroll 4
      for (int64_t i = share.first; i <= share.last; i += share.step) {
        add(sum, p.partial[i * p.partial_stride + column]);
      }
    }
    const bool all = OverShares(share, sum, sums, add);
    if (all && column < p.k) {
      T& c = p.c[p.Target(row) * p.ldc + column];
      if constexpr (kBest) {
        c = Narrow<T>(p.sign * sum);
      } else {
        if (p.mean) sum /= static_cast<Sum>(p.row_offsets[row + 1] - p.row_offsets[row]);
        c = Narrow<T>(p.beta == Sum(0) ? p.alpha * sum : p.alpha * sum + p.beta * Widen(c));
      }
    }
  });
}

// Chunks, in whole blocks of the narrowest group.
int64_t Chunks(const Layout& layout, int64_t k) {
  return ChunksOf(layout, ChunkFor(layout.nnz, k), kThreads / 2);
}

int64_t PaddedWidth(int64_t k) { return (k + 127) / 128 * 128; }

// How a kernel of this file goes about it.
struct Policy {
  int slab;    // most bytes of a row at a time
  bool split;  // long rows
  Sharing sharing;
  int pieces;  // of 16 bytes a lane, for column blocks of more than 128 bytes
  int in_flight;
};

template <bool kBest, typename T>
cudaError_t LaunchAddChunks(cudaStream_t stream, const Product<T>& product) {
  return LaunchOverlapping(stream, MergingGrid(product.chunks, product.k), kMerging,
                           AddChunks<T, kBest>, product);
}

template <Policy kPolicy, Keep kKeep, typename T, bool kAligned, int kGroup, int kPieces>
absl::Status Launch(cudaStream_t stream, const Product<T>& product) {
  constexpr Sharing kSharing = kGroup == 32 ? Sharing::kGroups : kPolicy.sharing;
  constexpr int64_t kTeams = kThreads / (kSharing == Sharing::kWarp ? 32 : kGroup);
  constexpr int64_t kColumns = Slice<T, kAligned, kGroup, kPieces>::kColumns;
  const dim3 grid(static_cast<unsigned>((product.chunks + product.rows + kTeams - 1) / kTeams),
                  static_cast<unsigned>((product.k + kColumns - 1) / kColumns));
  Rows<T, kAligned, kGroup, kPieces, kPolicy.in_flight, kSharing, kKeep>
      <<<grid, kThreads, 0, stream>>>(product);
  cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess && product.chunks > 0) {
    error = LaunchAddChunks<kKeep == Keep::kBest>(stream, product);
  }
  return ToStatus(error, "starting SpMM");
}

template <Policy kPolicy, Keep kKeep, typename T, bool kAligned>
absl::Status LaunchGroup(cudaStream_t stream, const Product<T>& product) {
  constexpr int kPieces = kAligned && !kIsHalf<T> ? kPolicy.pieces : 1;  // twice the sums
  const int64_t bytes = std::min<int64_t>(product.k * sizeof(T), kPolicy.slab);
  if constexpr (kPolicy.slab > 256) {
    if (bytes > 256)
      return Launch<kPolicy, kKeep, T, kAligned, 32 / kPieces, kPieces>(stream, product);
  }
  if constexpr (kPolicy.slab > 128) {
    if (bytes > 128)
      return Launch<kPolicy, kKeep, T, kAligned, 16 / kPieces, kPieces>(stream, product);
  }
  if constexpr (kPolicy.sharing != Sharing::kTogether) {
    if (bytes <= 32) return Launch<kPolicy, kKeep, T, kAligned, 2, 1>(stream, product);
    if (bytes <= 64) return Launch<kPolicy, kKeep, T, kAligned, 4, 1>(stream, product);
  }
  return Launch<kPolicy, kKeep, T, kAligned, 8, 1>(stream, product);
}

// How others than plain sums are computed where these are by `policy`: fewer kernels differ.
constexpr Policy OthersBy(Policy policy) {
  const bool warp = policy.sharing == Sharing::kWarp, slabs = policy.slab < 512;
  return {512, false, warp ? Sharing::kWarp : Sharing::kGroups, 1,
          warp    ? 4
          : slabs ? 8
                  : policy.in_flight};
}

template <Policy kPolicy, typename T, bool kAligned>
absl::Status LaunchKeep(cudaStream_t stream, const Product<T>& product, Keep keep) {
  constexpr Policy kOthers = OthersBy(kPolicy);
  switch (keep) {
    case Keep::kSumOfOnes:
      return LaunchGroup<kOthers, Keep::kSumOfOnes, T, kAligned>(stream, product);
    case Keep::kBest:
      return LaunchGroup<kOthers, Keep::kBest, T, kAligned>(stream, product);
    case Keep::kSum:
      break;
  }
  return LaunchGroup<kPolicy, Keep::kSum, T, kAligned>(stream, product);
}

template <Policy kPolicy, typename T>
absl::Status RunOf(const Context& context, const SpmmArguments& arguments) {
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
                        .alpha = static_cast<SumOf<T>>(arguments.alpha),
                        .beta = static_cast<SumOf<T>>(arguments.beta),
                        .mean = arguments.reduction == Reduction::kMean,
                        .sign = arguments.reduction == Reduction::kMin ? SumOf<T>(-1) : SumOf<T>(1),
                        .chunks = kPolicy.split ? Chunks(layout, arguments.c.cols) : 0,
                        .chunk = ChunkFor(layout.nnz, arguments.c.cols),
                        .first_of = reinterpret_cast<int64_t*>(context.workspace.data()),
                        .partial = nullptr,
                        .partial_stride = PaddedWidth(arguments.c.cols)};
  product.partial = reinterpret_cast<SumOf<T>*>(product.first_of + product.chunks);
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const bool aligned = RowsAreWide<T>(product.b, arguments.b.leading_dimension, product.k) &&
                       RowsAreWide<T>(product.c, product.ldc, product.k);
  const Keep keep = IsBest(arguments.reduction)   ? Keep::kBest
                    : arguments.values == nullptr ? Keep::kSumOfOnes
                                                  : Keep::kSum;
  return aligned ? LaunchKeep<kPolicy, T, true>(stream, product, keep)
                 : LaunchKeep<kPolicy, T, false>(stream, product, keep);
}

template <Policy kPolicy>
absl::Status Run(const Context& context, const Problem& problem, const SpmmArguments& arguments) {
  return VisitFloat(problem.type,
                    [&]<typename T>(T) { return RunOf<kPolicy, T>(context, arguments); });
}

// The chunks' numbers keep the sums behind them aligned: there is an even number of them.
template <Policy kPolicy>
size_t Workspace(const Problem& problem, const Layout& layout, int /*threads*/) {
  if (!kPolicy.split) return 0;
  return static_cast<size_t>(Chunks(layout, problem.k)) *
         (sizeof(int64_t) + static_cast<size_t>(PaddedWidth(problem.k)) * SumSize(problem.type));
}

// A column block that holds all columns would be the wider kernel twice.
template <Policy kPolicy>
bool Supports(const Problem& problem, const Layout& layout) {
  return problem.device == DeviceKind::kCuda && problem.operation == Operation::kSpmm &&
         problem.k <= kMostSpmmWidth && !problem.transposed && layout.kind == kCsr &&
         (kPolicy.slab == 512 ||
          problem.k * static_cast<int64_t>(SizeOf(problem.type)) > kPolicy.slab) &&
         (!kPolicy.split || MayHaveSplitRows(layout, ChunkFor(layout.nnz, problem.k)));
}

template <Policy kPolicy>
SpmmKernel Kernel(std::string_view name) {
  return {.name = name,
          .layout_kind = kCsr,
          .device = DeviceKind::kCuda,
          .deterministic = true,
          .supports = Supports<kPolicy>,
          .workspace = Workspace<kPolicy>,
          .run = Run<kPolicy>,
          .reduces = true};
}

}  // namespace

std::span<const SpmmKernel> CsrRowsSpmm() {
  static const SpmmKernel kernels[] = {
      Kernel<Policy{512, true, Sharing::kGroups, 1, 8}>("cuda.csr.split_rows"),
      Kernel<Policy{512, true, Sharing::kWarp, 1, 4}>("cuda.csr.split_warp_rows"),
      Kernel<Policy{512, false, Sharing::kGroups, 1, 4}>("cuda.csr.rows"),
      Kernel<Policy{512, false, Sharing::kWarp, 1, 8}>("cuda.csr.warp_rows"),
      Kernel<Policy{256, false, Sharing::kTogether, 2, 4}>("cuda.csr.slabs_256_bytes"),
      Kernel<Policy{128, false, Sharing::kTogether, 1, 4}>("cuda.csr.slabs_128_bytes"),
  };
  return kernels;
}

const SpmmKernel& CsrRowsFor(const Problem& problem, const Layout& csr) {
  const std::span<const SpmmKernel> kernels = CsrRowsSpmm();
  return *std::find_if(kernels.begin(), kernels.end() - 1,
                       [&](const SpmmKernel& kernel) { return kernel.supports(problem, csr); });
}

}  // namespace sparsed::cuda
