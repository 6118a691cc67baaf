#include "kernels/kernel_table.h"

#include <vector>

#include "kernels/cpu/sddmm/sddmm.h"
#include "kernels/cpu/spgemm/spgemm.h"
#include "kernels/cpu/spmm/spmm.h"
#include "kernels/cuda/cuda.h"

namespace sparsed {
namespace {

template <typename Kernel>
std::vector<Kernel> Joined(std::vector<Kernel> kernels, std::span<const Kernel> others) {
  kernels.insert(kernels.end(), others.begin(), others.end());
  return kernels;
}

template <typename Kernel>
const Kernel* Find(std::span<const Kernel> kernels, std::string_view name) {
  for (const Kernel& kernel : kernels) {
    if (kernel.name == name) return &kernel;
  }
  return nullptr;
}

}  // namespace

std::span<const SpmmKernel> SpmmKernels() {
  static const std::vector<SpmmKernel> kernels = Joined<SpmmKernel>(
      {cpu::CsrSpmm(), cpu::CsrSlabSpmm(), cpu::CsrTransposedSpmm(), cpu::AsptSpmm(),
       cpu::DcsrSpmm(), cpu::RowSegmentsSpmm(), cpu::RowSegmentsTransposedSpmm()},
      cuda::SpmmKernels());
  return kernels;
}

std::span<const SddmmKernel> SddmmKernels() {
  static const std::vector<SddmmKernel> kernels = Joined<SddmmKernel>(
      {cpu::CsrSddmm(), cpu::CsrSlabSddmm(), cpu::AsptSddmm(), cpu::DcsrSddmm()},
      cuda::SddmmKernels());
  return kernels;
}

std::span<const SpgemmKernel> SpgemmKernels() {
  static const std::vector<SpgemmKernel> kernels = Joined<SpgemmKernel>(
      {cpu::RowGroupsSpgemm(), cpu::HashSpgemm(), cpu::DenseSpgemm(), cpu::HeapSpgemm(),
       cpu::DiagonalsSpgemm(), cpu::ColumnPartsSpgemm(), cpu::EvenRowsSpgemm(),
       cpu::SectionsSpgemm(), cpu::MaskedSpgemm()},
      Joined<SpgemmKernel>({cpu::GraphblasSpgemm().begin(), cpu::GraphblasSpgemm().end()},
                           cuda::SpgemmKernels()));
  return kernels;
}

const SpmmKernel* FindSpmmKernel(std::string_view name) { return Find(SpmmKernels(), name); }
const SddmmKernel* FindSddmmKernel(std::string_view name) { return Find(SddmmKernels(), name); }
const SpgemmKernel* FindSpgemmKernel(std::string_view name) { return Find(SpgemmKernels(), name); }

}  // namespace sparsed
