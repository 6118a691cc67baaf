// A memory source that counts, and refuses past a limit.
#pragma once

#include <algorithm>
#include <limits>
#include <memory>
#include <mutex>

#include "absl/status/statusor.h"
#include "kernels/array.h"

namespace sparsed::test {

class CountingMemory final : public MemorySource {
 public:
  explicit CountingMemory(int64_t limit = std::numeric_limits<int64_t>::max()) : limit_(limit) {}

  absl::StatusOr<Buffer> Allocate(size_t bytes) override {
    const auto size = static_cast<int64_t>(bytes);
    {
      std::lock_guard lock(mutex_);
      if (size > limit_ - held_) return absl::ResourceExhaustedError("the test's limit");
      held_ += size;
      peak_ = std::max(peak_, held_);
      ++allocations_;
    }
    auto buffer = std::make_shared<Buffer>(HeapMemory().Allocate(bytes).value());
    std::byte* const data = buffer->mutable_data();
    return Buffer(std::shared_ptr<std::byte>(data,
                                             [this, buffer, size](std::byte*) {
                                               std::lock_guard lock(mutex_);
                                               held_ -= size;
                                             }),
                  bytes);
  }

  int64_t held() const { return held_; }
  int64_t peak() const { return peak_; }
  int64_t allocations() const { return allocations_; }

 private:
  const int64_t limit_;
  std::mutex mutex_;
  int64_t held_ = 0;
  int64_t peak_ = 0;
  int64_t allocations_ = 0;
};

}  // namespace sparsed::test
