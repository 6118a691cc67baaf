// SpGEMM by dense blocks: C = S * T where nonzeros lie in small dense blocks.
//
// Idea: with both operands cut into blocks of b x b, one place is looked up for the product of two
// blocks instead of for each of its b * b * b products (BCSR; the register blocking of Im, Yelick
// and Vuduc, "Sparsity", IJHPCA 2004, for a product of two). C's blocks are what row bins find for
// the patterns of blocks. Masks of 64 bits, a byte for each row of a block, say which of its places
// are nonzeros: boolean products of them say which entries C has, exactly.
//
// Layout in: plain CSR of both. `prepare` chooses b from 2 to 8 by a sample of rows, makes block
// CSR of both, padded with zeros, and finds C's blocks with their masks.
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
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/running_sum.h"
#include "kernels/cuda/spgemm/host.h"
#include "kernels/cuda/spgemm/longest_row.h"
#include "kernels/cuda/spgemm/products.cuh"
#include "kernels/cuda/spgemm/spgemm.h"

namespace sparsed::cuda {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kWarp = 0xffffffffu;
constexpr int kLeastWidth = 2, kMostWidth = 8;
constexpr int kWidths = kMostWidth - kLeastWidth + 1;
/// With fewer nonzeros among the places of blocks, single nonzeros do better.
constexpr double kLeastFill = 0.5;

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
  Buffer samples, rows, operands, result;
  BlockProduct product = {};
};

int64_t BlocksIn(int64_t size, int width) { return (size + width - 1) / width; }

// ---- From CSR to blocks

constexpr int kRowLanes = 8;  // for a row of blocks, each for one of its rows

/// Calls visit(block column, the columns of this lane's row in the block as bits, where its first
/// nonzero there is) for the first blocks of a row of blocks, `most` at most. Lanes of a group stay
/// together.
template <typename Visit>
__device__ inline void VisitBlocks(const int64_t* offsets, const int32_t* columns, int64_t rows,
                                   int width, int64_t block_row, int64_t most, Visit visit) {
  const int lane = threadIdx.x % kRowLanes;
  const int64_t row = block_row * width + lane;
  const bool active = lane < width && row < rows;
  int64_t at = active ? __ldg(offsets + row) : 0;
  const int64_t end = active ? __ldg(offsets + row + 1) : 0;
  for (int64_t i = 0; i < most; ++i) {
    int32_t block = at < end ? __ldg(columns + at) / width : INT32_MAX;
#pragma unroll
    for (int distance = kRowLanes / 2; distance > 0; distance /= 2) {
      block = min(block, __shfl_xor_sync(GroupMask<kRowLanes>(), block, distance, kRowLanes));
    }
    if (block == INT32_MAX) break;
    const int64_t from = at, begin = static_cast<int64_t>(block) * width;
    unsigned bits = 0;
    while (at < end && __ldg(columns + at) < begin + width) {
      bits |= 1u << (__ldg(columns + at++) - begin);
    }
    visit(block, bits, from);
  }
}

/// Of some rows of blocks.
struct Sample {
  unsigned long long blocks, nonzeros;
};

constexpr int64_t kSampledRows = 1024;
constexpr int64_t kSampledBlocks = 128;  // of a row

