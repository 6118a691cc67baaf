// The kernels of this module, for the kernel table. Empty where it is not built.
#pragma once

#include <span>

#include "kernels/kernel_table.h"

namespace sparsed::cuda {

std::span<const SpmmKernel> SpmmKernels();
std::span<const SddmmKernel> SddmmKernels();
std::span<const SpgemmKernel> SpgemmKernels();

}  // namespace sparsed::cuda
