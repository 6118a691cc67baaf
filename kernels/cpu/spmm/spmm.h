// The CPU's spmm kernels, for kernel_table.cc. Each is described in its file.
#pragma once

#include "kernels/kernel_table.h"

namespace sparsed::cpu {

SpmmKernel CsrSpmm();
SpmmKernel CsrSlabSpmm();
SpmmKernel CsrTransposedSpmm();
SpmmKernel AsptSpmm();
SpmmKernel DcsrSpmm();
SpmmKernel RowSegmentsSpmm();
SpmmKernel RowSegmentsTransposedSpmm();

}  // namespace sparsed::cpu
