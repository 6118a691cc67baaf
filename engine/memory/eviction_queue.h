// What may leave host memory because it can be had again: in the order of its last use.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace sparsed::engine {

class EvictionQueue;
class MemoryOwner;

/// Something that holds host memory and can be had again, from the disk or by computing. Owned by
/// shared_ptr where it is in a queue, which it leaves with its destruction.
class Evictable : public std::enable_shared_from_this<Evictable> {
 public:
  Evictable() = default;
  virtual ~Evictable();
  Evictable(const Evictable&) = delete;
  Evictable& operator=(const Evictable&) = delete;

 protected:
  friend class EvictionQueue;
  /// Frees it, or a part of it, and leaves the queue if nothing is left; false if somebody uses it,
  /// or it could not be had again now. Called without locks, from any thread.
  virtual bool Evict() = 0;
  /// Nobody uses it now.
  virtual bool idle() const = 0;

 private:
  struct Place {
    Evictable* item;
    int64_t bytes;
    const MemoryOwner* payer;
  };
  std::shared_ptr<EvictionQueue> queue_;  ///< null: it never was in one
  std::list<Place>::iterator place_;      ///< guarded by the queue's mutex, as is what follows
  bool queued_ = false;
};

/// Thread-safe. Takes no lock of an item's while it holds its own, so that items may call it under
/// theirs.
class EvictionQueue : public std::enable_shared_from_this<EvictionQueue> {
 public:
  /// `item`, which frees `bytes` when nobody uses it, was used just now: it goes last. Of one item
  /// always the same queue, and the same payer; null: nobody pays for it.
  void Use(Evictable& item, int64_t bytes, const MemoryOwner* payer = nullptr);
  void Remove(Evictable& item);

  /// Whether so much is queued that is not in use now, of what `payer` pays for or (null) of all.
  /// Looks at one item after the other.
  bool HasIdle(int64_t bytes, const MemoryOwner* payer = nullptr);
  /// Evicts what was used longest ago and is not in use now; false if there is nothing.
  bool EvictOne();
  /// Likewise, of what `payer` pays for; looks at all items.
  bool EvictOne(const MemoryOwner* payer);
  /// Of all that is queued, in use or not.
  int64_t bytes() const { return bytes_; }
  /// Times that EvictOne freed something.
  int64_t evictions() const { return evictions_; }

  /// Counts bytes that came from the disk: for the first time, or again after they were evicted.
  void CountRead(int64_t bytes, bool again) { (again ? read_again_ : read_first_) += bytes; }
  int64_t read_first_bytes() const { return read_first_; }
  int64_t read_again_bytes() const { return read_again_; }

 private:
  using Items = std::vector<std::pair<std::weak_ptr<Evictable>, int64_t>>;
  Items ItemsOf(const MemoryOwner* payer);

  Mutex mutex_;
  std::list<Evictable::Place> items_ ABSL_GUARDED_BY(mutex_);  ///< what was used longest ago first
  std::atomic<int64_t> bytes_ = 0, evictions_ = 0, read_first_ = 0, read_again_ = 0;
};

}  // namespace sparsed::engine
