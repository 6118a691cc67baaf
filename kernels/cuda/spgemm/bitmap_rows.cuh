// Rows of C by two bitmaps: which words of 32 columns a row has, and which columns of these.
// Together they give every product its place, in order.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/spgemm/binned_rows.cuh"

namespace sparsed::cuda {

constexpr int kWordColumns = 32;
/// The bits below bit `at` % 32.
__device__ inline uint32_t Below(uint32_t at) { return (1u << (at % 32)) - 1; }

/// 32 columns of a row of which `mask` tells some.
struct Word {
  int32_t index;  ///< of its first column, in words
  uint32_t mask;
};

/// T's rows as words; several nonzeros to each, so that there is less to look at than in columns.
struct RowWords {
  const int32_t* offsets;
  const Word* words;

  __device__ int32_t IndexOf(int32_t i) const { return __ldg(&words[i].index); }
  __device__ Word Load(int32_t i) const {
    const auto loaded = __ldg(reinterpret_cast<const int2*>(words + i));
    return {loaded.x, static_cast<uint32_t>(loaded.y)};
  }
};

/// T's rows as they are, a word for each nonzero.
struct RowColumns {
  const int64_t* offsets;
  const int32_t* columns;

  __device__ int32_t IndexOf(int32_t i) const { return __ldg(columns + i) / kWordColumns; }
  __device__ Word Load(int32_t i) const {
    const int32_t column = __ldg(columns + i);
    return {column / kWordColumns, 1u << (column % kWordColumns)};
  }
};

/// FAILED_PRECONDITION: T has too many columns for the first bitmap, which lies in shared memory
/// with a bit for each word of C, or too many nonzeros for positions of 32 bits.
absl::Status CheckBitmapRows(const CsrView& t);

/// Computes rows, the shortest and the longest ones as row bins do. Queued.
template <typename T, typename Source>
absl::Status AddRowsByBitmaps(const Context& context, const Rows<T>& rows, int64_t count,
                              const Source& t);

/// rows.row_nnz: their exact entries instead of bounds. Queued.
absl::Status CountRowsByBitmaps(const Context& context, const Rows<float>& rows, int64_t count,
                                const RowWords& t);

}  // namespace sparsed::cuda
