// SpGEMM on the GPU; what each kernel is for stands at the head of its file.
#pragma once

#include "kernels/kernel_table.h"

namespace sparsed::cuda {

SpgemmKernel RowBinsSpgemm();

}  // namespace sparsed::cuda
