// SDDMM on the GPU; what each kernel is for stands at the head of its file.
#pragma once

#include <span>

#include "kernels/kernel_table.h"

namespace sparsed::cuda {

SddmmKernel CsrSddmm();
/// For rows that share columns with their neighbours.
SddmmKernel CsrNearSddmm();
/// Slab: with K cut into slabs of so many columns, one after another.
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

}  // namespace sparsed::cuda
