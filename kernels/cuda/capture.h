// CUDA graphs, as far as those need to know of them who queue kernels in a caller's stream.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device.h"

namespace sparsed::cuda {

/// While it lives, its thread may allocate, and ask events, though some thread captures a stream.
class CaptureScope {
 public:
  CaptureScope();
  CaptureScope(const CaptureScope&) = delete;
  CaptureScope& operator=(const CaptureScope&) = delete;
  ~CaptureScope();

 private:
  int before_ = 0;
};

/// Whether what is queued in the stream becomes part of a graph instead, or would, if that had not
/// failed already.
absl::StatusOr<bool> IsCaptured(const Stream& stream);

/// Keeps `kept` for as long as the graph that the stream is captured into, or anything that is made
/// of it, exists. The last reference goes on a thread of the driver's, which may call nothing of
/// CUDA's.
absl::Status KeepWithGraph(const Stream& stream, std::shared_ptr<const void> kept);

}  // namespace sparsed::cuda
