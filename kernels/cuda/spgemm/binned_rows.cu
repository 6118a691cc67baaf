#include <limits>

#include "kernels/cuda/spgemm/binned_rows.cuh"

namespace sparsed::cuda {
namespace {

constexpr int kThreads = 256;
constexpr size_t kCounterBytes = 256;

constexpr int kAnalysisLanes = 8;
constexpr int kAnalysisBlocks = 8;  // for each multiprocessor, at most
// Rows of more wait until the block is done with the others, and then it counts each as a whole.
constexpr int64_t kManyNonzeros = 1024;
constexpr int kMostListed = 256;

// Blocks take kThreads / kAnalysisLanes rows at a time.
__global__ void __launch_bounds__(kThreads)
    Analyse(const int64_t* s_offsets, const int32_t* s_columns, const int64_t* t_offsets,
            const int32_t* t_columns, int64_t rows, int64_t cols, bool by_columns, int64_t* bounds,
            int64_t* products) {
  constexpr int kRows = kThreads / kAnalysisLanes;
  using Count = unsigned long long;
  __shared__ Count of_block, of_row;
  __shared__ int32_t listed, long_rows[kMostListed];
  if (threadIdx.x == 0) {
    of_block = of_row = 0;
    listed = 0;
  }
  __syncthreads();
  const int lane = threadIdx.x % kAnalysisLanes;
  const auto count = [&](int64_t begin, int64_t end, int first, int stride) {
    Count sum = 0;
    for (int64_t j = begin + first; j < end; j += stride) {
      const int32_t k = __ldg(s_columns + j);
      sum += __ldg(t_offsets + k + 1) - __ldg(t_offsets + k);
    }
    return sum;
  };
  Count mine = 0;  // products that this thread knows of
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kRows;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kRows; first < rows; first += stride) {
    const int64_t row = first + threadIdx.x / kAnalysisLanes;
    int64_t begin = 0, end = 0;
    if (row < rows) {
      begin = __ldg(s_offsets + row);
      end = __ldg(s_offsets + row + 1);
    }
    bool is_long = end - begin > kManyNonzeros;
    if (is_long) {
      int32_t place = 0;
      if (lane == 0) place = atomicAdd(&listed, 1);
      place = __shfl_sync(GroupMask<kAnalysisLanes>(), place, 0, kAnalysisLanes);
      is_long = place < kMostListed;
      if (is_long && lane == 0) long_rows[place] = static_cast<int32_t>(row);
    }
    Count sum = is_long ? 0 : count(begin, end, lane, kAnalysisLanes);
#pragma unroll
    for (int distance = kAnalysisLanes / 2; distance > 0; distance /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, distance, kAnalysisLanes);
    }
    int64_t bound = min(static_cast<int64_t>(sum), cols);
    // Rows of bands and blocks have many products in few columns: those between the first and the
    // last one.
    const bool is_fair = by_columns && sum > kFairRow;
    if (__any_sync(0xffffffffu, is_fair)) {
      const ColumnRange range =
          RangeOf<kAnalysisLanes>(s_columns, t_offsets, t_columns, is_fair ? begin : end, end);
      if (is_fair) bound = min(bound, static_cast<int64_t>(range.most) - range.least + 1);
    }
    if (lane == 0 && row < rows && !is_long) {
      bounds[row] = bound;
      mine += sum;
    }
  }
  __syncthreads();
  for (int i = 0; i < min(listed, kMostListed); ++i) {
    const int32_t row = long_rows[i];
    atomicAdd(&of_row,
              count(__ldg(s_offsets + row), __ldg(s_offsets + row + 1), threadIdx.x, kThreads));
    __syncthreads();
    if (threadIdx.x == 0) {
      bounds[row] = min(static_cast<int64_t>(of_row), cols);
      mine += of_row;
      of_row = 0;
    }
    __syncthreads();
  }
  __syncthreads();
  if (mine > 0) atomicAdd(&of_block, mine);
  __syncthreads();
  if (threadIdx.x == 0 && of_block > 0) atomicAdd(reinterpret_cast<Count*>(products), of_block);
}

