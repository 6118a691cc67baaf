// SpGEMM by dense blocks: C = S * T where nonzeros lie in small dense blocks.
//
// Idea: with both operands cut into blocks of b x b, one place is looked up for the product of two
// blocks instead of for each of its b * b * b products (BCSR; the register blocking of Im, Yelick
// and Vuduc, "Sparsity", IJHPCA 2004, for a product of two). C's blocks are what row bins find for
// the patterns of blocks. Masks of 64 bits, a byte for each row of a block, say which of its places
// are nonzeros: boolean products of them say which entries C has, exactly.
//
// Layout in: "bcsr" of both, of one b from 2 to 8. `prepare` finds C's blocks with their masks.
//
// Threads: a block of 32 or 64 threads for a row of C's blocks, whose sums are in shared memory. It
// takes S's blocks one after the other, and of their rows of T a column of a block a thread: no two
// meet in a sum. Rows of more blocks than there is room for go window by window. Sums leave row by
// row, neighbours side by side.
//
// Needs: a b for which half of the places in stored blocks are nonzeros, in both operands. Padding
// is multiplied unless an infinity or a NaN would make it count.
//
// Wins: on wide bands, and on matrices of finite elements with several unknowns a point where these
// are not small: two thirds of a small one's time is preparation. Rows far longer than the others
// hold up the end (docs/kernels-cuda.md).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/running_sum.h"
#include "kernels/cuda/spgemm/host.h"
#include "kernels/cuda/spgemm/longest_row.h"
#include "kernels/cuda/spgemm/products.cuh"
#include "kernels/cuda/spgemm/spgemm.h"
#include "kernels/formats/bcsr.h"

namespace sparsed::cuda {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kWarp = 0xffffffffu;
constexpr int kLeastWidth = kLeastSquareBlock, kMostWidth = kMostBlockSide;
constexpr int kWidths = kMostWidth - kLeastWidth + 1;
constexpr int kRowLanes = 8;  // for a row of blocks, each for one of its rows

/// A matrix in blocks, on the device.
struct BlockMatrix {
  const int64_t* offsets;  // of rows of blocks
  const int32_t* columns;  // of blocks, ascending in a row
  const uint64_t* masks;   // bit 8 * i + j: row i of the block has column j
  const void* values;      // width * width for each block, row by row
};

/// What `prepare` finds.
struct BlockProduct {
  BlockMatrix s, t, c;        // C without values
  const int32_t* not_finite;  // whether S or T have an infinity or a NaN
  int64_t rows;               // of C
  int64_t c_blocks;
  int width;
};

struct Prepared {
  Buffer rows, result;
  BlockProduct product = {};
};

int64_t BlocksIn(int64_t size, int width) { return (size + width - 1) / width; }

// ---- Values

template <typename T>
__global__ void __launch_bounds__(kThreads)
    FindNotFinite(const T* values, int64_t count, int32_t* not_finite) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  bool finite = true;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += stride) {
    finite &= isfinite(__ldg(values + i));
  }
  if (!finite) *not_finite = 1;
}

// ---- C's pattern

/// Which entries the product of two blocks has.
__device__ inline uint64_t Times(uint64_t s, uint64_t t) {
  constexpr uint64_t kFirstColumn = 0x0101010101010101;
  uint64_t product = 0;
#pragma unroll
  for (int k = 0; k < 8; ++k) product |= (s >> k & kFirstColumn) * (t >> (8 * k) & 0xff);
  return product;
}

/// Adds all products to C's masks. A warp for a row of blocks, which takes S's one after the other:
/// its lanes have different blocks of C.
__global__ void __launch_bounds__(kThreads)
    MarkEntries(const BlockMatrix s, const BlockMatrix t, const BlockMatrix c, int64_t block_rows,
                uint64_t* c_masks) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  if (i >= block_rows) return;
  const int64_t c_begin = c.offsets[i], c_end = c.offsets[i + 1], s_end = s.offsets[i + 1];
  for (int64_t at = s.offsets[i]; at < s_end; ++at) {
    const int32_t k = s.columns[at];
    const uint64_t mask = s.masks[at];
    const int64_t t_end = t.offsets[k + 1];
    for (int64_t other = t.offsets[k] + threadIdx.x % 32; other < t_end; other += 32) {
      c_masks[FirstFrom(c.columns, c_begin, c_end, t.columns[other])] |=
          Times(mask, t.masks[other]);
    }
    __syncwarp();
  }
}

