// Launches with a thread, or a fixed number of them, for each element.
#pragma once

#include <algorithm>
#include <cstdint>

namespace sparsed::cuda {

constexpr int kThreads = 256;  ///< of a block

inline unsigned Blocks(int64_t threads) {
  return static_cast<unsigned>(std::max<int64_t>((threads + kThreads - 1) / kThreads, 1));
}

__device__ inline int64_t ThreadIndex() {
  return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

}  // namespace sparsed::cuda
