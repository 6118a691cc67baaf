// Pinned host memory that copies to and from the device pass through: a bounded pool of equal
// blocks.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "kernels/array.h"

namespace sparsed::engine {

class Staging;

/// One block, given back when it is destroyed. Move-only.
class StagingBlock {
 public:
  StagingBlock() = default;
  StagingBlock(StagingBlock&& other) noexcept { *this = std::move(other); }
  StagingBlock& operator=(StagingBlock&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(buffer_, other.buffer_);
    return *this;
  }
  ~StagingBlock();
  std::byte* data() { return buffer_.mutable_data(); }
  size_t size() const { return buffer_.size(); }
  explicit operator bool() const { return pool_ != nullptr; }

 private:
  friend class Staging;
  StagingBlock(Staging* pool, Buffer buffer) : pool_(pool), buffer_(std::move(buffer)) {}
  Staging* pool_ = nullptr;
  Buffer buffer_;
};

/// Blocks are held for one copy, never while anybody waits for a client. Thread-safe.
class Staging {
 public:
  /// At least two blocks; the pool outlives its blocks.
  static absl::StatusOr<std::unique_ptr<Staging>> Create(MemorySource& pinned, size_t block_bytes,
                                                         int blocks);
  size_t block_bytes() const { return block_bytes_; }
  /// Waits for a block; an empty one once it is closed. Whoever has one and wants a second must use
  /// TryTake.
  StagingBlock Take();
  /// An empty one if at most one is free: the last is for those who wait. So blocks that are on
  /// their way to a busy card keep nobody waiting for longer than another's copy.
  StagingBlock TryTake();
  /// From now on nobody gets a block: copies that use them may run, and nobody can say until when.
  void Close();

 private:
  friend class StagingBlock;
  Staging(size_t block_bytes, std::vector<Buffer> blocks)
      : block_bytes_(block_bytes), free_(std::move(blocks)) {}
  void Return(Buffer buffer);

  const size_t block_bytes_;
  Mutex mutex_;
  CondVar returned_;
  std::vector<Buffer> free_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace sparsed::engine