/// samples[blockIdx.y]: of blocks of that width.
__global__ void __launch_bounds__(kThreads)
    SampleBlocks(const int64_t* offsets, const int32_t* columns, int64_t rows, Sample* samples) {
  __shared__ unsigned of_block[2];
  if (threadIdx.x < 2) of_block[threadIdx.x] = 0;
  __syncthreads();
  const int width = kLeastWidth + static_cast<int>(blockIdx.y);
  const int64_t block_rows = (rows + width - 1) / width;
  const int64_t taken = min(block_rows, kSampledRows);
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kRowLanes;
  unsigned blocks = 0, nonzeros = 0;
  if (i < taken) {
    VisitBlocks(offsets, columns, rows, width, i * block_rows / taken, kSampledBlocks,
                [&](int32_t, unsigned bits, int64_t) {
                  blocks += threadIdx.x % kRowLanes == 0;
                  nonzeros += __popc(bits);
                });
  }
  __syncwarp();
  blocks = __reduce_add_sync(kWarp, blocks);
  nonzeros = __reduce_add_sync(kWarp, nonzeros);
  if (threadIdx.x % 32 == 0) {
    atomicAdd(of_block, blocks);
    atomicAdd(of_block + 1, nonzeros);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    atomicAdd(&samples[blockIdx.y].blocks, of_block[0]);
    atomicAdd(&samples[blockIdx.y].nonzeros, of_block[1]);
  }
}

/// counts[i] = blocks of row i of blocks.
__global__ void __launch_bounds__(kThreads)
    CountBlocks(const int64_t* offsets, const int32_t* columns, int64_t rows, int width,
                int64_t block_rows, int64_t* counts) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kRowLanes;
  if (i >= block_rows) return;
  int64_t count = 0;
  VisitBlocks(offsets, columns, rows, width, i, INT64_MAX,
              [&](int32_t, unsigned, int64_t) { ++count; });
  if (threadIdx.x % kRowLanes == 0) counts[i] = count;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    FillBlocks(const int64_t* offsets, const int32_t* columns, const T* values, int64_t rows,
               int width, int64_t block_rows, const int64_t* block_offsets, int32_t* block_columns,
               uint64_t* masks, T* block_values, int32_t* not_finite) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kRowLanes;
  if (i >= block_rows) return;
  const int lane = threadIdx.x % kRowLanes;
  int64_t at = block_offsets[i];
  bool finite = true;
  VisitBlocks(offsets, columns, rows, width, i, INT64_MAX,
              [&](int32_t block, unsigned bits, int64_t from) {
                uint64_t mask = static_cast<uint64_t>(bits) << (8 * lane);
#pragma unroll
                for (int distance = kRowLanes / 2; distance > 0; distance /= 2) {
                  mask |= __shfl_xor_sync(GroupMask<kRowLanes>(), mask, distance, kRowLanes);
                }
                if (lane == 0) {
                  block_columns[at] = block;
                  masks[at] = mask;
                }
                T* const to = block_values + (at * width + lane) * width;
                for (int j = 0; j < width && lane < width; ++j) {
                  const T value = (bits >> j & 1) != 0 ? values[from++] : T(0);
                  finite &= isfinite(value);
                  to[j] = value;
                }
                ++at;
              });
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

/// Values, mask and column.
double BytesOfBlock(int width, size_t element) {
  return static_cast<double>(width * width * element + sizeof(uint64_t) + sizeof(int32_t));
}

