// SpGEMM on the CPU; what each kernel is for stands at the head of its file. A new one is declared
// and listed here, and nowhere else.
#pragma once

#include <span>
#include <vector>

#include "kernels/kernel_list.h"
#include "kernels/kernel_table.h"

namespace sparsed::cpu {

SpgemmKernel RowGroupsSpgemm();
SpgemmKernel HashSpgemm();
SpgemmKernel DenseSpgemm();
SpgemmKernel HeapSpgemm();
SpgemmKernel DiagonalsSpgemm();
SpgemmKernel ColumnPartsSpgemm();
SpgemmKernel EvenRowsSpgemm();
SpgemmKernel SectionsSpgemm();
SpgemmKernel MaskedSpgemm();
/// Empty if GraphBLAS is not there, or was not when this was built.
std::span<const SpgemmKernel> GraphblasSpgemm();

/// All of them, the default first.
inline std::vector<SpgemmKernel> ListSpgemm() {
  return KernelList<SpgemmKernel>(RowGroupsSpgemm(), HashSpgemm(), DenseSpgemm(), HeapSpgemm(),
                                  DiagonalsSpgemm(), ColumnPartsSpgemm(), EvenRowsSpgemm(),
                                  SectionsSpgemm(), MaskedSpgemm(), GraphblasSpgemm());
}

}  // namespace sparsed::cpu
