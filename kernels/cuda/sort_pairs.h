// Pairs in the order of their keys.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace sparsed::cuda {

/// Keys and values on the device.
struct SortedPairs {
  const uint32_t* keys;
  const uint32_t* values;
};

/// Sorts `count` pairs by the lowest `bits` bits of their keys, stable; queued. All four arrays are
/// written to; what comes out is in the first two or the second two, as *sorted says. Without
/// `workspace` nothing but *workspace_bytes is set.
cudaError_t SortPairs(cudaStream_t stream, uint32_t* keys, uint32_t* values, uint32_t* other_keys,
                      uint32_t* other_values, uint32_t count, int bits, void* workspace,
                      size_t* workspace_bytes, SortedPairs* sorted);

}  // namespace sparsed::cuda
