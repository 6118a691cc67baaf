// The caller's streams and its GPU's memory, for those who know nothing of kernels/.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/descriptor.h"
#include "client/src/shared_memory.h"

namespace sparsed {
inline namespace client {

/// As cuda::QueueId of kernels/cuda/capture.h.
struct StreamId {
  uint64_t stream = 0, thread = 0;
  auto operator<=>(const StreamId&) const = default;
};
absl::StatusOr<StreamId> IdOfStream(int gpu, void* stream);
/// OK, or FAILED_PRECONDITION, if a graph is made of the stream.
absl::Status CheckNotCaptured(int gpu, void* stream);
/// Queues a copy of rows in the GPU's memory.
absl::Status QueueCopy(int gpu, void* stream, void* to, size_t to_pitch, const void* from,
                       size_t from_pitch, size_t row_bytes, size_t rows);
absl::Status AwaitStream(int gpu, void* stream);

/// A point in a stream.
class StreamPoint {
 public:
  /// The stream's present end.
  static absl::StatusOr<std::unique_ptr<StreamPoint>> Of(int gpu, void* stream);
  virtual ~StreamPoint() = default;
  virtual bool Passed() const = 0;
};

/// Maps memory of the GPU that a server handed over, to read and to write. When it goes, it waits
/// for all that this process has under way on the GPU. INVALID_ARGUMENT.
absl::StatusOr<std::unique_ptr<SharedBlock>> MapSharedOnGpu(const Descriptor& file, size_t bytes,
                                                            int gpu);

}  // namespace client
}  // namespace sparsed
