#include "kernels/cuda/cuda.h"

#include <vector>

#include "kernels/cuda/sddmm/sddmm.h"
#include "kernels/cuda/spgemm/spgemm.h"
#include "kernels/cuda/spmm/spmm.h"

namespace sparsed::cuda {

std::span<const SpmmKernel> SpmmKernels() {
  static const std::vector<SpmmKernel> kernels = [] {
    const std::span<const SpmmKernel> vectors = CsrVectorSpmm();
    std::vector<SpmmKernel> list(vectors.begin(), vectors.end());
    const std::span<const SpmmKernel> rows = CsrRowsSpmm();
    list.insert(list.end(), rows.begin(), rows.end());
    list.insert(list.end(),
                {CsrMergeSpmm(), CsrTransposedSpmm(), RowPanelsSpmm(), RowPanelsMmaSpmm(),
                 AsptSpmm(), RowSegmentsSpmm(), RowSegmentsTransposedSpmm(), DcsrSpmm()});
    for (const std::span<const SpmmKernel> vendors : {CusparseSpmv(), CusparseSpmm()}) {
      list.insert(list.end(), vendors.begin(), vendors.end());
    }
    return list;
  }();
  return kernels;
}

std::span<const SddmmKernel> SddmmKernels() {
  static const std::vector<SddmmKernel> kernels = [] {
    std::vector<SddmmKernel> list = {CsrSddmm(),       CsrNearSddmm(),   CsrSlabSddmm(),
                                     CooPanelsSddmm(), RowPanelsSddmm(), RowPanelsStagedSddmm(),
                                     AsptSddmm(),      DcsrSddmm()};
    const std::span<const SddmmKernel> vendors = CusparseSddmm();
    list.insert(list.end(), vendors.begin(), vendors.end());
    return list;
  }();
  return kernels;
}

std::span<const SpgemmKernel> SpgemmKernels() {
  static const std::vector<SpgemmKernel> kernels = [] {
    std::vector<SpgemmKernel> list = {RowBinsSpgemm(),    DiagonalsSpgemm(),  EvenRowsSpgemm(),
                                      BlocksSpgemm(),     ExpandSortSpgemm(), MergeSpgemm(),
                                      RowBitmapsSpgemm(), RowWordsSpgemm(),   MaskedSpgemm()};
    const std::span<const SpgemmKernel> vendors = CusparseSpgemm();
    list.insert(list.end(), vendors.begin(), vendors.end());
    return list;
  }();
  return kernels;
}

}  // namespace sparsed::cuda
