// SpGEMM by expanding, sorting and compressing: for rows of few products.
//
// Idea: a block takes as many rows as have a thousand products together, writes them all down,
// sorts them by row and column in shared memory (CUB's radix sort, over no more bits than the rows
// and columns of the block need) and adds up runs of equal ones (ESC: Bell, Dalton, Olson, SIAM J.
// Sci. Comput. 2012, section 4.3). However uneven the rows are, every thread has the same work, and
// sums are made in one order. Layout in: plain CSR of both. `prepare` counts the products of each
// row and cuts the rows. Threads: 128 for 1,024 products, each of which finds its nonzero of S by a
// running maximum. Needs: at most 512 products in a row, and at most 2^25 columns. Wins: where rows
// have few products, as in meshes and road networks.
#include <algorithm>
#include <cstdint>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cuda/functional>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/running_sum.h"
#include "kernels/cuda/spgemm/host.h"
#include "kernels/cuda/spgemm/products.cuh"
#include "kernels/cuda/spgemm/spgemm.h"

namespace sparsed::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kItems = 8;  // products of a thread
constexpr int kTile = kThreads * kItems;
constexpr int64_t kMostProducts = 512;
/// A row counts as so many products when rows are cut into tiles: a sorted key of 32 bits has room
/// for 2^21 columns and 1,024 rows, or for 2^25 columns and 64 rows.
constexpr int64_t kNarrow = int64_t{1} << 21, kWide = int64_t{1} << 25;
int64_t RowWeight(int64_t cols) { return cols <= kNarrow ? 1 : 16; }

struct Prepared {
  Buffer memory;
  const int64_t* begins = nullptr;     ///< products before each row, and all
  const int32_t* tile_rows = nullptr;  ///< the first row of each tile, and the end
  std::vector<int32_t> tile_rows_here;
};

// ---- Cutting

constexpr int kCutThreads = 256;

__global__ void __launch_bounds__(kCutThreads)
    CountProducts(const int64_t* s_offsets, const int32_t* s_columns, const int64_t* t_offsets,
                  int64_t rows, int64_t* counts, unsigned long long* most) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kCutThreads + threadIdx.x;
  unsigned long long count = 0;
  if (row < rows) {
    const int64_t end = s_offsets[row + 1];
    // Of a row of more it is enough that they are too many.
#pragma unroll 4
    for (int64_t j = s_offsets[row]; j < end && count <= kMostProducts; ++j) {
      const int32_t k = s_columns[j];
      count += t_offsets[k + 1] - t_offsets[k];
    }
    counts[row] = static_cast<int64_t>(count);
  }
  const auto all = static_cast<unsigned>(min(count, 0xffffffffull));
  const unsigned of_warp = __reduce_max_sync(0xffffffffu, all);
  if (threadIdx.x % 32 == 0 && of_warp > 0) atomicMax(most, of_warp);
}

/// tile_rows[i] = the first row whose products, and rows weighed, before it are at least i * share.
__global__ void __launch_bounds__(kCutThreads)
    CutRows(const int64_t* begins, int64_t rows, int64_t weight, int64_t share, int64_t tiles,
            int32_t* tile_rows) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kCutThreads + threadIdx.x;
  if (row > rows) return;
  const auto tile_of = [&](int64_t r) { return (begins[r] + r * weight) / share; };
  const int64_t first = row == 0 ? 0 : tile_of(row - 1) + 1;
  const int64_t last = row == rows ? tiles : tile_of(row);
  for (int64_t tile = first; tile <= last; ++tile) tile_rows[tile] = static_cast<int32_t>(row);
}

__global__ void __launch_bounds__(kCutThreads)
    BoundRows(const int64_t* begins, int64_t rows, int64_t cols, int64_t* bounds) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kCutThreads + threadIdx.x;
  if (row < rows) bounds[row] = min(begins[row + 1] - begins[row], cols);
}

// ---- Tiles

template <typename T>
struct Rows {
  SparsePair<T> pair;
  const int32_t* tile_rows;
  int32_t first_tile;
  int64_t first, end;        // rows of C
  const int64_t* row_begin;  // of row `first` and on; numeric only
  int32_t* columns;
  T* values;
  int64_t* row_nnz;
};

/// Nonzeros of S that have products.
template <typename T>
struct Terms {
  int64_t starts[kTile];  // where its product p is in T: starts + p
  T scales[kTile];
  uint16_t rows[kTile];
};

/// What is left, sorted.
template <typename T>
struct Entries {
  uint32_t keys[kTile];
  T values[kTile];
};

