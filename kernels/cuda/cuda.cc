#include "kernels/cuda/cuda.h"

#include <vector>

#include "kernels/cuda/sddmm/sddmm.h"
#include "kernels/cuda/spgemm/spgemm.h"
#include "kernels/cuda/spmm/spmm.h"

namespace sparsed::cuda {

std::span<const SpmmKernel> SpmmKernels() {
  static const std::vector<SpmmKernel> kernels = ListSpmm();
  return kernels;
}

std::span<const SddmmKernel> SddmmKernels() {
  static const std::vector<SddmmKernel> kernels = ListSddmm();
  return kernels;
}

std::span<const SpgemmKernel> SpgemmKernels() {
  static const std::vector<SpgemmKernel> kernels = ListSpgemm();
  return kernels;
}

}  // namespace sparsed::cuda
