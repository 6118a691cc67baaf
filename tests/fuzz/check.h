// What all fuzzers abort for, and how they read their input.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace sparsed::fuzz {

inline void Check(bool holds, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (holds) return;
  std::fprintf(stderr, "%s:%d does not hold\n", file, line);
  std::abort();
}

/// An error needs a sentence, and is never put down to us.
inline void CheckSentence(const absl::Status& status) {
  if (status.ok()) return;
  Check(!status.message().empty());
  Check(status.code() != absl::StatusCode::kInternal &&
        status.code() != absl::StatusCode::kUnknown);
}

/// A path at which the bytes can be read, until the next call.
inline const std::string& FileOf(const uint8_t* data, size_t size) {
  static const int file = memfd_create("fuzz", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  Check(ftruncate(file, 0) == 0 && pwrite(file, data, size, 0) == static_cast<ssize_t>(size));
  return path;
}

/// Takes values off the front of an input; zeros and nothing when it is used up.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}

  bool empty() const { return rest_.empty(); }
  std::string_view Bytes(size_t count) {
    const std::string_view bytes = rest_.substr(0, count);
    rest_.remove_prefix(bytes.size());
    return bytes;
  }
  std::string_view Rest() { return Bytes(rest_.size()); }
  template <typename T>
  T Number() {
    T number = 0;
    const std::string_view bytes = Bytes(sizeof(T));
    std::memcpy(&number, bytes.data(), bytes.size());
    return number;
  }
  /// Up to the next zero byte, which goes, too.
  std::string_view Word() {
    const std::string_view word = Bytes(std::min(rest_.find('\0'), rest_.size()));
    Bytes(1);
    return word;
  }

 private:
  std::string_view rest_;
};

}  // namespace sparsed::fuzz
