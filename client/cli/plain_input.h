// What compressors have in common.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdio>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/output_file.h"

namespace sparsed::cli {

/// Bytes, some at a time; the last piece, which may be empty, says that it is.
class PlainInput {
 public:
  static constexpr size_t kBytes = size_t{1} << 18;

  explicit PlainInput(std::FILE* file) : file_(file), buffer_(kBytes) {}
  /// False if the file cannot be read.
  bool Next() {
    size_ = std::fread(buffer_.data(), 1, buffer_.size(), file_);
    return std::ferror(file_) == 0;
  }
  unsigned char* data() { return buffer_.data(); }
  size_t size() const { return size_; }
  bool last() const { return std::feof(file_) != 0; }

 private:
  std::FILE* file_;
  std::vector<unsigned char> buffer_;
  size_t size_ = 0;
};

inline absl::Status NoMemory(const OutputFile& to) {
  return absl::ResourceExhaustedError(fmt::format("no memory to compress {}", to.path()));
}

inline absl::Status CannotRead(const OutputFile& to) {
  return absl::ResourceExhaustedError(
      fmt::format("cannot read {} again to compress it", to.path()));
}

}  // namespace sparsed::cli
