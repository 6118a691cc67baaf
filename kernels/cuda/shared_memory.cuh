// Shared memory: how much of it there is, and copies to it that are waited for later.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <limits>

namespace sparsed::cuda {

/// Of shared memory that a block may have. Where there is no device to ask, no limit: plans are
/// read there, too.
inline int MostSharedBytes() {
  static const int most = [] {
    int device = 0, bytes = 0;
    const bool known = cudaGetDevice(&device) == cudaSuccess &&
                       cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                              device) == cudaSuccess;
    return known ? bytes : std::numeric_limits<int>::max();
  }();
  return most;
}

/// Begins to copy kBytes to shared memory, whose address is `to`.
template <int kBytes>
__device__ inline void CopyAsync(uint32_t to, const void* from) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(kBytes)
                 : "memory");
  }
}

}  // namespace sparsed::cuda
