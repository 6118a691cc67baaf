// SDDMM on the CPU; what each kernel is for stands at the head of its file. A new one is declared
// and listed here, and nowhere else.
#pragma once

#include <vector>

#include "kernels/kernel_list.h"
#include "kernels/kernel_table.h"

namespace sparsed::cpu {

SddmmKernel CsrSddmm();
SddmmKernel CsrSlabSddmm();
SddmmKernel AsptSddmm();
SddmmKernel DcsrSddmm();

/// All of them, the plain kernel first.
inline std::vector<SddmmKernel> ListSddmm() {
  return KernelList<SddmmKernel>(CsrSddmm(), CsrSlabSddmm(), AsptSddmm(), DcsrSddmm());
}

}  // namespace sparsed::cpu
