// CUDA's errors as statuses, and what launches ask of the device.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "absl/status/status.h"

namespace sparsed::cuda {

/// OK, or what `doing` met.
absl::Status ToStatus(cudaError_t error, std::string_view doing);

/// `status`; if it is an error, only when the stream is done: what was queued uses memory that the
/// caller lets go.
absl::Status Settled(void* stream, absl::Status status);

/// Of the calling thread's device. 1 where the driver fails, as the launch will say.
int Multiprocessors();

}  // namespace sparsed::cuda
