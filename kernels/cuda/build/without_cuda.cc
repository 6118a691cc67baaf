// Built in place of this folder where there is no CUDA compiler: nothing is built on a GPU.
#include "kernels/cuda/build/build.h"

namespace sparsed::cuda {
namespace {

absl::Status NotBuilt() { return absl::UnavailableError("this build has no CUDA"); }

}  // namespace

absl::StatusOr<PatternCopy> PatternCopy::Make(Workbench&, const CsrView&) { return NotBuilt(); }
absl::StatusOr<Layout> BuildRowSegmentsThere(Workbench&, const CsrView&,
                                             const RowSegmentsOptions&) {
  return NotBuilt();
}
absl::StatusOr<Layout> BuildRowSegments(Workbench&, const CsrView&, const RowSegmentsOptions&,
                                        const BuildContext&) {
  return NotBuilt();
}

struct MinHashBuckets::State {};
absl::StatusOr<std::unique_ptr<MinHashBuckets>> MinHashBuckets::Make(Workbench&, const CsrView&,
                                                                     std::span<const int32_t>, int,
                                                                     int) {
  return NotBuilt();
}
MinHashBuckets::~MinHashBuckets() = default;
absl::Status MinHashBuckets::Sort(int, std::span<uint64_t>) { return NotBuilt(); }

}  // namespace sparsed::cuda
