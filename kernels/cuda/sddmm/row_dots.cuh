// The SDDMM of rows of nonzeros, for other layouts that have some; csr.cu says how.
#pragma once

#include "kernels/cuda/sddmm/dots.cuh"
#include "kernels/formats/csr.h"

namespace sparsed::cuda {

struct Rows {
  RowOffsets offsets;
  const int32_t* columns;
  const int32_t* order;  // null: identity
};

inline Rows RowsOf(const CsrView& s) {
  return {.offsets = {s.row_offsets.data(), static_cast<int>(s.rows),
                      static_cast<int64_t>(s.column_indices.size())},
          .columns = s.column_indices.data(),
          .order = s.row_order.empty() ? nullptr : s.row_order.data()};
}

/// Of at least one nonzero, whose slots are those of `operands`; f32 or f64.
template <typename T>
absl::Status StartRowDots(cudaStream_t stream, const Rows& s, const SddmmOperands<T>& operands);

}  // namespace sparsed::cuda
