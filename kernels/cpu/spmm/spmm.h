// SpMM on the CPU; what each kernel is for stands at the head of its file. A new one is declared
// and listed here, and nowhere else.
#pragma once

#include <vector>

#include "kernels/kernel_list.h"
#include "kernels/kernel_table.h"

namespace sparsed::cpu {

SpmmKernel CsrSpmm();
SpmmKernel CsrSlabSpmm();
SpmmKernel CsrTransposedSpmm();
SpmmKernel AsptSpmm();
SpmmKernel DcsrSpmm();
SpmmKernel BcsrSpmm();
SpmmKernel RowSegmentsSpmm();
SpmmKernel RowSegmentsTransposedSpmm();

/// All of them, the plain kernel first.
inline std::vector<SpmmKernel> ListSpmm() {
  return KernelList<SpmmKernel>(CsrSpmm(), CsrSlabSpmm(), CsrTransposedSpmm(), AsptSpmm(),
                                DcsrSpmm(), RowSegmentsSpmm(), RowSegmentsTransposedSpmm(),
                                BcsrSpmm());
}

}  // namespace sparsed::cpu
