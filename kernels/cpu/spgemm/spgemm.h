// The CPU's spgemm kernels, for kernel_table.cc. Each is described in its file.
#pragma once

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

}  // namespace sparsed::cpu
