#include "client/cli/line_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace sparsed::cli {
namespace {

/// Also the longest line; Matrix Market allows 1024 characters.
constexpr size_t kBufferBytes = size_t{1} << 20;

}  // namespace

LineReader::LineReader(std::string path, gzFile file)
    : path_(std::move(path)), file_(file), buffer_(kBufferBytes) {}

absl::StatusOr<LineReader> LineReader::Open(const std::string& path) {
  errno = 0;
  gzFile file = gzopen(path.c_str(), "rb");  // reads plain files too
  if (file == nullptr) {
    return absl::InvalidArgumentError(
        fmt::format("cannot open {}: {}", path, std::strerror(errno == 0 ? ENOMEM : errno)));
  }
  gzbuffer(file, kBufferBytes);
  return LineReader(path, file);
}

absl::Status LineReader::Error(std::string_view what) const {
  return absl::InvalidArgumentError(fmt::format("{}:{}: {}", path_, line_number_, what));
}

std::optional<std::string_view> LineReader::Next() {
  if (!status_.ok()) return std::nullopt;
  size_t searched = 0;
  size_t length = 0;
  while (true) {
    const char* const unread = buffer_.data() + begin_;
    const void* newline = std::memchr(unread + searched, '\n', end_ - begin_ - searched);
    if (newline != nullptr) {
      length = static_cast<size_t>(static_cast<const char*>(newline) - unread);
      break;
    }
    searched = length = end_ - begin_;
    if (Fill()) continue;
    if (!status_.ok() || length == 0) return std::nullopt;
    break;  // a last line without an end
  }
  std::string_view line(buffer_.data() + begin_, length);
  begin_ = std::min(begin_ + length + 1, end_);
  ++line_number_;
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  return line;
}

bool LineReader::Fill() {
  std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  if (end_ == buffer_.size()) {
    ++line_number_;
    status_ = Error(fmt::format("the line is longer than {} bytes", buffer_.size()));
    return false;
  }
  const int read =
      gzread(file_.get(), buffer_.data() + end_, static_cast<unsigned>(buffer_.size() - end_));
  int code = Z_OK;
  const char* message = gzerror(file_.get(), &code);
  if (read < 0 || (read == 0 && code == Z_BUF_ERROR)) {
    ++line_number_;
    status_ =
        Error(code == Z_ERRNO       ? std::strerror(errno)
              : code == Z_BUF_ERROR ? "the compressed data end too early"
                                    : fmt::format("the compressed data are damaged ({})", message));
    return false;
  }
  end_ += static_cast<size_t>(read);
  return read > 0;
}

}  // namespace sparsed::cli
