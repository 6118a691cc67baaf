// SpGEMM on the GPU; what each kernel is for stands at the head of its file. A new one is declared
// and listed here, and nowhere else.
#pragma once

#include <span>
#include <vector>

#include "kernels/kernel_list.h"
#include "kernels/kernel_table.h"

namespace sparsed::cuda {

SpgemmKernel RowBinsSpgemm();
/// For long rows of few products for each entry.
SpgemmKernel RowBitmapsSpgemm();
/// For matrices whose columns come in clusters.
SpgemmKernel RowWordsSpgemm();
/// For matrices of few diagonals.
SpgemmKernel DiagonalsSpgemm();
/// For short rows of even length.
SpgemmKernel EvenRowsSpgemm();
/// For matrices made of dense blocks.
SpgemmKernel BlocksSpgemm();
/// For rows of few products.
SpgemmKernel ExpandSortSpgemm();
/// For rows of few terms.
SpgemmKernel MergeSpgemm();
/// Under a mask, in every semiring.
SpgemmKernel MaskedSpgemm();
/// Empty if the library is not there.
std::span<const SpgemmKernel> CusparseSpgemm();

/// All of them, the default first.
inline std::vector<SpgemmKernel> ListSpgemm() {
  return KernelList<SpgemmKernel>(
      RowBinsSpgemm(), DiagonalsSpgemm(), EvenRowsSpgemm(), BlocksSpgemm(), ExpandSortSpgemm(),
      MergeSpgemm(), RowBitmapsSpgemm(), RowWordsSpgemm(), MaskedSpgemm(), CusparseSpgemm());
}

}  // namespace sparsed::cuda
