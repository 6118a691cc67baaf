#include "kernels/cuda/elements.h"
#include "kernels/cuda/lanes.cuh"

namespace sparsed::cuda {
namespace {

__global__ void NarrowEach(const int64_t* from, int32_t* to, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) to[i] = static_cast<int32_t>(from[i]);
}

__global__ void Compose(const int32_t* outer, const int32_t* inner, int32_t* to, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) to[i] = outer[inner[i]];
}

template <typename T>
__global__ void Multiply(const T* by, T* to, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) to[i] = Narrow<T>(Widen(to[i]) * Widen(by[i]));
}

template <typename Index, typename T>
__global__ void Gather(const Index* source, const T* from, T* to, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const Index at = __ldcs(source + i);
  to[i] = at < 0 ? T{} : from[at];
}

template <typename T>
__global__ void Scatter(const int64_t* order, const T* from, T* to, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) to[__ldcs(order + i)] = from[i];
}

}  // namespace

cudaError_t ScatterElements(cudaStream_t stream, ElementType type, const int64_t* order,
                            const void* from, void* to, int64_t count) {
  VisitFloat(type, [&]<typename T>(T) {
    Scatter<<<static_cast<unsigned>((count + 255) / 256), 256, 0, stream>>>(
        order, static_cast<const T*>(from), static_cast<T*>(to), count);
  });
  return cudaGetLastError();
}

cudaError_t GatherElements(cudaStream_t stream, ElementType type, const Array& source,
                           const void* from, void* to, int64_t count) {
  const auto blocks = static_cast<unsigned>((count + 255) / 256);
  VisitFloat(type, [&]<typename T>(T) {
    const auto* const elements = static_cast<const T*>(from);
    if (source.type == ElementType::kI32) {
      Gather<<<blocks, 256, 0, stream>>>(source.As<int32_t>().data(), elements, static_cast<T*>(to),
                                         count);
    } else {
      Gather<<<blocks, 256, 0, stream>>>(source.As<int64_t>().data(), elements, static_cast<T*>(to),
                                         count);
    }
  });
  return cudaGetLastError();
}

cudaError_t MultiplyElements(cudaStream_t stream, ElementType type, const void* by, void* to,
                             int64_t count) {
  VisitFloat(type, [&]<typename T>(T) {
    Multiply<<<static_cast<unsigned>((count + 255) / 256), 256, 0, stream>>>(
        static_cast<const T*>(by), static_cast<T*>(to), count);
  });
  return cudaGetLastError();
}

cudaError_t ComposeOrders(cudaStream_t stream, const int32_t* outer, const int32_t* inner,
                          int32_t* to, int64_t count) {
  Compose<<<static_cast<unsigned>((count + 255) / 256), 256, 0, stream>>>(outer, inner, to, count);
  return cudaGetLastError();
}

cudaError_t CheckKernelImage() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, NarrowEach);
}

cudaError_t NarrowOffsets(cudaStream_t stream, const int64_t* from, int32_t* to, int64_t count) {
  NarrowEach<<<static_cast<unsigned>((count + 255) / 256), 256, 0, stream>>>(from, to, count);
  return cudaGetLastError();
}

}  // namespace sparsed::cuda