/// The width for which both matrices take the least memory, of those that fill blocks well enough.
absl::StatusOr<int> ChooseWidth(cudaStream_t stream, std::span<const CsrView> matrices,
                                size_t element, MemorySource& memory, Buffer& buffer) {
  Sample* samples = nullptr;
  const size_t count = matrices.size() * kWidths;
  if (absl::Status s =
          TakeParts(memory, buffer, [&](Parts& parts) { samples = parts.Take<Sample>(count); });
      !s.ok()) {
    return s;
  }
  cudaError_t error = cudaMemsetAsync(samples, 0, count * sizeof(Sample), stream);
  Sample found[2 * kWidths];
  for (size_t i = 0; i < matrices.size() && error == cudaSuccess; ++i) {
    const int64_t most = std::min(BlocksIn(matrices[i].rows, kLeastWidth), kSampledRows);
    SampleBlocks<<<dim3(BlocksFor(most * kRowLanes, kThreads), kWidths), kThreads, 0, stream>>>(
        matrices[i].row_offsets.data(), matrices[i].column_indices.data(), matrices[i].rows,
        samples + i * kWidths);
    error = cudaGetLastError();
  }
  if (error == cudaSuccess) {
    error = cudaMemcpyAsync(found, samples, count * sizeof(Sample), cudaMemcpyDeviceToHost, stream);
  }
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  if (absl::Status s = ToStatus(error, "looking for blocks"); !s.ok()) return s;
  int chosen = 0;
  double least_bytes = 0, best_fill = 0;
  for (int width = kLeastWidth; width <= kMostWidth; ++width) {
    double bytes = 0, fill = 1;
    for (size_t i = 0; i < matrices.size(); ++i) {
      const Sample& sample = found[i * kWidths + width - kLeastWidth];
      const double nonzeros =  // of a block
          static_cast<double>(sample.nonzeros) / static_cast<double>(std::max(sample.blocks, 1ull));
      fill = std::min(fill, nonzeros / (width * width));
      bytes += static_cast<double>(matrices[i].nnz()) / nonzeros * BytesOfBlock(width, element);
    }
    best_fill = std::max(best_fill, fill);
    if (fill < kLeastFill || (chosen != 0 && bytes >= least_bytes)) continue;
    chosen = width;
    least_bytes = bytes;
  }
  if (chosen != 0) return chosen;
  return absl::FailedPreconditionError(
      absl::StrCat("of the places in blocks of ", kLeastWidth, " x ", kLeastWidth, " to ",
                   kMostWidth, " x ", kMostWidth, " at most ", static_cast<int>(100 * best_fill),
                   " % are nonzeros, fewer than ", static_cast<int>(100 * kLeastFill)));
}

/// Whether so many blocks may be kept for the sake of this matrix.
absl::Status CheckGrowth(const CsrView& csr, int width, size_t element, int64_t blocks) {
  const auto csr_bytes = static_cast<double>(CsrBytes(csr, element));
  const double bytes = static_cast<double>(BlocksIn(csr.rows, width) + 1) * sizeof(int64_t) +
                       static_cast<double>(blocks) * BytesOfBlock(width, element);
  if (bytes <= kMostFormatGrowth * csr_bytes) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(csr.rows, " x ", csr.cols, " with ", csr.nnz(), " nonzeros would take ", bytes,
                   " bytes in blocks of ", width, " x ", width, ", more than ", kMostFormatGrowth,
                   " times CSR's ", csr_bytes));
}

/// The pattern of blocks as CSR.
CsrView PatternOf(const BlockMatrix& matrix, const CsrView& csr, int width, int64_t blocks) {
  const int64_t rows = BlocksIn(csr.rows, width);
  return {rows,
          BlocksIn(csr.cols, width),
          {matrix.offsets, static_cast<size_t>(rows + 1)},
          {matrix.columns, static_cast<size_t>(blocks)},
          {}};
}

template <typename T>
cudaError_t LaunchFill(cudaStream_t stream, const CsrView& csr, const void* values, int width,
                       const int64_t* offsets, int32_t* columns, uint64_t* masks,
                       void* block_values, int32_t* not_finite) {
  const int64_t block_rows = BlocksIn(csr.rows, width);
  FillBlocks<<<BlocksFor(block_rows * kRowLanes, kThreads), kThreads, 0, stream>>>(
      csr.row_offsets.data(), csr.column_indices.data(), static_cast<const T*>(values), csr.rows,
      width, block_rows, offsets, columns, masks, static_cast<T*>(block_values), not_finite);
  return cudaGetLastError();
}

