// How long the rows of a matrix on the device are.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/formats/csr.h"

namespace sparsed::cuda {

/// *longest = the nonzeros of the longest row, at most 2^30 of them told; on the device, queued.
cudaError_t FindLongestRow(cudaStream_t stream, const CsrView& csr, unsigned* longest);

}  // namespace sparsed::cuda
