// Reductions over the products of a row's nonzeros, and sums with values for each head, from plain
// CSR or, with a value source, from that of S^T.
//
// Idea: as the kernels of spmm/csr_rows.cu: a group of lanes keeps its column block of C's row in
// registers and gathers 16 bytes a lane from several rows of B at once. A lane's columns are of one
// head, if 16 bytes divide a head: it reads one value for each nonzero, which the lanes around it
// read, too. Long rows are left to groups for chunks of them, first in the grid; a second kernel
// puts those together in their order, so that the same comes out every time.
// Layout in: "csr".
// Threads: groups of 2, 8 or 16 lanes (32 where rows are not aligned), a row and a column block
// each; column blocks are gridDim.y, one after another, so that the column blocks of B that the
// rows read at a time meet in the L2 cache: of 256 bytes more of them do than of 512.
// Needs: for matrices with room for long rows, a row of numbers for each chunk.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/cuda/check.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/row_chunks.cuh"
#include "kernels/cuda/spmm/slice.cuh"
#include "kernels/formats/csr.h"
#include "kernels/value_source.h"

namespace sparsed::cuda {
namespace {

// Small blocks, since one stays until the longest of its rows is done.
constexpr int kThreads = 64;

/// What is kept of products.
enum class Kind : uint8_t {
  kSum,
  kBest,   // the greatest
  kWhich,  // and the nonzero that it is of
};

template <typename T>
struct Product {
  const int64_t* row_offsets;
  const int32_t* columns;
  const T* values;  // null: ones
  int64_t ldv;
  ValueSource of_value;  // the row of `values` that a slot's are
  const T* b;
  T* c;
  int64_t rows, nnz, ldc, k;
  int width;          // columns of a head
  uint32_t b_stride;  // bytes from one row of B to the next
  SumOf<T> alpha, beta;
  bool mean;
  SumOf<T> sign;  // -1: the least is the greatest of what is negated
  int64_t* arguments;
  int64_t lda;
  ValueSource of_slot;       // the nonzero of S's CSR that a slot is
  const int64_t* positions;  // of those; null: as they are
  int64_t chunks;            // 0: rows are not split
  int64_t chunk;             // nonzeros; rows of more than two are split
  int64_t* first_of;         // for each chunk: the split row whose first chunk it is, or -1
  int64_t* which;            // a row of partial_stride elements for each chunk: slots, or -1
  SumOf<T>* partial;         // likewise: sums, or the greatest
  int64_t partial_stride;

  __device__ bool IsSplit(int64_t length) const { return chunks > 0 && length > 2 * chunk; }
  __device__ void StoreArgument(int64_t row, int64_t column, int64_t slot) const {
    int64_t at = slot < 0 ? -1 : of_slot[slot];
    if (at >= 0 && positions != nullptr) at = positions[at];
    __stcs(reinterpret_cast<long long*>(arguments + row * lda + column), at);
  }
};

template <typename Sum>
__device__ inline bool Better(Sum product, Sum best) {
  return !(product <= best) && best == best;  // a NaN is taken, and stays
}
__device__ inline double BetterOf(double product, double best) {
  return Better(product, best) ? product : best;
}
__device__ inline float BetterOf(float product, float best) {
  float better;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(better) : "f"(product), "f"(best));
  return better;
}

/// What a lane has of its part of a row of C.
template <typename Part, Kind kKind>
struct Found {
  using T = typename Part::Element;
  using Sum = SumOf<T>;
  static constexpr int kWidth = Part::kWidth;
  static constexpr bool kWhich = kKind == Kind::kWhich;

  SliceSum<Part> best;
  int32_t which[kWhich ? kWidth : 1];

  __device__ Found() {
    if constexpr (kKind != Kind::kSum) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) best.at[j] = -static_cast<Sum>(INFINITY);
    }
    if constexpr (kWhich) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) which[j] = -1;
    }
  }
  /// A nonzero, counted from the span's beginning; a value for each element, or one for all.
  template <int kScales>
  __device__ void Add(const Sum (&scales)[kScales], const Part& row, Sum sign, int32_t number) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const Sum product = scales[kScales == 1 ? 0 : j] * Widen(row.at[j]);
      if constexpr (kKind == Kind::kSum) {
        best.at[j] += product;
      } else {
        const Sum one = sign * product;
        if constexpr (kWhich) {
          const bool better = Better(one, best.at[j]) || which[j] < 0;
          which[j] = better ? number : which[j];
          best.at[j] = better ? one : best.at[j];
        } else {
          best.at[j] = BetterOf(one, best.at[j]);
        }
      }
    }
  }
};

