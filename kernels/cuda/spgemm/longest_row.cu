#include "kernels/cuda/spgemm/host.h"
#include "kernels/cuda/spgemm/longest_row.h"

namespace sparsed::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    FindLongest(const int64_t* offsets, int64_t rows, unsigned* longest) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t length = row < rows ? offsets[row + 1] - offsets[row] : 0;
  const unsigned of_warp =
      __reduce_max_sync(0xffffffffu, static_cast<unsigned>(min(length, int64_t{1} << 30)));
  if (threadIdx.x % 32 == 0 && of_warp > 0) atomicMax(longest, of_warp);
}

}  // namespace

cudaError_t FindLongestRow(cudaStream_t stream, const CsrView& csr, unsigned* longest) {
  const cudaError_t error = cudaMemsetAsync(longest, 0, sizeof(*longest), stream);
  if (error != cudaSuccess || csr.rows == 0) return error;
  FindLongest<<<BlocksFor(csr.rows, kThreads), kThreads, 0, stream>>>(csr.row_offsets.data(),
                                                                      csr.rows, longest);
  return cudaGetLastError();
}

}  // namespace sparsed::cuda
