// Small passes over arrays that kernels need around their own.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "kernels/array.h"
#include "kernels/elementwise.h"

namespace sparsed::cuda {

/// to[i] = from[i], i < count, on the device.
cudaError_t NarrowOffsets(cudaStream_t stream, const int64_t* from, int32_t* to, int64_t count);

/// to[i] *= by[i], i < count, on the device; of a type that IsFloat() is true of.
cudaError_t MultiplyElements(cudaStream_t stream, ElementType type, const void* by, void* to,
                             int64_t count);

/// to[i] = from[source[i]], zero where that is negative, i < count, on the device; `source` is i32
/// or i64, elements are of a type that IsFloat() is true of.
cudaError_t GatherElements(cudaStream_t stream, ElementType type, const Array& source,
                           const void* from, void* to, int64_t count);

/// to[order[i]] = from[i], i < count, on the device; elements as above.
cudaError_t ScatterElements(cudaStream_t stream, ElementType type, const int64_t* order,
                            const void* from, void* to, int64_t count);

/// Row i of `to` is row order[i] of `from`, or (scattered) row order[i] of `to` row i of `from`, on
/// the device; of rows that are not empty.
cudaError_t GatherRows(cudaStream_t stream, std::span<const int64_t> order, ElementType type,
                       const ConstDense& from, const Dense& to);
cudaError_t ScatterRows(cudaStream_t stream, std::span<const int64_t> order, ElementType type,
                        const ConstDense& from, const Dense& to);

/// As sparsed::WeightedSum, of a result that is not empty.
cudaError_t WeightedSum(cudaStream_t stream, std::span<const WeightedTerm> terms, ElementType type,
                        const Dense& to);

/// to[i] = outer[inner[i]], i < count, on the device.
cudaError_t ComposeOrders(cudaStream_t stream, const int32_t* outer, const int32_t* inner,
                          int32_t* to, int64_t count);

/// cudaErrorNoKernelImageForDevice if this build has nothing that the calling thread's device can
/// run.
cudaError_t CheckKernelImage();

}  // namespace sparsed::cuda
