// The CPU's sddmm kernels, for kernel_table.cc. Each is described in its file.
#pragma once

#include "kernels/kernel_table.h"

namespace sparsed::cpu {

SddmmKernel CsrSddmm();
SddmmKernel CsrSlabSddmm();
SddmmKernel AsptSddmm();
SddmmKernel DcsrSddmm();

}  // namespace sparsed::cpu
