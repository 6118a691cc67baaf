#include "kernels/kernel_table.h"

#include "kernels/cpu/sddmm/sddmm.h"
#include "kernels/cpu/spgemm/spgemm.h"
#include "kernels/cpu/spmm/spmm.h"
#include "kernels/cuda/cuda.h"
#include "kernels/kernel_list.h"

namespace sparsed {
namespace {

template <typename Kernel>
const Kernel* Find(std::span<const Kernel> kernels, std::string_view name) {
  for (const Kernel& kernel : kernels) {
    if (kernel.name == name) return &kernel;
  }
  return nullptr;
}

}  // namespace

std::span<const SpmmKernel> SpmmKernels() {
  static const auto kernels = KernelList<SpmmKernel>(cpu::ListSpmm(), cuda::SpmmKernels());
  return kernels;
}

std::span<const SddmmKernel> SddmmKernels() {
  static const auto kernels = KernelList<SddmmKernel>(cpu::ListSddmm(), cuda::SddmmKernels());
  return kernels;
}

std::span<const SpgemmKernel> SpgemmKernels() {
  static const auto kernels = KernelList<SpgemmKernel>(cpu::ListSpgemm(), cuda::SpgemmKernels());
  return kernels;
}

const SpmmKernel* FindSpmmKernel(std::string_view name) { return Find(SpmmKernels(), name); }
const SddmmKernel* FindSddmmKernel(std::string_view name) { return Find(SddmmKernels(), name); }
const SpgemmKernel* FindSpgemmKernel(std::string_view name) { return Find(SpgemmKernels(), name); }

}  // namespace sparsed
