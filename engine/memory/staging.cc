#include "engine/memory/staging.h"

#include <algorithm>
#include <memory>

namespace sparsed::engine {

StagingBlock::~StagingBlock() {
  if (pool_ != nullptr) pool_->Return(std::move(buffer_));
}

absl::StatusOr<std::unique_ptr<Staging>> Staging::Create(MemorySource& pinned, size_t block_bytes,
                                                         int blocks) {
  std::unique_ptr<Staging> staging(new Staging(block_bytes));
  for (int i = 0; i < std::max(2, blocks); ++i) {
    absl::StatusOr<Buffer> buffer = pinned.Allocate(block_bytes);
    if (!buffer.ok()) return buffer.status();
    staging->free_.push_back(*std::move(buffer));
  }
  return staging;
}

StagingBlock Staging::Take() {
  std::unique_lock lock(mutex_);
  returned_.wait(lock, [this] { return closed_ || !free_.empty(); });
  if (closed_) return StagingBlock();
  StagingBlock block(this, std::move(free_.back()));
  free_.pop_back();
  return block;
}

StagingBlock Staging::TryTake() {
  std::lock_guard lock(mutex_);
  if (closed_ || free_.size() <= 1) return StagingBlock();
  StagingBlock block(this, std::move(free_.back()));
  free_.pop_back();
  return block;
}

void Staging::Close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  returned_.notify_all();
}

void Staging::Return(Buffer buffer) {
  {
    std::lock_guard lock(mutex_);
    free_.push_back(std::move(buffer));
  }
  returned_.notify_one();
}

}  // namespace sparsed::engine