absl::Status AnalyseBy(const Context& context, const SpgemmArguments& arguments, bool by_columns,
                       std::span<int64_t> row_bounds, int64_t* products) {
  const int64_t rows = arguments.left.rows;
  if (rows > std::numeric_limits<int32_t>::max()) {
    return absl::UnimplementedError("SpGEMM on the GPU takes up to 2^31 - 1 rows");
  }
  const auto stream = static_cast<cudaStream_t>(context.stream);
  cudaError_t error = cudaMemsetAsync(products, 0, sizeof(*products), stream);
  if (error == cudaSuccess && rows > 0) {
    constexpr int64_t kRows = kThreads / kAnalysisLanes;
    const int64_t blocks =
        std::min<int64_t>((rows + kRows - 1) / kRows, Multiprocessors() * kAnalysisBlocks);
    Analyse<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
        arguments.left.row_offsets.data(), arguments.left.column_indices.data(),
        arguments.right.row_offsets.data(), arguments.right.column_indices.data(), rows,
        arguments.right.cols, by_columns, row_bounds.data(), products);
    error = cudaGetLastError();
  }
  return ToStatus(error, "analysing SpGEMM");
}

// ---- Bins

__device__ int BinOf(const BinLimits& limits, int64_t entries, int64_t nonzeros) {
  int bin = 0;
#pragma unroll
  for (int i = 0; i < kLastBin; ++i) {
    if (entries > limits.entries[i] || nonzeros > limits.nonzeros[i]) bin = i + 1;
  }
  return bin;
}

__global__ void __launch_bounds__(kThreads)
    ListRows(const int64_t* s_offsets, const int64_t* row_begin, int64_t* row_nnz, int64_t rows,
             const BinLimits limits, const Bins bins) {
  __shared__ int32_t sizes[kBins], places[kBins];
  if (threadIdx.x < kBins) sizes[threadIdx.x] = 0;
  __syncthreads();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  int64_t entries = 0;
  if (row < rows) {
    entries = row_begin == nullptr ? row_nnz[row] : row_begin[row + 1] - row_begin[row];
    if (entries == 0) row_nnz[row] = 0;
  }
  int bin = 0;
  if (entries > 0) {
    bin = BinOf(limits, entries, s_offsets[row + 1] - s_offsets[row]);
  }
  int32_t place = 0;
  if (entries > 0) place = atomicAdd(sizes + bin, 1);
  __syncthreads();
  if (threadIdx.x < kBins && sizes[threadIdx.x] > 0) {
    places[threadIdx.x] = atomicAdd(bins.sizes + threadIdx.x, sizes[threadIdx.x]);
  }
  __syncthreads();
  if (entries > 0) bins.Row(bin, places[bin] + place) = static_cast<int32_t>(row);
}

}  // namespace

size_t BinnedRowsWorkspace(const Problem& /*problem*/, const SpgemmArguments& arguments,
                           int /*threads*/) {
  return kCounterBytes + static_cast<size_t>(arguments.left.rows) * kLists * sizeof(int32_t);
}

absl::Status AnalyseRows(const Context& context, const SpgemmArguments& arguments,
                         std::span<int64_t> row_bounds, int64_t* products) {
  return AnalyseBy(context, arguments, /*by_columns=*/true, row_bounds, products);
}

absl::Status CountProducts(const Context& context, const SpgemmArguments& arguments,
                           std::span<int64_t> row_bounds, int64_t* products) {
  return AnalyseBy(context, arguments, /*by_columns=*/false, row_bounds, products);
}

template <typename T>
cudaError_t FillBins(const Context& context, const Rows<T>& rows, int64_t count,
                     const BinLimits& limits, Bins* bins) {
  const auto stream = static_cast<cudaStream_t>(context.stream);
  auto* const counters = reinterpret_cast<int32_t*>(context.workspace.data());
  *bins = {counters, counters + 16,
           reinterpret_cast<int32_t*>(context.workspace.data() + kCounterBytes), count};
  const cudaError_t error = cudaMemsetAsync(counters, 0, kCounterBytes, stream);
  if (error != cudaSuccess) return error;
  ListRows<<<BlocksFor(count, kThreads), kThreads, 0, stream>>>(
      rows.pair.s_offsets + rows.first, rows.row_begin, rows.row_nnz, count, limits, *bins);
  return cudaGetLastError();
}

template cudaError_t FillBins(const Context&, const Rows<float>&, int64_t, const BinLimits&, Bins*);
template cudaError_t FillBins(const Context&, const Rows<double>&, int64_t, const BinLimits&,
                              Bins*);

}  // namespace sparsed::cuda
