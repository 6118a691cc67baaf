// SpGEMM on the GPU; what each kernel is for stands at the head of its file.
#pragma once

#include <span>

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

}  // namespace sparsed::cuda
