#include <cub/device/device_scan.cuh>

#include "kernels/cuda/running_sum.h"

namespace sparsed::cuda {

cudaError_t RunningSum(cudaStream_t stream, const int64_t* from, int64_t count, int64_t* to,
                       void* workspace, size_t* workspace_bytes) {
  if (workspace != nullptr) {
    const cudaError_t error = cudaMemsetAsync(to, 0, sizeof(*to), stream);
    if (error != cudaSuccess) return error;
  }
  return cub::DeviceScan::InclusiveSum(workspace, *workspace_bytes, from, to + 1, count, stream);
}

}  // namespace sparsed::cuda