/// row_nnz[i] = entries of C's row i.
__global__ void __launch_bounds__(kThreads)
    CountEntries(const BlockProduct p, int64_t block_rows, int64_t* row_nnz) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kRowLanes;
  if (i >= block_rows) return;
  const int lane = threadIdx.x % kRowLanes;
  int64_t counts[kMostWidth] = {};
  const int64_t end = p.c.offsets[i + 1];
  for (int64_t at = p.c.offsets[i] + lane; at < end; at += kRowLanes) {
    const uint64_t mask = p.c.masks[at];
#pragma unroll
    for (int j = 0; j < kMostWidth; ++j) {
      counts[j] += __popc(static_cast<unsigned>(mask >> (8 * j)) & 0xff);
    }
  }
#pragma unroll
  for (int j = 0; j < kMostWidth; ++j) {
#pragma unroll
    for (int distance = kRowLanes / 2; distance > 0; distance /= 2) {
      counts[j] += __shfl_xor_sync(GroupMask<kRowLanes>(), counts[j], distance, kRowLanes);
    }
    const int64_t row = i * p.width + j;
    if (lane == j && j < p.width && row < p.rows) row_nnz[row] = counts[j];
  }
}

__global__ void __launch_bounds__(kThreads)
    CountProducts(const int32_t* s_columns, int64_t nnz, const int64_t* t_offsets,
                  unsigned long long* products) {
  __shared__ unsigned long long of_block;
  if (threadIdx.x == 0) of_block = 0;
  __syncthreads();
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  unsigned long long mine = 0;
  for (int64_t j = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; j < nnz;
       j += stride) {
    const int32_t k = __ldg(s_columns + j);
    mine += __ldg(t_offsets + k + 1) - __ldg(t_offsets + k);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    mine += __shfl_xor_sync(kWarp, mine, distance);
  }
  if (threadIdx.x % 32 == 0) atomicAdd(&of_block, mine);
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(products, of_block);
}

// ---- Rows of blocks

template <typename T>
struct Rows {
  int64_t first, end;  // of C
  const int64_t* row_begin;
  int32_t* columns;
  T* values;
  int64_t* row_nnz;
};

/// A row of blocks; those of S and T are short.
template <int kWidth>
constexpr int kLanes = kWidth <= 3 ? 32 : 64;

/// Elements of a row of a block that are read at once.
template <typename T, int kWidth>
constexpr int kAtOnce = kWidth % kWidest<T> == 0 ? kWidest<T>
                        : kWidth % 2 == 0        ? 2
                                                 : 1;

