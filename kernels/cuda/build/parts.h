// One allocation for many arrays: each costs the pool as much as a small kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "kernels/array.h"

namespace sparsed::cuda {

/// First every part is asked for, then all are allocated, then they are there.
class Parts {
 public:
  template <typename T>
  struct Part {
    size_t at = 0;
    int64_t length = 0;
  };

  template <typename T>
  Part<T> Ask(int64_t length) {
    constexpr size_t kAlignment = 256;
    const Part<T> part{size_, length};
    size_ += (static_cast<size_t>(length) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return part;
  }
  absl::Status Allocate(MemorySource& memory) {
    absl::StatusOr<Buffer> buffer = memory.Allocate(size_);
    if (!buffer.ok()) return buffer.status();
    buffer_ = *std::move(buffer);
    return absl::OkStatus();
  }

  template <typename T>
  T* operator[](Part<T> part) {
    return reinterpret_cast<T*>(buffer_.mutable_data() + part.at);
  }
  /// Its buffer keeps all parts alive.
  template <typename T>
  Array AsArray(std::string_view name, Part<T> part) const {
    return {std::string(name), ElementTypeOf<T>(), part.length,
            buffer_.Part(part.at, static_cast<size_t>(part.length) * sizeof(T))};
  }

 private:
  size_t size_ = 0;
  Buffer buffer_;
};

}  // namespace sparsed::cuda
