// Built in place of this folder where there is no CUDA compiler: nothing is built on a GPU.
#include "kernels/cuda/build/build.h"

namespace sparsed::cuda {
namespace {

absl::Status NotBuilt() { return absl::UnavailableError("this build has no CUDA"); }

}  // namespace

absl::StatusOr<PatternCopy> PatternCopy::Make(Stream&, MemorySource&, const CsrView&) {
  return NotBuilt();
}
absl::StatusOr<Layout> BuildRowSegmentsOnDevice(Stream&, MemorySource&, const CsrView&,
                                                const RowSegmentsOptions&) {
  return NotBuilt();
}
absl::StatusOr<std::unique_ptr<MinHashBuckets>> GpuBuildAccelerator::MakeMinHashBuckets(
    const CsrView&, std::span<const int32_t>, int, int) {
  return NotBuilt();
}
absl::StatusOr<Layout> GpuBuildAccelerator::BuildRowSegments(const CsrView&,
                                                             const RowSegmentsOptions&,
                                                             const BuildContext&) {
  return NotBuilt();
}

}  // namespace sparsed::cuda
