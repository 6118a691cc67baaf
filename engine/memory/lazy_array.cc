#include "engine/memory/lazy_array.h"

#include <chrono>

namespace sparsed::engine {
namespace {

absl::Status CheckStop(LazyArray::Stop stop) {
  if (stop == nullptr || !stop->load(std::memory_order_relaxed)) return absl::OkStatus();
  return absl::CancelledError("cancelled while waiting for an array");
}

}  // namespace

absl::StatusOr<Array> LazyArray::Get(Stop stop) {
  if (resident()) return array_;
  std::unique_lock lock(mutex_);
  while (loading_) {
    if (absl::Status status = CheckStop(stop); !status.ok()) return status;
    if (stop == nullptr) {
      loaded_.wait(lock);
    } else {
      loaded_.wait_for(lock, std::chrono::milliseconds(10));  // a flag wakes nobody
    }
  }
  if (resident()) return array_;
  if (absl::Status status = CheckStop(stop); !status.ok()) return status;
  loading_ = true;
  lock.unlock();
  absl::StatusOr<Array> loaded = loader_(stop);
  if (loaded.ok()) {
    array_ = *loaded;
    loader_ = nullptr;  // Lets go of the file, or of the device memory.
    resident_.store(true, std::memory_order_release);
  }
  lock.lock();
  loading_ = false;
  loaded_.notify_all();
  return loaded;
}

}  // namespace sparsed::engine
