// SpMM on the GPU; what each kernel is for stands at the head of its file.
#pragma once

#include <span>

#include "kernels/kernel_table.h"

namespace sparsed::cuda {

/// The first is the plain kernel.
std::span<const SpmmKernel> CsrRowsSpmm();
SpmmKernel CsrMergeSpmm();
SpmmKernel CsrTransposedSpmm();
SpmmKernel RowPanelsSpmm();
SpmmKernel AsptSpmm();
SpmmKernel RowPanelsMmaSpmm();
SpmmKernel RowSegmentsSpmm();
SpmmKernel RowSegmentsTransposedSpmm();
std::span<const SpmmKernel> DcsrSpmm();
/// The vendor's library; empty if it cannot be opened.
std::span<const SpmmKernel> CusparseSpmm();

}  // namespace sparsed::cuda