template <typename T, bool kAligned, int kGroup, Kind kKind, bool kPerElement>
__global__ void __launch_bounds__(kThreads, kPerElement  ? 8
                                            : kIsHalf<T> ? 12
                                                         : 16) Rows(const Product<T> p) {
  using Part = Slice<T, kAligned, kGroup>;
  using Sum = SumOf<T>;
  constexpr int kTeams = kThreads / kGroup;
  constexpr int kScales = kPerElement ? Part::kWidth : 1;
  constexpr int kInFlight = kPerElement || !kAligned || kKind == Kind::kWhich ? 4 : 8;
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();  // MergeChunks may get ready; it waits for this grid
#endif
  const int lane = threadIdx.x % kGroup;
  const int64_t team = static_cast<int64_t>(blockIdx.x) * kTeams + threadIdx.x / kGroup;
  const int64_t first = Part::First(blockIdx.y, lane);
  const int elements = Part::Count(p.k, first);
  const bool is_chunk = team < p.chunks;
  const int64_t row = team - p.chunks;
  Span span = {0, 0};
  if (is_chunk) {
    int64_t first_of;
    span = ChunkOf<kGroup>(p, team, lane, &first_of);
    if (lane == 0 && blockIdx.y == 0) p.first_of[team] = first_of;
    if (span.begin == span.end) return;
  } else {
    if (row >= p.rows) return;
    span = {__ldg(p.row_offsets + row), __ldg(p.row_offsets + row + 1)};
    if (p.IsSplit(span.end - span.begin)) return;
  }
  if (elements == 0) return;
  int heads[kScales];
#pragma unroll
  for (int j = 0; j < kScales; ++j) {
    const int64_t column = first + (kPerElement ? Part::Offset(j) : 0);
    heads[j] = column < p.k ? static_cast<int>(column / p.width) : 0;
  }
  const int count = static_cast<int>(span.end - span.begin);
  const int32_t* const columns = p.columns + span.begin;
  const T* const b = p.b + first;
  Found<Part, kKind> found;
  // All indices are read before any row is, so that the rows are on their way together.
  const auto add = [&]<bool kAll>(int done) {
    int32_t of_row[kInFlight];
    Sum scales[kInFlight][kScales];
    Part rows[kInFlight];
    const auto there = [&](int i) { return kAll || done + i < count; };
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      of_row[i] = there(i) ? __ldg(columns + done + i) : 0;
#pragma unroll
      for (int j = 0; j < kScales; ++j) scales[i][j] = Sum(1);
    }
    if (p.values != nullptr) {
      int64_t of_value[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        of_value[i] = there(i) ? p.of_value[span.begin + done + i] : 0;
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (!there(i)) continue;
        const T* const values = p.values + of_value[i] * p.ldv;
#pragma unroll
        for (int j = 0; j < kScales; ++j) scales[i][j] = Widen(ReadOnly(values + heads[j]));
      }
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (there(i)) rows[i] = Part::Load(RowAt(b, of_row[i], p.b_stride), elements);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (there(i)) found.Add(scales[i], rows[i], p.sign, done + i);
    }
  };
  int done = 0;
#pragma unroll 1
  for (; done + kInFlight <= count; done += kInFlight) add.template operator()<true>(done);
  if (done < count) add.template operator()<false>(done);
  if (is_chunk) {
    const int64_t at = team * p.partial_stride + first;
    found.best.Emit(p.partial + at, elements, Sum(1), Sum(0));
    if constexpr (kKind == Kind::kWhich) {
#pragma unroll
      for (int j = 0; j < Part::kWidth; ++j) {
        if (j < elements) p.which[at + Part::Offset(j)] = span.begin + found.which[j];
      }
    }
    return;
  }
  T* const out = p.c + row * p.ldc + first;
  if constexpr (kKind == Kind::kSum) {
    if (p.mean) {
      const Sum length = static_cast<Sum>(max(count, 1));
#pragma unroll
      for (int j = 0; j < Part::kWidth; ++j) found.best.at[j] /= length;
    }
    found.best.Emit(out, elements, p.alpha, p.beta);
  } else {
#pragma unroll
    for (int j = 0; j < Part::kWidth; ++j) {
      found.best.at[j] = count == 0 ? Sum(0) : p.sign * found.best.at[j];
    }
    found.best.Emit(out, elements, Sum(1), Sum(0));
    if constexpr (kKind == Kind::kWhich) {
#pragma unroll
      for (int j = 0; j < Part::kWidth; ++j) {
        if (j >= elements) continue;
        p.StoreArgument(row, first + Part::Offset(j),
                        count == 0 ? -1 : span.begin + found.which[j]);
      }
    }
  }
}

