// Cuts arrays out of one piece of memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsed {

/// Takes arrays aligned to kAlignment bytes, as the memory is, from its front; with no memory, only
/// counts.
template <size_t kAlignment>
class Carver {
 public:
  explicit Carver(std::byte* memory) : memory_(memory) {}
  template <typename T>
  T* Take(int64_t count) {
    T* const taken = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + bytes_);
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return taken;
  }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  size_t bytes_ = 0;
};

}  // namespace sparsed