template <typename T, bool kNumeric>
__global__ void __launch_bounds__(kThreads) MultiplyTiles(const Rows<T> rows) {
  using Value = std::conditional_t<kNumeric, T, cub::NullType>;
  using Sort = cub::BlockRadixSort<uint32_t, kThreads, kItems, Value>;
  using Scan = cub::BlockScan<int, kThreads>;
  using Reduce = cub::BlockReduce<int, kThreads>;
  // One after another.
  __shared__ union {
    typename Sort::TempStorage sort;
    Entries<T> sorted;
  } shared;
  __shared__ union {
    Terms<T> terms;
    Entries<T> entries;
  } lists;
  __shared__ union {
    typename Scan::TempStorage scan;
    typename Reduce::TempStorage reduce;
  } counters;
  __shared__ int32_t row_starts[kTile + 1];  // of nonzeros; then, of entries
  __shared__ int32_t row_counts[kTile];
  __shared__ uint16_t term_of[kTile];  // of each product
  __shared__ int32_t least_column, column_bits;

  const int tile = rows.first_tile + static_cast<int>(blockIdx.x);
  const int64_t row0 = max(static_cast<int64_t>(rows.tile_rows[tile]), rows.first);
  const int64_t row1 = min(static_cast<int64_t>(rows.tile_rows[tile + 1]), rows.end);
  if (row0 >= row1) return;
  const auto count = static_cast<int>(row1 - row0);
  const int64_t begin = rows.pair.s_offsets[row0];
  for (int i = threadIdx.x; i <= count; i += kThreads) {
    row_starts[i] = static_cast<int32_t>(rows.pair.s_offsets[row0 + i] - begin);
    if (i < count) row_counts[i] = 0;
  }
  for (int i = threadIdx.x; i < kTile; i += kThreads) term_of[i] = 0;
  __syncthreads();

  // Expand: the nonzeros that have products, and where these begin.
  const int nonzeros = row_starts[count];
  int terms = 0, products = 0;
  for (int first = 0; first < nonzeros; first += kThreads) {
    const int j = first + static_cast<int>(threadIdx.x);
    int64_t start = 0;
    int length = 0;
    if (j < nonzeros) {
      const int32_t k = __ldg(rows.pair.s_columns + begin + j);
      start = __ldg(rows.pair.t_offsets + k);
      length = static_cast<int>(__ldg(rows.pair.t_offsets + k + 1) - start);
    }
    // Both counts at once: of products there are at most kTile.
    int before = 0, all = 0;
    Scan(counters.scan).ExclusiveSum(length > 0 ? (1 << 16) + length : 0, before, all);
    if (length > 0) {
      const int term = terms + (before >> 16), place = products + (before & 0xffff);
      lists.terms.starts[term] = start - place;
      if constexpr (kNumeric) lists.terms.scales[term] = __ldg(rows.pair.s_values + begin + j);
      int row = 0;
      for (int step = kTile / 2; step > 0; step /= 2) {
        if (row + step < count && row_starts[row + step] <= j) row += step;
      }
      lists.terms.rows[term] = static_cast<uint16_t>(row);
      term_of[place] = static_cast<uint16_t>(term);
    }
    terms += all >> 16;
    products += all & 0xffff;
    __syncthreads();
  }
  int mine[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) mine[i] = term_of[threadIdx.x * kItems + i];
  Scan(counters.scan).InclusiveScan(mine, mine, ::cuda::maximum<>{});
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    term_of[threadIdx.x * kItems + i] = static_cast<uint16_t>(mine[i]);
  }
  __syncthreads();
  uint32_t keys[kItems];
  Value values[kItems];
  int32_t columns[kItems];
  int least = INT32_MAX, most = 0;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int p = i * kThreads + static_cast<int>(threadIdx.x);
    columns[i] = -1;
    if (p >= products) continue;
    const int term = term_of[p];
    const int64_t at = lists.terms.starts[term] + p;
    columns[i] = __ldg(rows.pair.t_columns + at);
    if constexpr (kNumeric) values[i] = lists.terms.scales[term] * __ldg(rows.pair.t_values + at);
    keys[i] = lists.terms.rows[term];
    least = min(least, columns[i]);
    most = max(most, columns[i]);
  }

  // Sort.
  least = Reduce(counters.reduce).Reduce(least, ::cuda::minimum<>{});
  __syncthreads();
  most = Reduce(counters.reduce).Reduce(most, ::cuda::maximum<>{});
  if (threadIdx.x == 0) {
    least_column = least;
    column_bits = 32 - __clz(max(most - least, 0));
  }
  __syncthreads();
  least = least_column;
  const int shift = column_bits;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    // Places without a product are behind all rows.
    keys[i] = columns[i] < 0 ? static_cast<uint32_t>(count) << shift
                             : keys[i] << shift | static_cast<uint32_t>(columns[i] - least);
  }
  const int bits = shift + 32 - __clz(count);
  if constexpr (kNumeric) {
    Sort(shared.sort).Sort(keys, values, 0, bits);
  } else {
    Sort(shared.sort).Sort(keys, 0, bits);
  }
  __syncthreads();

  // Compress.
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    shared.sorted.keys[threadIdx.x * kItems + i] = keys[i];
    if constexpr (kNumeric) shared.sorted.values[threadIdx.x * kItems + i] = values[i];
  }
  __syncthreads();
  unsigned heads = 0;  // of this thread's, those that are not as the one before
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int at = static_cast<int>(threadIdx.x) * kItems + i;
    if (at < products && (at == 0 || keys[i] != shared.sorted.keys[at - 1])) heads |= 1u << i;
  }
  int place = 0, entries = 0;
  Scan(counters.scan).ExclusiveSum(__popc(heads), place, entries);
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if ((heads >> i & 1) == 0) continue;
    int at = static_cast<int>(threadIdx.x) * kItems + i;
    const auto row = static_cast<int>(keys[i] >> shift);
    atomicAdd(row_counts + row, 1);
    if constexpr (kNumeric) {
      if (at == 0 || static_cast<int>(shared.sorted.keys[at - 1] >> shift) != row) {
        row_starts[row] = place;
      }
      T sum = values[i];
      while (++at < products && shared.sorted.keys[at] == keys[i]) sum += shared.sorted.values[at];
      lists.entries.keys[place] = keys[i];
      lists.entries.values[place] = sum;
      ++place;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += kThreads) {
    rows.row_nnz[row0 - rows.first + i] = row_counts[i];
  }
  if constexpr (kNumeric) {
    const uint32_t mask = shift == 32 ? ~0u : (1u << shift) - 1;
    for (int i = threadIdx.x; i < entries; i += kThreads) {
      const uint32_t key = lists.entries.keys[i];
      const auto row = static_cast<int>(key >> shift);
      const int64_t out = rows.row_begin[row0 - rows.first + row] + i - row_starts[row];
      rows.columns[out] = least + static_cast<int32_t>(key & mask);
      rows.values[out] = lists.entries.values[i];
    }
  }
}

