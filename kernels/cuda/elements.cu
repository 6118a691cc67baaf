#include "kernels/cuda/elements.h"

namespace sparsed::cuda {
namespace {

__global__ void Narrow(const int64_t* from, int32_t* to, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) to[i] = static_cast<int32_t>(from[i]);
}

template <typename T>
__global__ void Multiply(const T* by, T* to, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) to[i] *= by[i];
}

}  // namespace

cudaError_t MultiplyElements(cudaStream_t stream, bool f32, const void* by, void* to,
                             int64_t count) {
  const auto blocks = static_cast<unsigned>((count + 255) / 256);
  if (f32) {
    Multiply<<<blocks, 256, 0, stream>>>(static_cast<const float*>(by), static_cast<float*>(to),
                                         count);
  } else {
    Multiply<<<blocks, 256, 0, stream>>>(static_cast<const double*>(by), static_cast<double*>(to),
                                         count);
  }
  return cudaGetLastError();
}

cudaError_t CheckKernelImage() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, Narrow);
}

cudaError_t NarrowOffsets(cudaStream_t stream, const int64_t* from, int32_t* to, int64_t count) {
  Narrow<<<static_cast<unsigned>((count + 255) / 256), 256, 0, stream>>>(from, to, count);
  return cudaGetLastError();
}

}  // namespace sparsed::cuda
