// A caller's stream, as far as those need to know of it who queue kernels there: which one it is,
// and whether a graph is made of it.
#pragma once

#include <compare>
#include <cstdint>
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

/// No two queues of work have the same in the life of a process, while handles of streams are used
/// again, and one of them (cudaStreamPerThread) means another queue on each thread.
struct QueueId {
  uint64_t stream = 0;
  uint64_t thread = 0;  ///< that calls, where the handle means its own; else 0
  auto operator<=>(const QueueId&) const = default;
};
/// Of the stream for the thread that calls.
absl::StatusOr<QueueId> IdOf(const Stream& stream);

/// Whether what is queued in the stream becomes part of a graph instead, or would, if that had not
/// failed already.
absl::StatusOr<bool> IsCaptured(const Stream& stream);

/// Keeps `kept` for as long as the graph that the stream is captured into, or anything that is made
/// of it, exists. The last reference goes on a thread of the driver's, which may call nothing of
/// CUDA's.
absl::Status KeepWithGraph(const Stream& stream, std::shared_ptr<const void> kept);

}  // namespace sparsed::cuda