/// A column's sum, or its greatest and the slot that is of, over some chunks.
template <typename Sum, Kind kKind>
struct Merged {
  Sum best;
  int64_t slot;

  __device__ static Merged None() {
    return {kKind == Kind::kSum ? Sum(0) : -static_cast<Sum>(INFINITY), -1};
  }
  __device__ void Merge(const Merged& other) {
    if constexpr (kKind == Kind::kSum) {
      best += other.best;
    } else if (kKind == Kind::kBest) {
      if (Better(other.best, best)) best = other.best;
    } else if (other.slot >= 0) {
      // Equal ones, and NaNs, are by their place.
      const bool either = (best != best && other.best != other.best) || best == other.best;
      if (slot < 0 || (either ? other.slot < slot : Better(other.best, best))) *this = other;
    }
  }
};

// Puts the chunks of each split row together.
template <typename T, Kind kKind>
__global__ void __launch_bounds__(32 * kMergers) MergeChunks(const Product<T> p) {
  AwaitTheKernelBefore();
  using One = Merged<SumOf<T>, kKind>;
  __shared__ One shared[kMergers][32];
  const int64_t column = static_cast<int64_t>(blockIdx.y) * 32 + threadIdx.x;
  ForEachSplitRow(p, [&](int64_t row, const Share& share) {
    One one = One::None();
    if (column < p.k) {
#pragma unroll 4
      for (int64_t i = share.first; i <= share.last; i += share.step) {
        One part = One::None();
        part.best = p.partial[i * p.partial_stride + column];
        if constexpr (kKind == Kind::kWhich) part.slot = p.which[i * p.partial_stride + column];
        one.Merge(part);
      }
    }
    const bool all =
        OverShares(share, one, shared, [](One& mine, const One& other) { mine.Merge(other); });
    if (all && column < p.k) {
      T& c = p.c[row * p.ldc + column];
      if constexpr (kKind == Kind::kSum) {
        SumOf<T> sum = one.best;
        if (p.mean) {
          sum /= static_cast<SumOf<T>>(p.row_offsets[row + 1] - p.row_offsets[row]);
        }
        c = Narrow<T>(p.beta == SumOf<T>(0) ? p.alpha * sum : p.alpha * sum + p.beta * Widen(c));
      } else {
        c = Narrow<T>(p.sign * one.best);
        if constexpr (kKind == Kind::kWhich) p.StoreArgument(row, column, one.slot);
      }
    }
  });
}

// Chunks, in whole blocks of the narrowest group.
int64_t Chunks(const Layout& layout) {
  return ChunksOf(layout, ShortChunkFor(layout.nnz), kThreads / 2);
}

int64_t PaddedWidth(int64_t k) { return (k + 127) / 128 * 128; }

template <typename T, bool kAligned, int kGroup, Kind kKind, bool kPerElement>
cudaError_t Launch(cudaStream_t stream, const Product<T>& product) {
  constexpr int64_t kTeams = kThreads / kGroup;
  constexpr int64_t kColumns = Slice<T, kAligned, kGroup>::kColumns;
  const dim3 grid(static_cast<unsigned>((product.chunks + product.rows + kTeams - 1) / kTeams),
                  static_cast<unsigned>((product.k + kColumns - 1) / kColumns));
  Rows<T, kAligned, kGroup, kKind, kPerElement><<<grid, kThreads, 0, stream>>>(product);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess || product.chunks == 0) return error;
  return LaunchOverlapping(stream, MergingGrid(product.chunks, product.k), kMerging,
                           MergeChunks<T, kKind>, product);
}

template <typename T, bool kAligned, Kind kKind, bool kPerElement>
cudaError_t LaunchGroup(cudaStream_t stream, const Product<T>& product) {
  constexpr int64_t kWidth = Slice<T, kAligned, 2>::kWidth;
  if (product.k <= 2 * kWidth) {
    return Launch<T, kAligned, 2, kKind, kPerElement>(stream, product);
  }
  if (product.k <= 8 * kWidth) {
    return Launch<T, kAligned, 8, kKind, kPerElement>(stream, product);
  }
  if constexpr (!kAligned) {
    if (product.k > 16 * kWidth) {
      return Launch<T, kAligned, 32, kKind, kPerElement>(stream, product);
    }
  }
  return Launch<T, kAligned, 16, kKind, kPerElement>(stream, product);
}

