#include "client/cli/byte_source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "client/cli/decompress.h"

namespace sparsed::cli {
namespace {

/// What is in an open file or pipe.
class Descriptor : public ByteStream {
 public:
  /// Closes it, unless it is standard input.
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() override {
    if (fd_ != STDIN_FILENO) close(fd_);
  }

  absl::StatusOr<size_t> Read(char* to, size_t size) override {
    if (head_begin_ < head_.size()) {
      const size_t n = std::min(size, head_.size() - head_begin_);
      std::memcpy(to, head_.data() + head_begin_, n);
      head_begin_ += n;
      return n;
    }
    return ReadOn(to, size);
  }

  /// The first bytes, which stay to be read.
  absl::StatusOr<std::string_view> Head(size_t size) {
    head_.resize(size);
    size_t length = 0;
    while (length < size) {
      const absl::StatusOr<size_t> n = ReadOn(head_.data() + length, size - length);
      if (!n.ok()) return n.status();
      if (*n == 0) break;
      length += *n;
    }
    head_.resize(length);
    return head_;
  }

 private:
  absl::StatusOr<size_t> ReadOn(char* to, size_t size) const {
    while (true) {
      const ssize_t n = read(fd_, to, size);
      if (n >= 0) return static_cast<size_t>(n);
      if (errno == EINTR) continue;
      return absl::InvalidArgumentError(fmt::format("cannot be read: {}", std::strerror(errno)));
    }
  }

  int fd_;
  std::string head_;
  size_t head_begin_ = 0;
};

bool IsPlainFile(int fd) {
  struct stat info {};
  return fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
}

}  // namespace

absl::Status At(std::string_view place, const absl::Status& status) {
  return absl::Status(status.code(), fmt::format("{}: {}", place, std::string(status.message())));
}

absl::StatusOr<ByteSource> ByteSource::Open(const std::string& path) {
  ByteSource source;
  const bool standard_input = path == kStandardInput;
  source.name_ = standard_input ? "standard input" : path;
  const int fd = standard_input ? STDIN_FILENO : open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return absl::InvalidArgumentError(
        fmt::format("cannot open {}: {}", path, std::strerror(errno)));
  }
  auto file = std::make_unique<Descriptor>(fd);
  const bool plain = !standard_input && IsPlainFile(fd);
  const absl::StatusOr<std::string_view> head = file->Head(kMagicBytes);
  if (!head.ok()) {
    return absl::InvalidArgumentError(
        fmt::format("{} {}", source.name_, std::string(head.status().message())));
  }
  source.compression_ = CompressionOf(*head);
  absl::StatusOr<std::unique_ptr<ByteStream>> stream =
      Decompressed(std::move(file), source.compression_);
  if (!stream.ok()) return stream.status();
  source.stream_ = *std::move(stream);
  if (plain && source.compression_.empty()) source.plain_path_ = path;
  return source;
}

absl::StatusOr<size_t> ByteSource::Read(char* to, size_t size) {
  if (peeked_begin_ == peeked_.size()) return stream_->Read(to, size);
  const size_t n = std::min(size, peeked_.size() - peeked_begin_);
  std::memcpy(to, peeked_.data() + peeked_begin_, n);
  peeked_begin_ += n;
  if (peeked_begin_ == peeked_.size()) {
    peeked_ = {};
    peeked_begin_ = 0;
  }
  return n;
}

absl::StatusOr<std::string_view> ByteSource::Peek(size_t size) {
  peeked_.erase(peeked_.begin(), peeked_.begin() + static_cast<std::ptrdiff_t>(peeked_begin_));
  peeked_begin_ = 0;
  size_t length = peeked_.size();
  peeked_.resize(std::max(length, size));
  while (length < size) {
    const absl::StatusOr<size_t> n = stream_->Read(peeked_.data() + length, size - length);
    if (!n.ok()) {
      peeked_.resize(length);
      return n.status();
    }
    if (*n == 0) break;
    length += *n;
  }
  peeked_.resize(length);
  return std::string_view(peeked_.data(), std::min(length, size));
}

}  // namespace sparsed::cli
