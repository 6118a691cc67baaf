// The CPU's spgemm kernels, for kernel_table.cc. Each is described in its file.
#pragma once

#include <span>

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

}  // namespace sparsed::cpu
