// A kernel whose start overlaps the end of the one before it in the stream, where the hardware can
// do that: it begins with AwaitTheKernelBefore.
#pragma once

#include <cuda_runtime_api.h>

namespace sparsed::cuda {

/// Until what the kernel before wrote is there.
__device__ inline void AwaitTheKernelBefore() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

template <typename Kernel, typename Argument>
cudaError_t LaunchOverlapping(cudaStream_t stream, dim3 grid, dim3 block, Kernel kernel,
                              const Argument& argument) {
  int device = 0, major = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  }
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = major >= 9 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, argument);
}

}  // namespace sparsed::cuda
