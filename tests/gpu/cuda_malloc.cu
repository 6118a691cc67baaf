#include <cstdio>
#include <cstdlib>

#include "tests/gpu/cuda_malloc.h"

namespace sparsed::test {

CudaMalloc::CudaMalloc(size_t bytes) {
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes);
  if (error != cudaSuccess) {
    std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
    std::abort();
  }
  data_ = static_cast<std::byte*>(data);
}

CudaMalloc::~CudaMalloc() { cudaFree(data_); }

}  // namespace sparsed::test
