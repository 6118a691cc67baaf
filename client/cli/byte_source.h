// The bytes of a file or of standard input, decompressed: gzip, xz and Zstandard are told by their
// first bytes, whatever the name.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sparsed::cli {

/// The same status, with `place` and a colon before its message.
absl::Status At(std::string_view place, const absl::Status& status);

/// Bytes one after another.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  /// At most `size` bytes, at least one except at the end. INVALID_ARGUMENT with a sentence that
  /// does not name the file.
  virtual absl::StatusOr<size_t> Read(char* to, size_t size) = 0;
};

class ByteSource : public ByteStream {
 public:
  /// What stands for standard input.
  static constexpr std::string_view kStandardInput = "-";

  static absl::StatusOr<ByteSource> Open(const std::string& path);

  absl::StatusOr<size_t> Read(char* to, size_t size) override;
  /// The next `size` bytes, fewer only if there are no more; they stay to be read. Valid until the
  /// next call.
  absl::StatusOr<std::string_view> Peek(size_t size);

  /// For messages: the path, or "standard input".
  const std::string& name() const { return name_; }
  /// The path itself where its bytes are those that Read() gives and can be read again, empty
  /// otherwise.
  const std::string& plain_path() const { return plain_path_; }
  /// "gzip", "xz", "Zstandard", or empty.
  std::string_view compression() const { return compression_; }

 private:
  ByteSource() = default;

  std::string name_;
  std::string plain_path_;
  std::string_view compression_;
  std::unique_ptr<ByteStream> stream_;
  std::vector<char> peeked_;
  size_t peeked_begin_ = 0;  ///< of what is unread
};

}  // namespace sparsed::cli
