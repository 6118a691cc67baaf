// Arrays from one piece of memory, one behind the other.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsed {

/// Gives arrays aligned to kAlignment bytes, as the memory is, that has room for all of them and
/// outlives them; without memory (null) gives null and only counts.
template <size_t kAlignment>
class BumpAllocator {
 public:
  explicit BumpAllocator(std::byte* memory) : memory_(memory) {}
  template <typename T>
  T* Take(int64_t count) {
    T* const taken = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + bytes_);
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return taken;
  }
  /// Of all arrays so far, with their alignment.
  size_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  size_t bytes_ = 0;
};

}  // namespace sparsed
