// Softmax over the nonzeros of each row, on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "kernels/array.h"

namespace sparsed::cuda {

/// As sparsed::RowSoftmax, all on the device, of one row or more.
cudaError_t RowSoftmax(cudaStream_t stream, std::span<const int64_t> row_offsets, ElementType type,
                       double scale, const void* x, void* y);

/// As sparsed::RowSoftmaxGradient, likewise.
cudaError_t RowSoftmaxGradient(cudaStream_t stream, std::span<const int64_t> row_offsets,
                               ElementType type, double scale, const void* y, const void* dy,
                               void* dx);

}  // namespace sparsed::cuda
