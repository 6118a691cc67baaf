#include "client/cli/line_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace sparsed::cli {

absl::StatusOr<LineReader> LineReader::Open(const std::string& path) {
  absl::StatusOr<ByteSource> source = ByteSource::Open(path);
  if (!source.ok()) return source.status();
  return LineReader(*std::move(source));
}

LineReader::LineReader(ByteSource source, size_t longest)
    : source_(std::move(source)), longest_(longest), buffer_(kLongestLine) {}

absl::Status LineReader::Error(std::string_view what) const {
  return absl::InvalidArgumentError(fmt::format("{}:{}: {}", name(), line_number_, what));
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
  if (line_number_ == 1 && line.starts_with(kByteOrderMark)) {
    line.remove_prefix(kByteOrderMark.size());
  }
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  return line;
}

bool LineReader::Fill() {
  std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  if (end_ == buffer_.size()) {
    if (end_ >= longest_) {
      ++line_number_;
      status_ = Error(fmt::format("the line is longer than {} bytes", buffer_.size()));
      return false;
    }
    buffer_.resize(2 * buffer_.size());
  }
  const absl::StatusOr<size_t> read = source_.Read(buffer_.data() + end_, buffer_.size() - end_);
  if (!read.ok()) {
    ++line_number_;
    status_ = Error(std::string(read.status().message()));
    return false;
  }
  end_ += *read;
  return *read > 0;
}

}  // namespace sparsed::cli
