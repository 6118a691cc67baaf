#include "engine/memory/caller_memory.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "base/mutex.h"
#include "kernels/cuda/device.h"

namespace sparsed::engine {

class CallerMemory::State : public std::enable_shared_from_this<State> {
 public:
  absl::StatusOr<Buffer> Open(const Key& key, uint64_t allocation, size_t bytes) {
    const MutexLock lock(mutex_);
    if (!open_.contains(key)) {
      const cuda::DeviceScope scope(key.first);
      absl::StatusOr<Buffer> memory = cuda::OpenIpcMemory(key.second);
      if (!memory.ok()) return memory;
      open_[key] = {*std::move(memory), allocation, 0};
    }
    Opened& opened = open_[key];
    absl::Status status;
    if (opened.allocation != allocation) {
      status = absl::FailedPreconditionError(
          "another allocation, which was where this one is, is still used; let go of it, and try "
          "again");
    } else if (bytes > opened.memory.size()) {
      status = absl::InvalidArgumentError(
          fmt::format("the allocation has {} bytes, not {}", opened.memory.size(), bytes));
    }
    if (!status.ok()) {
      if (opened.users == 0) open_.erase(key);
      return status;
    }
    ++opened.users;
    return Buffer(std::shared_ptr<std::byte>(
                      opened.memory.mutable_data(),
                      [self = shared_from_this(), key](std::byte*) { self->Close(key); }),
                  bytes);
  }

 private:
  void Close(const Key& key) {
    const MutexLock lock(mutex_);
    const auto found = open_.find(key);
    if (--found->second.users == 0) open_.erase(found);
  }

  struct Opened {
    Buffer memory;
    uint64_t allocation = 0;
    int64_t users = 0;
  };
  /// Held while the driver opens and closes, so that neither meets the other of the same handle.
  /// Nobody waits for it but who opens and closes.
  Mutex mutex_;
  std::map<Key, Opened> open_ ABSL_GUARDED_BY(mutex_);
};

CallerMemory::CallerMemory() : state_(std::make_shared<State>()) {}
CallerMemory::~CallerMemory() = default;

absl::StatusOr<Buffer> CallerMemory::Open(int ordinal, const cuda::IpcHandle& handle,
                                          uint64_t allocation, size_t bytes) {
  return state_->Open({ordinal, handle}, allocation, bytes);
}

}  // namespace sparsed::engine
