#include "kernels/kernel_table.h"

#include <algorithm>

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

bool ReadsLayouts(Operation operation, std::string_view kind) {
  const auto reads = [&](const auto& kernels) {
    return kind != kCsr && std::ranges::any_of(kernels, [&](const auto& kernel) {
             return kernel.layout_kind == kind;
           });
  };
  switch (operation) {
    case Operation::kSpmm:
      return reads(SpmmKernels());
    case Operation::kSddmm:
      return reads(SddmmKernels());
    case Operation::kSpgemm:
      break;
  }
  return reads(SpgemmKernels());
}

absl::StatusOr<std::string> FormatPipeline(const SpgemmKernel& kernel, const Problem& problem,
                                           const CsrView& left, const CsrView& right) {
  if (kernel.pipeline != nullptr) return kernel.pipeline(problem, left, right);
  return std::string(kernel.layout_kind);
}

}  // namespace sparsed
