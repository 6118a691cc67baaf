// Pieces of operands that go to the device as they arrive from clients.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "engine/memory/staging.h"
#include "kernels/array.h"
#include "kernels/cuda/device.h"

namespace sparsed::engine {

/// Copies staging blocks to the device, in one stream of its own. A block is another's only when
/// its copy is known to be done, whatever fails. Nothing here waits for the card but Drain.
/// Thread-safe.
class Pieces {
 public:
  /// `staging` outlives it.
  static absl::StatusOr<std::unique_ptr<Pieces>> Create(Staging& staging);
  ~Pieces();

  /// Where to write the next `bytes`; an empty one if blocks are smaller, or on their way.
  StagingBlock TakeBlock(size_t bytes);
  /// Queues the copy of the block's first `bytes` to `to`: memory that stays until a stream that
  /// awaits it is done, or KeepUntilSent has it.
  absl::Status Send(void* to, StagingBlock block, size_t bytes);
  /// What is queued in `stream` from now on waits for all pieces sent so far.
  absl::Status Await(const cuda::Stream& stream);
  /// Lets go of `buffers` when all pieces sent so far are there.
  void KeepUntilSent(std::vector<Buffer> buffers);
  /// Takes back the blocks whose copies are done.
  void Recycle();
  /// Waits for all pieces sent so far.
  absl::Status Drain();

 private:
  struct Sent {
    std::optional<cuda::Event> done;  ///< none: it could not be recorded, a later one tells
    StagingBlock block;
    std::vector<Buffer> kept;
  };

  Pieces(Staging& staging, cuda::Stream stream) : staging_(staging), stream_(std::move(stream)) {}
  /// Marks the end of what is queued so far.
  absl::StatusOr<cuda::Event> MarkLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Those whose copies are done, to be freed without the lock.
  std::vector<Sent> TakeDoneLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<Sent> TakeFirstLocked(size_t count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Staging& staging_;
  Mutex mutex_;  ///< held while something is queued in stream_
  cuda::Stream stream_;
  std::deque<Sent> sent_ ABSL_GUARDED_BY(mutex_);  ///< in the stream's order
  size_t taken_ ABSL_GUARDED_BY(mutex_) = 0;       ///< that were in sent_ before
  std::vector<cuda::Event> events_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sparsed::engine
