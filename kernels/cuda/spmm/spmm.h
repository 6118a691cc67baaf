// SpMM on the GPU; what each kernel is for stands at the head of its file. A new one is declared
// and listed here, and nowhere else.
#pragma once

#include <span>
#include <vector>

#include "kernels/kernel_list.h"
#include "kernels/kernel_table.h"

namespace sparsed::cuda {

/// With one column. The first that serves is the plain kernel then.
std::span<const SpmmKernel> CsrVectorSpmm();
/// The first is the plain kernel.
std::span<const SpmmKernel> CsrRowsSpmm();
/// The first of these that serves, for other layouts that have a part in CSR; not transposed.
const SpmmKernel& CsrRowsFor(const Problem& problem, const Layout& csr);
SpmmKernel CsrMergeSpmm();
SpmmKernel CsrTransposedSpmm();
SpmmKernel RowPanelsSpmm();
SpmmKernel AsptSpmm();
SpmmKernel RowPanelsMmaSpmm();
SpmmKernel RowSegmentsSpmm();
SpmmKernel RowSegmentsTransposedSpmm();
SpmmKernel DcsrSpmm();
/// The vendor's library; empty if it cannot be opened.
std::span<const SpmmKernel> CusparseSpmm();
/// Likewise with one column.
std::span<const SpmmKernel> CusparseSpmv();

/// All of them, the plain kernel first.
inline std::vector<SpmmKernel> ListSpmm() {
  return KernelList<SpmmKernel>(CsrVectorSpmm(), CsrRowsSpmm(), CsrMergeSpmm(), CsrTransposedSpmm(),
                                RowPanelsSpmm(), RowPanelsMmaSpmm(), AsptSpmm(), RowSegmentsSpmm(),
                                RowSegmentsTransposedSpmm(), DcsrSpmm(), CusparseSpmv(),
                                CusparseSpmm());
}

}  // namespace sparsed::cuda
