// Arrays and layouts that are brought into host memory when they are needed.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "engine/memory/eviction_queue.h"
#include "kernels/array.h"
#include "kernels/layout.h"

namespace sparsed::engine {

/// Something that is in memory, or elsewhere and brought here when it is needed. What the disk has
/// may leave memory again while nobody holds it (EvictionQueue). `T` shares its memory with its
/// copies: an Array, or a layout. Thread-safe.
template <typename T>
class Lazy final : public Evictable {
 public:
  using Stop = const std::atomic<bool>*;
  /// Ends soon with CANCELLED when the flag becomes true; it may be null.
  using Loader = std::function<absl::StatusOr<T>(Stop)>;
  /// On the disk, where it can be read any number of times; or made, as often, of what is
  /// elsewhere.
  struct DiskCopy {
    Loader read;
    /// False while it could not be read, because the disk is gone, say: then it stays in memory.
    std::function<bool()> readable;
    std::shared_ptr<EvictionQueue> evictions;
    const MemoryOwner* payer = nullptr;  ///< of the memory that it is read into; null: nobody
    bool is_read = true;                 ///< and counted as such; else it is made
  };

  /// In memory and nowhere else, as far as is known.
  explicit Lazy(T value);
  /// On a device: brought here once.
  explicit Lazy(Loader loader) : loader_(std::move(loader)) {}
  explicit Lazy(DiskCopy disk) : disk_(std::make_shared<const DiskCopy>(std::move(disk))) {}

  /// Reads it if it is not here: never on a reactor's thread. It stays here while the caller holds
  /// what it got. DATA_LOSS if it is damaged, RESOURCE_EXHAUSTED without memory; a failed read is
  /// tried again by the next caller. CANCELLED soon after `stop` became true; whoever else waits
  /// for it goes on, and one of them reads it.
  absl::StatusOr<T> Get(Stop stop = nullptr);
  /// What is here now; a T() if it would have to be read.
  T Resident() const;
  bool resident() const { return resident_.load(std::memory_order_acquire); }
  /// It would be read from the disk.
  bool on_disk() const;
  /// It was stored: from now on it may leave memory.
  void SetDiskCopy(DiskCopy disk);

 protected:
  bool Evict() override;
  bool idle() const override;

 private:
  /// It was used just now.
  void UsedLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  CondVar loaded_;
  bool loading_ ABSL_GUARDED_BY(mutex_) = false;  ///< by one thread, without the lock
  bool evicted_ ABSL_GUARDED_BY(mutex_) = false;  ///< it was here before
  Loader loader_ ABSL_GUARDED_BY(mutex_);         ///< null: it is on the disk, or was brought here
  std::shared_ptr<const DiskCopy> disk_ ABSL_GUARDED_BY(mutex_);  ///< null: not there
  T value_ ABSL_GUARDED_BY(mutex_){};
  std::atomic<bool> resident_ = false;  ///< readable while another thread reads the disk
};

using LazyArray = Lazy<Array>;
using LazyLayout = Lazy<std::shared_ptr<const Layout>>;
extern template class Lazy<Array>;
extern template class Lazy<std::shared_ptr<const Layout>>;

}  // namespace sparsed::engine
