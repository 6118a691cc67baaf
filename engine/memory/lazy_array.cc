#include "engine/memory/lazy_array.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/memory/budget.h"

namespace sparsed::engine {
namespace {

template <typename T>
absl::Status CheckStop(typename Lazy<T>::Stop stop) {
  if (stop == nullptr || !stop->load(std::memory_order_relaxed)) return absl::OkStatus();
  return absl::CancelledError("cancelled while waiting for an array");
}

int64_t Counted(const Array& array) { return CountedBytes(array); }
int64_t Counted(const std::shared_ptr<const Layout>& layout) { return CountedBytes(*layout); }
int64_t BytesOf(const Array& array) { return static_cast<int64_t>(array.bytes()); }
int64_t BytesOf(const std::shared_ptr<const Layout>& layout) { return layout->bytes(); }

/// Somebody else holds it, or its memory.
bool IsShared(const Array& array) { return array.buffer.lifetime().use_count() > 1; }
bool IsShared(const std::shared_ptr<const Layout>& layout) {
  return layout.use_count() > 1 ||
         std::ranges::any_of(layout->arrays, [](const Array& array) { return IsShared(array); });
}

}  // namespace

template <typename T>
Lazy<T>::Lazy(T value) : value_(std::move(value)), resident_(true) {}

template <typename T>
void Lazy<T>::UsedLocked() {
  if (disk_ == nullptr) return;
  if (const int64_t bytes = Counted(value_); bytes > 0)
    disk_->evictions->Use(*this, bytes, disk_->payer);
}

template <typename T>
absl::StatusOr<T> Lazy<T>::Get(Stop stop) {
  MutexLock lock(mutex_);
  while (!resident() && loading_) {
    if (absl::Status status = CheckStop<T>(stop); !status.ok()) return status;
    if (stop == nullptr) {
      loaded_.Wait(mutex_);
    } else {
      loaded_.WaitFor(mutex_, std::chrono::milliseconds(10));  // a flag wakes nobody
    }
  }
  if (resident()) {
    UsedLocked();
    return value_;
  }
  if (absl::Status status = CheckStop<T>(stop); !status.ok()) return status;
  loading_ = true;
  const std::shared_ptr<const DiskCopy> disk = disk_;
  Loader loader = std::exchange(loader_, nullptr);
  lock.Unlock();
  absl::StatusOr<T> loaded = disk == nullptr ? loader(stop) : disk->read(stop);
  if (loaded.ok()) loader = nullptr;  // Lets go of the device memory, without the lock.
  lock.Lock();
  loading_ = false;
  loader_ = std::move(loader);
  if (loaded.ok()) {
    value_ = *loaded;
    resident_.store(true, std::memory_order_release);
    if (disk != nullptr && disk->is_read) disk->evictions->CountRead(BytesOf(value_), evicted_);
    UsedLocked();
  }
  lock.Unlock();
  loaded_.NotifyAll();
  return loaded;
}

template <typename T>
T Lazy<T>::Resident() const {
  const MutexLock lock(mutex_);
  return value_;
}

template <typename T>
bool Lazy<T>::on_disk() const {
  const MutexLock lock(mutex_);
  return disk_ != nullptr && !resident();
}

template <typename T>
void Lazy<T>::SetDiskCopy(DiskCopy disk) {
  auto copy = std::make_shared<const DiskCopy>(std::move(disk));
  const MutexLock lock(mutex_);
  disk_.swap(copy);
  if (resident()) UsedLocked();
}

template <typename T>
bool Lazy<T>::Evict() {
  std::shared_ptr<const DiskCopy> disk;
  {
    const MutexLock lock(mutex_);
    if (!resident() || IsShared(value_)) return false;
    disk = disk_;
  }
  if (disk == nullptr || !disk->readable()) return false;
  T evicted{};  // freed without the lock
  const MutexLock lock(mutex_);
  // Nobody gets hold of it but by Get, so who does not share it now will not.
  if (!resident() || IsShared(value_)) return false;
  std::swap(evicted, value_);
  resident_.store(false, std::memory_order_release);
  evicted_ = true;
  disk->evictions->Remove(*this);
  return true;
}

template <typename T>
bool Lazy<T>::idle() const {
  const MutexLock lock(mutex_);
  return resident() && !IsShared(value_);
}

template class Lazy<Array>;
template class Lazy<std::shared_ptr<const Layout>>;

}  // namespace sparsed::engine