// ---- Phases

absl::Status Cut(cudaStream_t stream, const SpgemmArguments& arguments, MemorySource& memory,
                 Prepared& prepared) {
  const CsrView& left = arguments.left;
  const int64_t rows = left.rows, cols = arguments.right.cols;
  if (rows > std::numeric_limits<int32_t>::max() - 1 || cols > kWide) {
    return absl::FailedPreconditionError(absl::StrCat(
        rows, " rows and ", cols, " columns; sorting takes up to 2^31 - 2 and ", kWide));
  }
  if (left.nnz() > std::numeric_limits<int32_t>::max()) {
    return absl::FailedPreconditionError(absl::StrCat("the left matrix has ", left.nnz(),
                                                      " nonzeros; sorting takes up to 2^31 - 1"));
  }
  size_t sum_bytes = 0;
  cudaError_t error = RunningSum(stream, nullptr, rows, nullptr, nullptr, &sum_bytes);
  if (error != cudaSuccess) return ToStatus(error, "asking for a running sum's workspace");
  const size_t words = RoundUp((rows + 2) * sizeof(int64_t));
  absl::StatusOr<Buffer> counted = memory.Allocate(2 * words + RoundUp(sum_bytes));
  if (!counted.ok()) return counted.status();
  prepared.memory = *std::move(counted);
  auto* const begins = reinterpret_cast<int64_t*>(prepared.memory.mutable_data());
  auto* const counts = reinterpret_cast<int64_t*>(prepared.memory.mutable_data() + words);
  auto* const most = reinterpret_cast<unsigned long long*>(counts + rows);
  error = cudaMemsetAsync(most, 0, sizeof(*most), stream);
  if (error == cudaSuccess && rows > 0) {
    CountProducts<<<BlocksFor(rows, kCutThreads), kCutThreads, 0, stream>>>(
        left.row_offsets.data(), left.column_indices.data(), arguments.right.row_offsets.data(),
        rows, counts, most);
    error = cudaGetLastError();
  }
  if (error == cudaSuccess) {
    error = RunningSum(stream, counts, rows, begins, prepared.memory.mutable_data() + 2 * words,
                       &sum_bytes);
  }
  unsigned long long longest = 0;
  int64_t products = 0;
  const auto read = [&](void* to, const void* from, size_t bytes) {
    if (error == cudaSuccess) {
      error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream);
    }
  };
  read(&longest, most, sizeof(longest));
  read(&products, begins + rows, sizeof(products));
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  if (absl::Status s = ToStatus(error, "counting products"); !s.ok()) return s;
  if (longest > kMostProducts) {
    return absl::FailedPreconditionError(
        absl::StrCat("a row has more than ", kMostProducts, " products"));
  }
  const int64_t weight = RowWeight(cols);
  const int64_t share = kTile - static_cast<int64_t>(longest) - weight;
  const int64_t tiles = (products + rows * weight) / share + 1;
  const size_t tile_bytes = static_cast<size_t>(tiles + 1) * sizeof(int32_t);
  // The counts have served; where rows are longest, there is about one tile a row.
  auto* tile_rows = reinterpret_cast<int32_t*>(counts);
  CutRows<<<BlocksFor(rows + 1, kCutThreads), kCutThreads, 0, stream>>>(begins, rows, weight, share,
                                                                        tiles, tile_rows);
  error = cudaGetLastError();
  prepared.tile_rows_here.resize(tiles + 1);
  read(prepared.tile_rows_here.data(), tile_rows, tile_bytes);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  prepared.begins = begins;
  prepared.tile_rows = tile_rows;
  return ToStatus(error, "cutting rows");
}

