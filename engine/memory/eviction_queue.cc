#include "engine/memory/eviction_queue.h"

#include <cstddef>

namespace sparsed::engine {

Evictable::~Evictable() {
  if (queue_ != nullptr) queue_->Remove(*this);
}

void EvictionQueue::Use(Evictable& item, int64_t bytes, const MemoryOwner* payer) {
  const MutexLock lock(mutex_);
  if (item.queued_) {
    bytes_ += bytes - item.place_->bytes;
    item.place_->bytes = bytes;
    items_.splice(items_.end(), items_, item.place_);
    return;
  }
  if (item.queue_ == nullptr) item.queue_ = shared_from_this();
  item.place_ = items_.insert(items_.end(), {&item, bytes, payer});
  item.queued_ = true;
  bytes_ += bytes;
}

void EvictionQueue::Remove(Evictable& item) {
  const MutexLock lock(mutex_);
  if (!item.queued_) return;
  bytes_ -= item.place_->bytes;
  items_.erase(item.place_);
  item.queued_ = false;
}

EvictionQueue::Items EvictionQueue::ItemsOf(const MemoryOwner* payer) {
  Items items;
  const MutexLock lock(mutex_);
  items.reserve(items_.size());
  for (const Evictable::Place& place : items_) {
    if (payer != nullptr && place.payer != payer) continue;
    items.emplace_back(place.item->weak_from_this(), place.bytes);
  }
  return items;
}

bool EvictionQueue::HasIdle(int64_t bytes, const MemoryOwner* payer) {
  if (bytes > bytes_) return false;
  for (const auto& [weak, size] : ItemsOf(payer)) {
    if (bytes <= 0) break;
    const std::shared_ptr<Evictable> item = weak.lock();
    if (item != nullptr && item->idle()) bytes -= size;
  }
  return bytes <= 0;
}

bool EvictionQueue::EvictOne(const MemoryOwner* payer) {
  for (const auto& [weak, size] : ItemsOf(payer)) {
    const std::shared_ptr<Evictable> item = weak.lock();
    if (item == nullptr || !item->Evict()) continue;
    ++evictions_;
    return true;
  }
  return false;
}

bool EvictionQueue::EvictOne() {
  size_t left = 0;
  {
    const MutexLock lock(mutex_);
    left = items_.size();
  }
  for (; left > 0; --left) {
    std::shared_ptr<Evictable> oldest;
    {
      const MutexLock lock(mutex_);
      if (items_.empty()) return false;
      // One that is in use is used just now: it goes last, and the next caller does not meet it.
      items_.splice(items_.end(), items_, items_.begin());
      oldest = items_.back().item->weak_from_this().lock();  // null: it is being destroyed
    }
    if (oldest != nullptr && oldest->Evict()) {
      ++evictions_;
      return true;
    }
  }
  return false;
}

}  // namespace sparsed::engine
