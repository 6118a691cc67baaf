// Scratch memory of builders: typed, counted by the memory source it comes from, freed by scope.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "kernels/array.h"

namespace sparsed {

/// Asks the system to back a large buffer by huge pages: for memory that is read here and there,
/// where each small page costs a look into the page table. Where it has none nothing happens.
void PreferHugePages(const Buffer& buffer);

/// `size` elements of a trivial type, uninitialised. Everything in a builder whose size grows with
/// rows or nonzeros is one of these, so that a preparation's memory is bounded.
template <typename T>
class Scratch {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  /// Replaces the contents. RESOURCE_EXHAUSTED leaves it empty.
  absl::Status Allocate(MemorySource& memory, int64_t size) {
    Free();
    auto buffer = memory.Allocate(static_cast<size_t>(size) * sizeof(T));
    if (!buffer.ok()) return buffer.status();
    buffer_ = *std::move(buffer);
    size_ = size;
    PreferHugePages(buffer_);
    return absl::OkStatus();
  }
  /// Keeps the first `used` elements and makes room for at least `size`, twice the room at least.
  absl::Status Grow(MemorySource& memory, int64_t used, int64_t size) {
    if (size <= size_) return absl::OkStatus();
    Scratch larger;
    const absl::Status status = larger.Allocate(memory, std::max(size, 2 * size_));
    if (!status.ok()) return status;
    std::copy(data(), data() + used, larger.data());
    *this = std::move(larger);
    return absl::OkStatus();
  }
  void Free() {
    buffer_ = Buffer();
    size_ = 0;
  }

  T* data() { return reinterpret_cast<T*>(buffer_.mutable_data()); }
  const T* data() const { return reinterpret_cast<const T*>(buffer_.data()); }
  int64_t size() const { return size_; }
  T& operator[](int64_t i) { return data()[i]; }
  const T& operator[](int64_t i) const { return data()[i]; }
  std::span<T> span() { return {data(), static_cast<size_t>(size_)}; }
  std::span<const T> span() const { return {data(), static_cast<size_t>(size_)}; }

 private:
  Buffer buffer_;
  int64_t size_ = 0;
};

/// Threads of a team of at most `most` whose scratch, `bytes` for each, does not outgrow `budget`
/// bytes, about what the pattern itself takes, or 4 MiB if that is more.
inline int TeamWithScratch(int most, int64_t bytes, int64_t budget) {
  constexpr int64_t kLeastBudget = 1 << 22;
  const int64_t threads = std::max(kLeastBudget, budget) / std::max<int64_t>(bytes, 1);
  return static_cast<int>(std::clamp<int64_t>(threads, 1, most));
}

}  // namespace sparsed
