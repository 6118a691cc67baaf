// The lines of a text file, plain or gzip-compressed.
#pragma once

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sparsed::cli {

class LineReader {
 public:
  static absl::StatusOr<LineReader> Open(const std::string& path);

  /// The next line without its end, valid until the next call; none at the end of the file or after
  /// an error, which status() then has.
  std::optional<std::string_view> Next();
  const absl::Status& status() const { return status_; }
  /// Of the line that Next() gave last, counted from 1.
  int64_t line_number() const { return line_number_; }
  const std::string& path() const { return path_; }

  /// INVALID_ARGUMENT that begins with file and line.
  absl::Status Error(std::string_view what) const;

 private:
  struct Close {
    void operator()(gzFile file) const { gzclose(file); }
  };

  LineReader(std::string path, gzFile file);
  /// Moves what is unread to the front and reads on; false if there is nothing more.
  bool Fill();

  std::string path_;
  std::unique_ptr<gzFile_s, Close> file_;
  std::vector<char> buffer_;
  size_t begin_ = 0;  // of the unread part
  size_t end_ = 0;
  int64_t line_number_ = 0;
  absl::Status status_;
};

}  // namespace sparsed::cli
