#include "engine/memory/staging.h"

#include <algorithm>
#include <memory>

namespace sparsed::engine {

StagingBlock::~StagingBlock() {
  if (pool_ != nullptr) pool_->Return(std::move(buffer_));
}

absl::StatusOr<std::unique_ptr<Staging>> Staging::Create(MemorySource& pinned, size_t block_bytes,
                                                         int blocks) {
  std::vector<Buffer> buffers;
  for (int i = 0; i < std::max(2, blocks); ++i) {
    absl::StatusOr<Buffer> buffer = pinned.Allocate(block_bytes);
    if (!buffer.ok()) return buffer.status();
    buffers.push_back(*std::move(buffer));
  }
  return std::unique_ptr<Staging>(new Staging(block_bytes, std::move(buffers)));
}

StagingBlock Staging::Take() {
  const MutexLock lock(mutex_);
  while (!closed_ && free_.empty()) returned_.Wait(mutex_);
  if (closed_) return StagingBlock();
  StagingBlock block(this, std::move(free_.back()));
  free_.pop_back();
  return block;
}

StagingBlock Staging::TryTake() {
  const MutexLock lock(mutex_);
  if (closed_ || free_.size() <= 1) return StagingBlock();
  StagingBlock block(this, std::move(free_.back()));
  free_.pop_back();
  return block;
}

void Staging::Close() {
  {
    const MutexLock lock(mutex_);
    closed_ = true;
  }
  returned_.NotifyAll();
}

void Staging::Return(Buffer buffer) {
  {
    const MutexLock lock(mutex_);
    free_.push_back(std::move(buffer));
  }
  returned_.NotifyOne();
}

}  // namespace sparsed::engine
