// A product that is whole in the device's memory, as a library leaves it: checked, its rows counted
// and copied out.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/array.h"
#include "kernels/problem.h"

namespace sparsed::cuda {

/// CSR on the device with 32-bit row offsets.
struct WholeProduct {
  int64_t rows = 0;
  int64_t cols = 0;
  const int32_t* row_offsets = nullptr;  ///< rows + 1
  const int32_t* columns = nullptr;
  const void* values = nullptr;
  ElementType type = ElementType::kF32;  ///< f32 or f64
};

/// What CheckProduct found; zero before it.
struct ProductCheck {
  int32_t wrong = 0;    ///< above 0 if there are rows that cannot be right
  int32_t longest = 0;  ///< entries of the longest row
};

/// Looks for rows that have more entries than their bound, or none although they have products, or
/// columns that do not ascend within [0, cols), or that lie outside of the arrays' `nnz` entries.
/// `row_bounds` as SpgemmKernel::analyse leaves them; all on the device, queued.
cudaError_t CheckProduct(cudaStream_t stream, const WholeProduct& product,
                         const int64_t* row_bounds, int64_t nnz, ProductCheck* check);

/// row_nnz[i - range.begin] = entries of row i; queued.
cudaError_t CountRows(cudaStream_t stream, const WholeProduct& product, RowRange range,
                      int64_t* row_nnz);

/// As SpgemmKernel::numeric: rows of `range` to where row_begin says, and their counts; queued.
/// `longest` as CheckProduct found it.
cudaError_t CopyProductRows(cudaStream_t stream, const WholeProduct& product, int32_t longest,
                            RowRange range, const int64_t* row_begin, int32_t* columns,
                            void* values, int64_t* row_nnz);

}  // namespace sparsed::cuda
