// What decompressors have in common.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/byte_source.h"

namespace sparsed::cli {

/// What the windows and dictionaries of the usual levels keep to.
inline constexpr int kDecompressionMemoryLog = 28;

inline absl::Status EndsEarly() {
  return absl::InvalidArgumentError("the compressed data end too early");
}
inline absl::Status Damaged(std::string_view what) {
  return absl::InvalidArgumentError(fmt::format("the compressed data are damaged ({})", what));
}
inline absl::Status NeedsTooMuch(std::string_view command) {
  return absl::InvalidArgumentError(fmt::format(
      "it takes more than 256 MiB to decompress it here; decompress it first: {}", command));
}

/// Compressed bytes, some at a time.
class CompressedInput {
 public:
  explicit CompressedInput(std::unique_ptr<ByteStream> stream)
      : stream_(std::move(stream)), buffer_(size_t{1} << 18) {}

  /// The next piece; empty at the end.
  absl::StatusOr<std::string_view> Next() {
    const absl::StatusOr<size_t> n = stream_->Read(buffer_.data(), buffer_.size());
    if (!n.ok()) return n.status();
    return std::string_view(buffer_.data(), *n);
  }

 private:
  std::unique_ptr<ByteStream> stream_;
  std::vector<char> buffer_;
};

}  // namespace sparsed::cli
