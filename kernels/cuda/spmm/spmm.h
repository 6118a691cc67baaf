// SpMM on the GPU; what each kernel is for stands at the head of its file.
#pragma once

#include <span>

#include "kernels/kernel_table.h"

namespace sparsed::cuda {

SpmmKernel CsrSpmm();
/// With K cut into slabs of so many columns, one after another.
SpmmKernel CsrSlab64Spmm();
SpmmKernel CsrSlab32Spmm();
SpmmKernel CsrSlab16Spmm();
SpmmKernel CsrRowsSpmm();
SpmmKernel CsrRows8Spmm();
SpmmKernel CsrSplitRowsSpmm();
SpmmKernel CsrSplitRows8Spmm();
SpmmKernel CsrSplitRowsSlab64Spmm();
SpmmKernel CsrSplitRowsSlab32Spmm();
SpmmKernel CsrSplitRowsSlab16Spmm();
SpmmKernel CsrTransposedSpmm();
SpmmKernel RowPanelsSpmm();
/// The vendor's library; empty if it cannot be opened.
std::span<const SpmmKernel> CusparseSpmm();

}  // namespace sparsed::cuda
