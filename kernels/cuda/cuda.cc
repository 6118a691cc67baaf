#include "kernels/cuda/cuda.h"

#include <vector>

#include "kernels/cuda/sddmm/sddmm.h"
#include "kernels/cuda/spmm/spmm.h"

namespace sparsed::cuda {

std::span<const SpmmKernel> SpmmKernels() {
  static const std::vector<SpmmKernel> kernels = [] {
    std::vector<SpmmKernel> list = {CsrSpmm(),
                                    CsrSlab64Spmm(),
                                    CsrSlab32Spmm(),
                                    CsrSlab16Spmm(),
                                    CsrRowsSpmm(),
                                    CsrRows8Spmm(),
                                    CsrSplitRowsSpmm(),
                                    CsrSplitRows8Spmm(),
                                    CsrSplitRowsSlab64Spmm(),
                                    CsrSplitRowsSlab32Spmm(),
                                    CsrSplitRowsSlab16Spmm(),
                                    CsrTransposedSpmm(),
                                    RowPanelsSpmm()};
    const std::span<const SpmmKernel> vendors = CusparseSpmm();
    list.insert(list.end(), vendors.begin(), vendors.end());
    return list;
  }();
  return kernels;
}

std::span<const SddmmKernel> SddmmKernels() {
  static const std::vector<SddmmKernel> kernels = [] {
    std::vector<SddmmKernel> list = {CsrSddmm()};
    const std::span<const SddmmKernel> vendors = CusparseSddmm();
    list.insert(list.end(), vendors.begin(), vendors.end());
    return list;
  }();
  return kernels;
}

}  // namespace sparsed::cuda
