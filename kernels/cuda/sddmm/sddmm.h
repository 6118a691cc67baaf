// SDDMM on the GPU; what each kernel is for stands at the head of its file. A new one is declared
// and listed here, and nowhere else.
#pragma once

#include <span>
#include <vector>

#include "kernels/kernel_list.h"
#include "kernels/kernel_table.h"

namespace sparsed::cuda {

SddmmKernel CsrSddmm();
/// For rows that share columns with their neighbours.
SddmmKernel CsrNearSddmm();
/// Column block: with K cut into column blocks of so many columns, one after another.
SddmmKernel CsrSlabSddmm();
/// With at most 256 rows a panel.
SddmmKernel AsptSddmm();
SddmmKernel CooPanelsSddmm();
SddmmKernel RowPanelsSddmm();
/// Through shared memory, from panels of 8 or 16 rows.
SddmmKernel RowPanelsStagedSddmm();
SddmmKernel DcsrSddmm();
/// The vendor's library; empty if it cannot be opened.
std::span<const SddmmKernel> CusparseSddmm();

/// All of them, the plain kernel first.
inline std::vector<SddmmKernel> ListSddmm() {
  return KernelList<SddmmKernel>(CsrSddmm(), CsrNearSddmm(), CsrSlabSddmm(), CooPanelsSddmm(),
                                 RowPanelsSddmm(), RowPanelsStagedSddmm(), AsptSddmm(), DcsrSddmm(),
                                 CusparseSddmm());
}

}  // namespace sparsed::cuda