absl::Status MakeBlocks(const Context& context, const Problem& problem,
                        const SpgemmArguments& arguments, MemorySource& memory,
                        Prepared& prepared) {
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const auto element = static_cast<size_t>(SizeOf(problem.type));
  const CsrView matrices[] = {arguments.left, arguments.right};
  const void* const values[] = {arguments.left_values, arguments.right_values};
  const bool same = IsSquare(arguments);
  const int count = same ? 1 : 2;
  if (matrices[0].nnz() == 0 || matrices[1].nnz() == 0) {
    return absl::FailedPreconditionError("a matrix without nonzeros has no blocks");
  }
  const absl::StatusOr<int> chosen = ChooseWidth(stream, {matrices, static_cast<size_t>(count)},
                                                 element, memory, prepared.samples);
  if (!chosen.ok()) return chosen.status();
  const int width = *chosen;
  const int64_t block_rows[] = {BlocksIn(matrices[0].rows, width),
                                BlocksIn(matrices[1].rows, width)};
  const int64_t c_rows = block_rows[0], most_rows = std::max(block_rows[0], block_rows[1]);

  // Row bins multiply the patterns. Of their results only columns count, so that any values do.
  const SpgemmKernel bins = RowBinsSpgemm();
  Problem of_blocks = problem;
  of_blocks.type = ElementType::kF32;
  size_t sum_bytes = 0;
  cudaError_t error = RunningSum(stream, nullptr, most_rows, nullptr, nullptr, &sum_bytes);
  SpgemmArguments patterns = {PatternOf({}, matrices[0], width, 0), nullptr,
                              PatternOf({}, matrices[1], width, 0), nullptr};
  const size_t workspace_bytes =
      std::max(sum_bytes, bins.workspace(of_blocks, patterns, /*threads=*/1));
  int64_t *offsets[2] = {}, *c_offsets = nullptr, *counts = nullptr, *products = nullptr;
  unsigned* longest = nullptr;  // rows of S's blocks, and of C's
  int32_t* not_finite = nullptr;
  std::byte* workspace = nullptr;
  const auto take_rows = [&](Parts& parts) {
    for (int i = 0; i < count; ++i) offsets[i] = parts.Take<int64_t>(block_rows[i] + 1);
    c_offsets = parts.Take<int64_t>(c_rows + 1);
    counts = parts.Take<int64_t>(most_rows);
    products = parts.Take<int64_t>(1);
    longest = parts.Take<unsigned>(2);
    not_finite = parts.Take<int32_t>(1);
    workspace = parts.Take<std::byte>(static_cast<int64_t>(workspace_bytes));
  };
  if (absl::Status s = TakeParts(memory, prepared.rows, take_rows); !s.ok()) return s;
  const auto sum_up = [&](int64_t rows, int64_t* to, int64_t* all) {
    if (error == cudaSuccess) {
      error = RunningSum(stream, counts, rows, to, workspace, &sum_bytes);
    }
    if (error == cudaSuccess) {
      error = cudaMemcpyAsync(all, to + rows, sizeof(*all), cudaMemcpyDeviceToHost, stream);
    }
  };
  int64_t blocks[2] = {};
  for (int i = 0; i < count && error == cudaSuccess; ++i) {
    CountBlocks<<<BlocksFor(block_rows[i] * kRowLanes, kThreads), kThreads, 0, stream>>>(
        matrices[i].row_offsets.data(), matrices[i].column_indices.data(), matrices[i].rows, width,
        block_rows[i], counts);
    error = cudaGetLastError();
    sum_up(block_rows[i], offsets[i], blocks + i);
  }
  if (error == cudaSuccess) error = cudaMemsetAsync(not_finite, 0, sizeof(*not_finite), stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  if (absl::Status s = ToStatus(error, "counting blocks"); !s.ok()) return s;
  if (absl::Status s = StillWanted(context); !s.ok()) return s;
  for (int i = 0; i < count; ++i) {
    if (absl::Status s = CheckGrowth(matrices[i], width, element, blocks[i]); !s.ok()) return s;
  }

  int32_t* columns[2] = {};
  uint64_t* masks[2] = {};
  std::byte* block_values[2] = {};
  const auto take_operands = [&](Parts& parts) {
    for (int i = 0; i < count; ++i) {
      columns[i] = parts.Take<int32_t>(blocks[i]);
      masks[i] = parts.Take<uint64_t>(blocks[i]);
      block_values[i] =
          parts.Take<std::byte>(blocks[i] * width * width * static_cast<int64_t>(element));
    }
  };
  if (absl::Status s = TakeParts(memory, prepared.operands, take_operands); !s.ok()) return s;
  const auto fill = problem.type == ElementType::kF64 ? LaunchFill<double> : LaunchFill<float>;
  BlockMatrix operands[2];
  for (int i = 0; i < count && error == cudaSuccess; ++i) {
    error = fill(stream, matrices[i], values[i], width, offsets[i], columns[i], masks[i],
                 block_values[i], not_finite);
    operands[i] = {offsets[i], columns[i], masks[i], block_values[i]};
  }
  if (absl::Status s = ToStatus(error, "filling blocks"); !s.ok()) return s;
  if (same) {
    operands[1] = operands[0];
    blocks[1] = blocks[0];
  }

  patterns = {PatternOf(operands[0], matrices[0], width, blocks[0]), operands[0].values,
              PatternOf(operands[1], matrices[1], width, blocks[1]), operands[1].values};
  Context inner = context;
  inner.workspace = {workspace, workspace_bytes};
  inner.prepared = nullptr;
  const RowRange all = {0, c_rows};
  const std::span<int64_t> row_nnz = {counts, static_cast<size_t>(c_rows)};
  if (absl::Status s = bins.analyse(inner, patterns, row_nnz, products); !s.ok()) return s;
  if (absl::Status s = bins.symbolic(inner, patterns, all, row_nnz); !s.ok()) return s;
  int64_t c_blocks = 0;
  unsigned most[2] = {};
  sum_up(c_rows, c_offsets, &c_blocks);
  const CsrView c = {c_rows, patterns.right.cols, {c_offsets, row_nnz.size() + 1}, {}, {}};
  if (error == cudaSuccess) error = FindLongestRow(stream, patterns.left, longest);
  if (error == cudaSuccess) error = FindLongestRow(stream, c, longest + 1);
  if (error == cudaSuccess) {
    error = cudaMemcpyAsync(most, longest, sizeof(most), cudaMemcpyDeviceToHost, stream);
  }
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  if (absl::Status s = ToStatus(error, "counting blocks of the product"); !s.ok()) return s;
  if (absl::Status s = StillWanted(context); !s.ok()) return s;
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
  if (absl::Status s = TakeParts(memory, prepared.result, take_result); !s.ok()) return s;
  // The values that nobody needs go where the masks will be.
  if (absl::Status s =
          bins.numeric(inner, of_blocks, patterns, all,
                       {c_offsets, static_cast<size_t>(c_rows + 1)}, c_columns, c_masks, row_nnz);
      !s.ok()) {
    return s;
  }
  if (c_blocks > 0) {
    error = cudaMemsetAsync(c_masks, 0, static_cast<size_t>(c_blocks) * sizeof(*c_masks), stream);
  }
  const BlockMatrix result = {c_offsets, c_columns, c_masks, nullptr};
  if (error == cudaSuccess) {
    MarkEntries<<<BlocksFor(c_rows * 32, kThreads), kThreads, 0, stream>>>(operands[0], operands[1],
                                                                           result, c_rows, c_masks);
    error = cudaGetLastError();
  }
  prepared.product = {operands[0],      operands[1], result, not_finite,
                      matrices[0].rows, c_blocks,    width};
  return ToStatus(error, "marking entries of blocks");
}

absl::StatusOr<std::shared_ptr<void>> Prepare(const Context& context, const Problem& problem,
                                              const SpgemmArguments& arguments,
                                              MemorySource& memory) {
  return PrepareIn<Prepared>(context, [&](Prepared& prepared) {
    return MakeBlocks(context, problem, arguments, memory, prepared);
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
          .prepare = Prepare};
}

}  // namespace sparsed::cuda