template <typename T, bool kAligned>
cudaError_t LaunchKind(cudaStream_t stream, const Product<T>& product, Kind kind,
                       bool per_element) {
  switch (kind) {
    case Kind::kBest:
      return LaunchGroup<T, kAligned, Kind::kBest, false>(stream, product);
    case Kind::kWhich:
      return LaunchGroup<T, kAligned, Kind::kWhich, false>(stream, product);
    case Kind::kSum:
      break;
  }
  return per_element ? LaunchGroup<T, kAligned, Kind::kSum, true>(stream, product)
                     : LaunchGroup<T, kAligned, Kind::kSum, false>(stream, product);
}

Kind KindOf(const RowProducts& products) {
  if (products.reduction == Reduction::kSum || products.reduction == Reduction::kMean) {
    return Kind::kSum;
  }
  return products.arguments.data == nullptr ? Kind::kBest : Kind::kWhich;
}

}  // namespace

// The chunks' numbers keep what is behind them aligned: there is an even number of them.
size_t RowProductsWorkspace(const RowProducts& products, ElementType type) {
  const auto width = static_cast<size_t>(PaddedWidth(products.c.cols));
  const size_t each = sizeof(int64_t) + width * SumSize(type) +
                      (KindOf(products) == Kind::kWhich ? width * sizeof(int64_t) : 0);
  return static_cast<size_t>(Chunks(products.layout)) * each;
}

absl::Status ComputeRowProducts(const Context& context, const RowProducts& products,
                                ElementType type) {
  const Layout& layout = products.layout;
  const int64_t k = products.c.cols;
  if (layout.rows == 0 || k == 0) return absl::OkStatus();
  if (k > kMostSpmmWidth || products.b.leading_dimension > std::numeric_limits<uint32_t>::max() /
                                                               static_cast<int64_t>(SizeOf(type))) {
    return absl::UnimplementedError("the operand is too wide for the GPU's kernel");
  }
  const CsrView s = ViewCsr(layout);
  return VisitFloat(type, [&]<typename T>(T) {
    Product<T> product = {};
    product.row_offsets = s.row_offsets.data();
    product.columns = s.column_indices.data();
    product.values = static_cast<const T*>(products.values.data);
    product.ldv = products.values.leading_dimension;
    if (!products.values_by_slot) product.of_value = ValueSource(layout);
    product.b = static_cast<const T*>(products.b.data);
    product.c = static_cast<T*>(products.c.data);
    product.rows = layout.rows;
    product.nnz = layout.nnz;
    product.ldc = products.c.leading_dimension;
    product.k = k;
    product.width = static_cast<int>(k / products.heads());
    product.b_stride = static_cast<uint32_t>(products.b.leading_dimension * sizeof(T));
    product.alpha = static_cast<SumOf<T>>(products.alpha);
    product.beta = static_cast<SumOf<T>>(products.beta);
    product.mean = products.reduction == Reduction::kMean;
    product.sign = products.reduction == Reduction::kMin ? SumOf<T>(-1) : SumOf<T>(1);
    product.arguments = static_cast<int64_t*>(products.arguments.data);
    product.lda = products.arguments.leading_dimension;
    product.of_slot = ValueSource(layout);
    product.positions = products.positions.empty() ? nullptr : products.positions.data();
    product.chunks = Chunks(layout);
    product.chunk = ShortChunkFor(layout.nnz);
    product.partial_stride = PaddedWidth(k);
    const Kind kind = KindOf(products);
    product.first_of = reinterpret_cast<int64_t*>(context.workspace.data());
    product.which = product.first_of + product.chunks;
    product.partial = reinterpret_cast<SumOf<T>*>(
        product.which + (kind == Kind::kWhich ? product.chunks * product.partial_stride : 0));
    const bool aligned = RowsAreWide<T>(product.b, products.b.leading_dimension, k) &&
                         RowsAreWide<T>(product.c, product.ldc, k);
    const bool one_head = products.heads() == 1;
    const auto stream = static_cast<cudaStream_t>(context.stream);
    return ToStatus(aligned ? LaunchKind<T, true>(stream, product, kind,
                                                  !one_head && product.width % kWidest<T> != 0)
                            : LaunchKind<T, false>(stream, product, kind, !one_head),
                    "starting products of rows");
  });
}

}  // namespace sparsed::cuda