absl::StatusOr<std::shared_ptr<void>> Prepare(const Context& context, const Problem& /*problem*/,
                                              const SpgemmArguments& arguments,
                                              MemorySource& memory) {
  return PrepareIn<Prepared>(context, [&](Prepared& prepared) {
    return Cut(static_cast<cudaStream_t>(context.stream), arguments, memory, prepared);
  });
}

const Prepared& PreparedOf(const Context& context) {
  return *static_cast<const Prepared*>(context.prepared);
}

absl::Status Analyse(const Context& context, const SpgemmArguments& arguments,
                     std::span<int64_t> row_bounds, int64_t* products) {
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const int64_t rows = arguments.left.rows;
  const int64_t* const begins = PreparedOf(context).begins;
  cudaError_t error =
      cudaMemcpyAsync(products, begins + rows, sizeof(*products), cudaMemcpyDeviceToDevice, stream);
  if (error == cudaSuccess && rows > 0) {
    BoundRows<<<BlocksFor(rows, kCutThreads), kCutThreads, 0, stream>>>(
        begins, rows, arguments.right.cols, row_bounds.data());
    error = cudaGetLastError();
  }
  return ToStatus(error, "analysing SpGEMM by sorting");
}

template <typename T, bool kNumeric>
absl::Status Compute(const RowsCall& call) {
  if (call.range.begin == call.range.end) return absl::OkStatus();
  const Prepared& prepared = PreparedOf(call.context);
  const std::vector<int32_t>& tiles = prepared.tile_rows_here;
  // From the last tile that begins at or before the first row, to the last one that begins before
  // the end.
  const auto first =
      std::upper_bound(tiles.begin(), tiles.end(), call.range.begin) - tiles.begin() - 1;
  const auto end = std::lower_bound(tiles.begin(), tiles.end() - 1, call.range.end) - tiles.begin();
  Rows<T> rows = {};
  rows.pair = PairOf<T>(call.arguments);
  rows.tile_rows = prepared.tile_rows;
  rows.first_tile = static_cast<int32_t>(first);
  rows.first = call.range.begin;
  rows.end = call.range.end;
  rows.row_begin = call.row_begin.data();
  rows.columns = call.column_indices;
  rows.values = static_cast<T*>(call.values);
  rows.row_nnz = call.row_nnz.data();
  MultiplyTiles<T, kNumeric><<<static_cast<unsigned>(end - first), kThreads, 0,
                               static_cast<cudaStream_t>(call.context.stream)>>>(rows);
  return ToStatus(cudaGetLastError(), "starting SpGEMM by sorting");
}

absl::Status Symbolic(const Context& context, const SpgemmArguments& arguments, RowRange range,
                      std::span<int64_t> row_nnz) {
  return Compute<float, false>({context, arguments, range, row_nnz});
}

}  // namespace

SpgemmKernel ExpandSortSpgemm() {
  return {.name = "cuda.csr.expand_sort",
          .device = DeviceKind::kCuda,
          .deterministic = true,
          .supports = IsPlainSpgemm,
          .workspace = NoSpgemmWorkspace,
          .analyse = Analyse,
          .symbolic = Symbolic,
          .numeric = NumericByType<Compute<float, true>, Compute<double, true>>,
          .prepare = Prepare};
}

}  // namespace sparsed::cuda
