// What SpGEMM's kernels share before they launch anything.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernel_table.h"

namespace sparsed::cuda {

/// SpGEMM in f32 or f64 on a GPU.
inline bool IsFloatSpgemm(const Problem& problem) {
  return problem.operation == Operation::kSpgemm && problem.device == DeviceKind::kCuda &&
         (problem.type == ElementType::kF32 || problem.type == ElementType::kF64);
}
/// ... sums of products, all of them.
inline bool IsPlainSpgemm(const Problem& problem) {
  return IsFloatSpgemm(problem) && problem.semiring == Semiring::kSumProduct && !problem.masked;
}

inline size_t NoSpgemmWorkspace(const Problem& /*problem*/, const SpgemmArguments& /*arguments*/,
                                int /*threads*/) {
  return 0;
}

/// Blocks of a grid with so many threads.
inline unsigned BlocksFor(int64_t threads, int block) {
  return static_cast<unsigned>((threads + block - 1) / block);
}

/// Arrays that share an allocation begin at multiples of this.
inline size_t RoundUp(size_t bytes) { return (bytes + 255) / 256 * 256; }

/// Of the matrix in CSR.
inline size_t CsrBytes(const CsrView& csr, size_t element) {
  return csr.row_offsets.size_bytes() + csr.column_indices.size() * (sizeof(int32_t) + element);
}

}  // namespace sparsed::cuda
