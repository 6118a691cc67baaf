#include "engine/memory/lazy_array.h"

namespace sparsed::engine {

absl::StatusOr<Array> LazyArray::Get() {
  std::lock_guard lock(mutex_);
  if (!resident_) {
    absl::StatusOr<Array> loaded = loader_();
    if (!loaded.ok()) return loaded.status();
    array_ = *std::move(loaded);
    loader_ = nullptr;  // Lets go of the file, or of the device memory.
    resident_.store(true, std::memory_order_release);
  }
  return array_;
}

}  // namespace sparsed::engine
