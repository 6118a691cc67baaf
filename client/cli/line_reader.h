// The lines of a text file, plain or compressed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/byte_source.h"

namespace sparsed::cli {

/// What some programs begin texts in UTF-8 with.
inline constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

class LineReader {
 public:
  static absl::StatusOr<LineReader> Open(const std::string& path);
  /// Lines may have so many bytes, for which memory is taken as they come.
  explicit LineReader(ByteSource source, size_t longest = kLongestLine);

  /// Matrix Market allows 1024 characters.
  static constexpr size_t kLongestLine = size_t{1} << 20;

  /// The next line without its end, valid until the next call; none at the end of the file or after
  /// an error, which status() then has. A byte order mark before the first line is left out.
  std::optional<std::string_view> Next();
  const absl::Status& status() const { return status_; }
  /// Of the line that Next() gave last, counted from 1.
  int64_t line_number() const { return line_number_; }
  /// The file's name in messages.
  const std::string& name() const { return source_.name(); }

  /// INVALID_ARGUMENT that begins with file and line.
  absl::Status Error(std::string_view what) const;

 private:
  /// Moves what is unread to the front and reads on; false if there is nothing more.
  bool Fill();

  ByteSource source_;
  size_t longest_;
  std::vector<char> buffer_;
  size_t begin_ = 0;  // of the unread part
  size_t end_ = 0;
  int64_t line_number_ = 0;
  absl::Status status_;
};

}  // namespace sparsed::cli
