// Preparation on the GPU: the parts of builders that pay there. Each gives bit by bit what the
// builder on the CPU gives. Without CUDA in the build they answer UNAVAILABLE.
//
// Errors: RESOURCE_EXHAUSTED for memory on either side; UNAVAILABLE, INTERNAL as in device.h. When
// they return, nothing that they queued still runs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/array.h"
#include "kernels/build_accelerator.h"
#include "kernels/cuda/device.h"
#include "kernels/formats/csr.h"
#include "kernels/formats/row_segments.h"
#include "kernels/layout.h"
#include "kernels/pipeline.h"

namespace sparsed::cuda {

/// A pattern's arrays, copied to the device; the view is valid as long as this lives.
class PatternCopy {
 public:
  static absl::StatusOr<PatternCopy> Make(Stream& stream, MemorySource& memory, const CsrView& csr);
  const CsrView& view() const { return view_; }

 private:
  CsrView view_;
  Buffer offsets_, columns_, order_;
};

/// BuildRowSegments (kernels/formats/row_segments.h) of a pattern on the device, as are the
/// layout's arrays; `memory` is the device's, for them and for scratch: 6 bytes a nonzero, 40 a
/// segment and a panel, 16 a row that is permuted.
absl::StatusOr<Layout> BuildRowSegmentsOnDevice(Stream& stream, MemorySource& memory,
                                                const CsrView& csr,
                                                const RowSegmentsOptions& options);

/// A GPU for the builders of layouts.
class GpuBuildAccelerator final : public BuildAccelerator {
 public:
  /// `memory` is the device's. Both outlive it.
  GpuBuildAccelerator(Stream& stream, MemorySource& memory) : stream_(stream), memory_(memory) {}

  /// Scratch: the pattern, and 28 bytes and a group's keys a row.
  absl::StatusOr<std::unique_ptr<MinHashBuckets>> MakeMinHashBuckets(const CsrView& csr,
                                                                     std::span<const int32_t> rows,
                                                                     int bsize, int bands) override;
  absl::StatusOr<Layout> BuildRowSegments(const CsrView& csr, const RowSegmentsOptions& options,
                                          const BuildContext& context) override;
  int64_t calls() const override { return calls_; }

 private:
  Stream& stream_;
  MemorySource& memory_;
  int64_t calls_ = 0;
};

}  // namespace sparsed::cuda
