// Sums of what came before: where rows begin, once their lengths are known.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace sparsed::cuda {

/// to[i] = from[0] + ... + from[i - 1], i <= count, on the device; queued. Without `workspace`
/// nothing but *workspace_bytes is set.
cudaError_t RunningSum(cudaStream_t stream, const int64_t* from, int64_t count, int64_t* to,
                       void* workspace, size_t* workspace_bytes);

}  // namespace sparsed::cuda
