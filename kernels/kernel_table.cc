#include "kernels/kernel_table.h"

#include <array>

#include "kernels/cpu/sddmm/sddmm.h"
#include "kernels/cpu/spgemm/spgemm.h"
#include "kernels/cpu/spmm/spmm.h"

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
  static const std::array kernels = {cpu::CsrSpmm(), cpu::CsrSlabSpmm(), cpu::CsrTransposedSpmm(),
                                     cpu::AsptSpmm()};
  return kernels;
}

std::span<const SddmmKernel> SddmmKernels() {
  static const std::array kernels = {cpu::CsrSddmm(), cpu::CsrSlabSddmm(), cpu::AsptSddmm()};
  return kernels;
}

std::span<const SpgemmKernel> SpgemmKernels() {
  static const std::array kernels = {cpu::RowGroupsSpgemm(), cpu::HashSpgemm(), cpu::DenseSpgemm()};
  return kernels;
}

const SpmmKernel* FindSpmmKernel(std::string_view name) { return Find(SpmmKernels(), name); }
const SddmmKernel* FindSddmmKernel(std::string_view name) { return Find(SddmmKernels(), name); }
const SpgemmKernel* FindSpgemmKernel(std::string_view name) { return Find(SpgemmKernels(), name); }

}  // namespace sparsed