/// Where the column is in `columns`, which ascend.
__device__ inline int PlaceOf(int32_t column, const int32_t* columns, int count) {
  int low = 0, high = count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (columns[middle] < column) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/// A thread block has sums for `capacity` blocks of C.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kLanes<kWidth>)
    SumBlocks(const Rows<T> rows, const BlockProduct p, int capacity) {
  constexpr int kPlaces = kWidth * kWidth;
  using Piece = Vector<T, kAtOnce<T, kWidth>>;
  extern __shared__ double of_window[];
  T* const sums = reinterpret_cast<T*>(of_window);  // by rows of C, in them by columns
  auto* const columns = reinterpret_cast<int32_t*>(sums + capacity * kPlaces);
  __shared__ int64_t next[kWidth];  // where each row goes on
  const int pitch = capacity * kWidth;
  const auto* const s_values = static_cast<const T*>(p.s.values);
  const auto* const t_values = static_cast<const T*>(p.t.values);
  const bool finite = *p.not_finite == 0;
  const int64_t block_row = rows.first / kWidth + blockIdx.x;
  const int64_t first_row = block_row * kWidth - rows.first;  // in the range
  const auto in_range = [&](int i) {
    return first_row + i >= 0 && first_row + i < rows.end - rows.first;
  };
  const int thread = static_cast<int>(threadIdx.x);
  const bool has_row = thread < kWidth && in_range(thread);
  if (has_row) next[thread] = rows.row_begin[first_row + thread];
  const int64_t s_begin = p.s.offsets[block_row], s_end = p.s.offsets[block_row + 1];
  const int64_t c_begin = p.c.offsets[block_row], c_end = p.c.offsets[block_row + 1];

  for (int64_t window = c_begin; window < c_end; window += capacity) {
    const auto count = static_cast<int>(min(static_cast<int64_t>(capacity), c_end - window));
    for (int i = thread; i < count; i += kLanes<kWidth>) columns[i] = p.c.columns[window + i];
    for (int i = 0; i < kWidth; ++i) {
      for (int e = thread; e < count * kWidth; e += kLanes<kWidth>) sums[i * pitch + e] = 0;
    }
    __syncthreads();
    const bool whole = count == c_end - c_begin;
    // The next row of T is on its way meanwhile.
    int64_t next_begin = 0, next_end = 0;
    const auto look_up = [&](int64_t at) {
      if (at >= s_end) return;
      const int32_t k = __ldg(p.s.columns + at);
      next_begin = __ldg(p.t.offsets + k);
      next_end = __ldg(p.t.offsets + k + 1);
    };
    look_up(s_begin);
    for (int64_t at = s_begin; at < s_end; ++at) {
      int64_t begin = next_begin, end = next_end;
      look_up(at + 1);
      if (!whole) {
        begin = FirstFrom(p.t.columns, begin, end, columns[0]);
        end = FirstFrom(p.t.columns, begin, end, columns[count - 1] + 1);
      }
      const T* const s_block = s_values + at * kPlaces;
      const auto items = static_cast<uint32_t>((end - begin) * kWidth);
      for (uint32_t item = thread; item < items; item += kLanes<kWidth>) {
        const int64_t other = begin + item / kWidth;
        const int j = static_cast<int>(item % kWidth);
        const T* const t_block = t_values + other * kPlaces + j;
        T column[kWidth];
#pragma unroll
        for (int k = 0; k < kWidth; ++k) column[k] = __ldg(t_block + k * kWidth);
        T* const sum = sums + PlaceOf(__ldg(p.t.columns + other), columns, count) * kWidth + j;
        if (finite) {
#pragma unroll
          for (int i = 0; i < kWidth; ++i) {
            T dot = 0;
#pragma unroll
            for (int k = 0; k < kWidth; k += kAtOnce<T, kWidth>) {
              const Piece piece = *reinterpret_cast<const Piece*>(s_block + i * kWidth + k);
#pragma unroll
              for (int l = 0; l < kAtOnce<T, kWidth>; ++l) dot += piece.at[l] * column[k + l];
            }
            sum[i * pitch] += dot;
          }
        } else {
          const uint64_t s_mask = __ldg(p.s.masks + at), t_mask = __ldg(p.t.masks + other) >> j;
#pragma unroll 1
          for (int i = 0; i < kWidth; ++i) {
            T dot = 0;
#pragma unroll
            for (int k = 0; k < kWidth; ++k) {
              const bool have = (s_mask >> (8 * i + k) & t_mask >> (8 * k) & 1) != 0;
              if (have) dot += __ldg(s_block + i * kWidth + k) * column[k];
            }
            sum[i * pitch] += dot;
          }
        }
      }
      __syncthreads();
    }
    const int lane = thread % 32;
    for (int i = thread / 32; i < kWidth; i += kLanes<kWidth> / 32) {
      if (!in_range(i)) continue;
      int64_t out = next[i];
      for (int first = 0; first < count * kWidth; first += 32) {
        const int e = first + lane;
        const int block = e / kWidth, j = e % kWidth;
        const bool present =
            block < count && (__ldg(p.c.masks + window + block) >> (8 * i + j) & 1) != 0;
        const unsigned set = __ballot_sync(kWarp, present);
        if (present) {
          const int64_t place = out + __popc(set & ((1u << lane) - 1));
          rows.columns[place] = columns[block] * kWidth + j;
          rows.values[place] = sums[i * pitch + e];
        }
        out += __popc(set);
      }
      __syncwarp();  // all lanes have read it
      if (lane == 0) next[i] = out;
    }
    __syncthreads();
  }
  if (has_row) rows.row_nnz[first_row + thread] = next[thread] - rows.row_begin[first_row + thread];
}

// ---- Preparation

/// Room for rows of C of twice the mean length: what is longer goes window by window, and many rows
/// are on their way at once.
constexpr int64_t kLeastCapacity = 16, kMostShared = 46 << 10;

int64_t Capacity(int64_t c_blocks, int64_t c_rows, int64_t block_bytes) {
  return std::clamp(2 * (c_blocks / c_rows), kLeastCapacity, kMostShared / block_bytes);
}

/// At nonzero blocks of S that one block of threads takes for a row of C, window by window.
constexpr int64_t kMostLooks = int64_t{1} << 20;

/// The pattern of blocks as CSR.
CsrView PatternOf(const BcsrView& blocks) {
  return {blocks.block_rows(),
          BlocksIn(blocks.cols, static_cast<int>(blocks.shape.width)),
          blocks.block_offsets,
          blocks.block_columns,
          {}};
}

BlockMatrix MatrixOf(const BcsrView& blocks, const void* values) {
  return {blocks.block_offsets.data(), blocks.block_columns.data(),
          reinterpret_cast<const uint64_t*>(blocks.masks.data()), values};
}

template <typename T>
cudaError_t LaunchFindNotFinite(cudaStream_t stream, const SpgemmFormat& format,
                                int32_t* not_finite) {
  constexpr unsigned kMost = 1024;
  const int64_t count = format.layout->value_slots;
  FindNotFinite<<<std::min(BlocksFor(count, kThreads), kMost), kThreads, 0, stream>>>(
      static_cast<const T*>(format.values), count, not_finite);
  return cudaGetLastError();
}

absl::Status PairBlocks(const Context& context, const Problem& problem,
                        const SpgemmArguments& arguments, MemorySource& memory,
                        Prepared& prepared) {
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const auto element = static_cast<size_t>(SizeOf(problem.type));
  const SpgemmFormat formats[] = {arguments.left_format, arguments.right_format};
  const BcsrView s = ViewBcsr(*formats[0].layout), t = ViewBcsr(*formats[1].layout);
  const int64_t side = s.shape.width;
  if (s.shape != t.shape || s.shape.height != side || side < kLeastWidth) {
    return absl::FailedPreconditionError(
        absl::StrCat("blocks of ", s.shape.height, " x ", side, " and of ", t.shape.height, " x ",
                     t.shape.width, " do not go together: both are to be of one square, ",
                     kLeastWidth, " x ", kLeastWidth, " at the least"));
  }
  if (s.blocks() == 0 || t.blocks() == 0) {
    return absl::FailedPreconditionError("a matrix without nonzeros has no blocks");
  }
  const auto width = static_cast<int>(side);
  const int64_t c_rows = s.block_rows();

  // Row bins multiply the patterns. Of their results only columns count, so that any values do.
  const SpgemmKernel bins = RowBinsSpgemm();
  Problem of_blocks = problem;
  of_blocks.type = ElementType::kF32;
  const SpgemmArguments patterns = {PatternOf(s), formats[0].values, PatternOf(t),
                                    formats[1].values};
  size_t sum_bytes = 0;
  cudaError_t error = RunningSum(stream, nullptr, c_rows, nullptr, nullptr, &sum_bytes);
  const size_t workspace_bytes =
      std::max(sum_bytes, bins.workspace(of_blocks, patterns, /*threads=*/1));
  int64_t *c_offsets = nullptr, *counts = nullptr, *products = nullptr;
  unsigned* longest = nullptr;  // rows of S's blocks, and of C's
  int32_t* not_finite = nullptr;
  std::byte* workspace = nullptr;
  const auto take_rows = [&](Parts& parts) {
    c_offsets = parts.Take<int64_t>(c_rows + 1);
    counts = parts.Take<int64_t>(c_rows);
    products = parts.Take<int64_t>(1);
    longest = parts.Take<unsigned>(2);
    not_finite = parts.Take<int32_t>(1);
    workspace = parts.Take<std::byte>(static_cast<int64_t>(workspace_bytes));
  };
  if (absl::Status taken = TakeParts(memory, prepared.rows, take_rows); !taken.ok()) return taken;
  if (error == cudaSuccess) error = cudaMemsetAsync(not_finite, 0, sizeof(*not_finite), stream);
  const auto find =
      problem.type == ElementType::kF64 ? LaunchFindNotFinite<double> : LaunchFindNotFinite<float>;
  const int count = formats[0].values == formats[1].values ? 1 : 2;
  for (int i = 0; i < count && error == cudaSuccess; ++i) {
    error = find(stream, formats[i], not_finite);
  }
  if (absl::Status queued = ToStatus(error, "looking at blocks"); !queued.ok()) return queued;

  Context inner = context;
  inner.workspace = {workspace, workspace_bytes};
  inner.prepared = nullptr;
  const RowRange all = {0, c_rows};
  const std::span<int64_t> row_nnz = {counts, static_cast<size_t>(c_rows)};
  if (absl::Status a = bins.analyse(inner, patterns, row_nnz, products); !a.ok()) return a;
  if (absl::Status a = bins.symbolic(inner, patterns, all, row_nnz); !a.ok()) return a;
  int64_t c_blocks = 0;
  unsigned most[2] = {};
  error = RunningSum(stream, counts, c_rows, c_offsets, workspace, &sum_bytes);
  if (error == cudaSuccess) {
    error = cudaMemcpyAsync(&c_blocks, c_offsets + c_rows, sizeof(c_blocks), cudaMemcpyDeviceToHost,
                            stream);
  }
  const CsrView c = {c_rows, patterns.right.cols, {c_offsets, row_nnz.size() + 1}, {}, {}};
  if (error == cudaSuccess) error = FindLongestRow(stream, patterns.left, longest);
  if (error == cudaSuccess) error = FindLongestRow(stream, c, longest + 1);
  if (error == cudaSuccess) {
    error = cudaMemcpyAsync(most, longest, sizeof(most), cudaMemcpyDeviceToHost, stream);
  }
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  if (absl::Status a = ToStatus(error, "counting blocks of the product"); !a.ok()) return a;
  if (absl::Status a = StillWanted(context); !a.ok()) return a;
  const auto block_bytes = static_cast<int64_t>(width * width * element + sizeof(int32_t));
  const int64_t windows = most[1] / Capacity(c_blocks, c_rows, block_bytes) + 1;
  if (windows * most[0] > kMostLooks) {
    return absl::FailedPreconditionError(
        absl::StrCat("one row of blocks has ", most[0], " in the left matrix and one ", most[1],
                     " in the product: all others would wait for it"));
  }
  int32_t* c_columns = nullptr;
  uint64_t* c_masks = nullptr;
  const auto take_result = [&](Parts& parts) {
    c_columns = parts.Take<int32_t>(c_blocks);
    c_masks = parts.Take<uint64_t>(c_blocks);
  };
  if (absl::Status a = TakeParts(memory, prepared.result, take_result); !a.ok()) return a;
  // The values that nobody needs go where the masks will be.
  if (absl::Status a =
          bins.numeric(inner, of_blocks, patterns, all,
                       {c_offsets, static_cast<size_t>(c_rows + 1)}, c_columns, c_masks, row_nnz);
      !a.ok()) {
    return a;
  }
  if (c_blocks > 0) {
    error = cudaMemsetAsync(c_masks, 0, static_cast<size_t>(c_blocks) * sizeof(*c_masks), stream);
  }
  const BlockMatrix operands[] = {MatrixOf(s, formats[0].values), MatrixOf(t, formats[1].values)};
  const BlockMatrix result = {c_offsets, c_columns, c_masks, nullptr};
  if (error == cudaSuccess) {
    MarkEntries<<<BlocksFor(c_rows * 32, kThreads), kThreads, 0, stream>>>(operands[0], operands[1],
                                                                           result, c_rows, c_masks);
    error = cudaGetLastError();
  }
  prepared.product = {operands[0], operands[1], result, not_finite, s.rows, c_blocks, width};
  return ToStatus(error, "marking entries of blocks");
}

absl::StatusOr<std::string> Pipeline(const Problem& problem, const CsrView& left,
                                     const CsrView& right) {
  const CsrView both[] = {left, right};
  const absl::StatusOr<int64_t> width = ChooseBlockWidth(both, SizeOf(problem.type));
  if (!width.ok()) return width.status();
  return absl::StrCat(std::string(kBcsr), "(width=", *width, ")");
}

absl::StatusOr<std::shared_ptr<void>> Prepare(const Context& context, const Problem& problem,
                                              const SpgemmArguments& arguments,
                                              MemorySource& memory) {
  return PrepareIn<Prepared>(context, [&](Prepared& prepared) {
    return PairBlocks(context, problem, arguments, memory, prepared);
  });
}

// ---- Launches

const BlockProduct& ProductOf(const Context& context) {
  return static_cast<const Prepared*>(context.prepared)->product;
}

absl::Status Analyse(const Context& context, const SpgemmArguments& arguments,
                     std::span<int64_t> row_bounds, int64_t* products) {
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const BlockProduct& p = ProductOf(context);
  cudaError_t error = cudaMemsetAsync(products, 0, sizeof(*products), stream);
  if (error == cudaSuccess) {
    constexpr unsigned kMost = 2048;
    CountProducts<<<std::min(BlocksFor(arguments.left.nnz(), kThreads), kMost), kThreads, 0,
                    stream>>>(arguments.left.column_indices.data(), arguments.left.nnz(),
                              arguments.right.row_offsets.data(),
                              reinterpret_cast<unsigned long long*>(products));
    error = cudaGetLastError();
  }
  if (error == cudaSuccess) {
    const int64_t block_rows = BlocksIn(p.rows, p.width);
    CountEntries<<<BlocksFor(block_rows * kRowLanes, kThreads), kThreads, 0, stream>>>(
        p, block_rows, row_bounds.data());
    error = cudaGetLastError();
  }
  return ToStatus(error, "analysing SpGEMM by blocks");
}

template <typename T, int kWidth>
cudaError_t LaunchOf(cudaStream_t stream, const Rows<T>& rows, const BlockProduct& p) {
  constexpr int64_t kBytes = kWidth * kWidth * sizeof(T) + sizeof(int32_t);
  const auto capacity = static_cast<int>(Capacity(p.c_blocks, BlocksIn(p.rows, kWidth), kBytes));
  const int64_t block_rows = (rows.end - 1) / kWidth - rows.first / kWidth + 1;
  SumBlocks<T, kWidth>
      <<<static_cast<unsigned>(block_rows), kLanes<kWidth>, capacity * kBytes, stream>>>(rows, p,
                                                                                         capacity);
  return cudaGetLastError();
}

template <typename T>
absl::Status Compute(const RowsCall& call) {
  if (call.range.begin == call.range.end) return absl::OkStatus();
  constexpr decltype(&LaunchOf<T, 2>) kLaunches[] = {LaunchOf<T, 2>, LaunchOf<T, 3>, LaunchOf<T, 4>,
                                                     LaunchOf<T, 5>, LaunchOf<T, 6>, LaunchOf<T, 7>,
                                                     LaunchOf<T, 8>};
  static_assert(std::size(kLaunches) == kWidths);
  const BlockProduct& p = ProductOf(call.context);
  const Rows<T> rows = {.first = call.range.begin,
                        .end = call.range.end,
                        .row_begin = call.row_begin.data(),
                        .columns = call.column_indices,
                        .values = static_cast<T*>(call.values),
                        .row_nnz = call.row_nnz.data()};
  const auto launch = kLaunches[p.width - kLeastWidth];
  return ToStatus(launch(static_cast<cudaStream_t>(call.context.stream), rows, p),
                  "starting SpGEMM by blocks");
}

}  // namespace

SpgemmKernel BlocksSpgemm() {
  return {.name = "cuda.bcsr.blocks",
          .device = DeviceKind::kCuda,
          .deterministic = true,
          .supports = IsPlainSpgemm,
          .workspace = NoSpgemmWorkspace,
          .analyse = Analyse,
          .symbolic = BoundsAreExact,
          .numeric = NumericByType<Compute<float>, Compute<double>>,
          .prepare = Prepare,
          .layout_kind = kBcsr,
          .left_too = true,
          .pipeline = Pipeline};
}

}  // namespace sparsed::cuda
