#include <algorithm>

#include "kernels/cuda/spgemm/whole_product.h"

namespace sparsed::cuda {
namespace {

constexpr int kThreads = 256;
/// Lanes that go through a row together; more of them share a long one.
constexpr int kLanes = 8;
/// Entries of a row for each group of lanes.
constexpr int32_t kSlice = 1024;
constexpr int kMostSlices = 1024;

dim3 GridOf(int64_t rows, int32_t longest) {
  constexpr int kRows = kThreads / kLanes;
  const int slices = std::clamp(longest / kSlice, 1, kMostSlices);
  return {static_cast<unsigned>((rows + kRows - 1) / kRows), static_cast<unsigned>(slices), 1};
}

__global__ void __launch_bounds__(kThreads)
    Check(const WholeProduct product, const int64_t* row_bounds, int64_t nnz, ProductCheck* check) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / kLanes) + threadIdx.x / kLanes;
  if (row >= product.rows) return;
  const int64_t begin = product.row_offsets[row], end = product.row_offsets[row + 1];
  const int64_t bound = row_bounds[row];
  const int lane = threadIdx.x % kLanes;
  // Nothing is read that the arrays have not.
  bool wrong = begin < 0 || end < begin || end > nnz || end - begin > bound ||
               (end == begin) != (bound == 0);
  const auto length = static_cast<int32_t>(wrong ? 0 : end - begin);
  if (!wrong) {
    for (int64_t i = begin + lane; i < end; i += kLanes) {
      const int32_t before = i == begin ? -1 : product.columns[i - 1];
      wrong |= product.columns[i] <= before || product.columns[i] >= product.cols;
    }
  }
  if (wrong) atomicAdd(&check->wrong, 1);
  if (lane == 0 && length > check->longest) atomicMax(&check->longest, length);
}

__global__ void __launch_bounds__(kThreads)
    Count(const int32_t* row_offsets, int64_t rows, int64_t* row_nnz) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row < rows) row_nnz[row] = row_offsets[row + 1] - row_offsets[row];
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    CopyRows(const WholeProduct product, RowRange range, const int64_t* row_begin, int32_t* columns,
             T* values, int64_t* row_nnz) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / kLanes) + threadIdx.x / kLanes;
  if (row >= range.end - range.begin) return;
  const int32_t* const offsets = product.row_offsets + range.begin + row;
  const int64_t from = offsets[0], count = offsets[1] - offsets[0], to = row_begin[row];
  const int lane = threadIdx.x % kLanes;
  if (blockIdx.y == 0 && lane == 0) row_nnz[row] = count;
  const T* const from_values = static_cast<const T*>(product.values);
  const int64_t stride = static_cast<int64_t>(gridDim.y) * kLanes;
  for (int64_t i = static_cast<int64_t>(blockIdx.y) * kLanes + lane; i < count; i += stride) {
    columns[to + i] = product.columns[from + i];
    values[to + i] = from_values[from + i];
  }
}

}  // namespace

cudaError_t CheckProduct(cudaStream_t stream, const WholeProduct& product,
                         const int64_t* row_bounds, int64_t nnz, ProductCheck* check) {
  const cudaError_t error = cudaMemsetAsync(check, 0, sizeof(*check), stream);
  if (error != cudaSuccess || product.rows == 0) return error;
  Check<<<GridOf(product.rows, 0), kThreads, 0, stream>>>(product, row_bounds, nnz, check);
  return cudaGetLastError();
}

cudaError_t CountRows(cudaStream_t stream, const WholeProduct& product, RowRange range,
                      int64_t* row_nnz) {
  const int64_t rows = range.end - range.begin;
  if (rows == 0) return cudaSuccess;
  Count<<<static_cast<unsigned>((rows + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
      product.row_offsets + range.begin, rows, row_nnz);
  return cudaGetLastError();
}

cudaError_t CopyProductRows(cudaStream_t stream, const WholeProduct& product, int32_t longest,
                            RowRange range, const int64_t* row_begin, int32_t* columns,
                            void* values, int64_t* row_nnz) {
  const int64_t rows = range.end - range.begin;
  if (rows == 0) return cudaSuccess;
  const dim3 grid = GridOf(rows, longest);
  if (product.type == ElementType::kF64) {
    CopyRows<<<grid, kThreads, 0, stream>>>(product, range, row_begin, columns,
                                            static_cast<double*>(values), row_nnz);
  } else {
    CopyRows<<<grid, kThreads, 0, stream>>>(product, range, row_begin, columns,
                                            static_cast<float*>(values), row_nnz);
  }
  return cudaGetLastError();
}

}  // namespace sparsed::cuda
