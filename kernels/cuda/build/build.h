// Preparation on the GPU: the parts of builders that pay there. Each gives bit by bit what the
// builder on the CPU gives. Without CUDA in the build they answer UNAVAILABLE.
//
// Errors: RESOURCE_EXHAUSTED for memory on either side; UNAVAILABLE, INTERNAL as in device.h. When
// they return, nothing that they queued still runs.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/array.h"
#include "kernels/cuda/device.h"
#include "kernels/formats/csr.h"
#include "kernels/formats/row_segments.h"
#include "kernels/layout.h"

namespace sparsed::cuda {

/// What builders may use of the GPU. Used by one thread at a time.
struct Workbench {
  Stream& stream;
  MemorySource& memory;  ///< of the device
};

/// A pattern's arrays, copied to the device; the view is valid as long as this lives.
class PatternCopy {
 public:
  static absl::StatusOr<PatternCopy> Make(Workbench& workbench, const CsrView& csr);
  const CsrView& view() const { return view_; }

 private:
  CsrView view_;
  Buffer offsets_, columns_, order_;
};

/// BuildRowSegments (kernels/formats/row_segments.h) of a pattern on the device; the layout's
/// arrays are there too. Scratch: 6 bytes a nonzero, 40 a segment and a
/// panel, 16 a row that is permuted.
absl::StatusOr<Layout> BuildRowSegmentsThere(Workbench& workbench, const CsrView& csr,
                                             const RowSegmentsOptions& options);
/// The same of a pattern on the host, and back to `memory` there.
absl::StatusOr<Layout> BuildRowSegments(Workbench& workbench, const CsrView& csr,
                                        const RowSegmentsOptions& options, MemorySource& memory);

}  // namespace sparsed::cuda
