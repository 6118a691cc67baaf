// Functions of the driver's library, which a machine without a GPU lacks.
#pragma once

#include <cuda_runtime_api.h>

namespace sparsed::cuda {

/// By the version of CUDA 12.0; false where the driver has none of that name.
template <typename Function>
bool FindInDriver(const char* name, Function& function) {
  constexpr unsigned kVersion = 12000;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  void* at = nullptr;
  if (cudaGetDriverEntryPointByVersion(name, &at, kVersion, cudaEnableDefault, &found) !=
          cudaSuccess ||
      found != cudaDriverEntryPointSuccess) {
    cudaGetLastError();
    return false;
  }
  function = reinterpret_cast<Function>(at);
  return true;
}

}  // namespace sparsed::cuda
