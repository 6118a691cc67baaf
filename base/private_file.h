// Files that hold secrets: read only if nobody else can read or change them.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/descriptor.h"

namespace sparsed {

/// What tells that a file was replaced or changed.
struct FileStamp {
  dev_t device = 0;
  ino_t inode = 0;
  off_t size = -1;
  timespec changed = {};

  bool operator==(const FileStamp& other) const {
    return device == other.device && inode == other.inode && size == other.size &&
           changed.tv_sec == other.changed.tv_sec && changed.tv_nsec == other.changed.tv_nsec;
  }
};

inline FileStamp StampOf(const struct stat& facts) {
  return {facts.st_dev, facts.st_ino, facts.st_size, facts.st_ctim};
}

/// Of the file that is there now, through links; one of its own kind if there is none.
inline FileStamp StampOf(const std::string& path) {
  struct stat facts = {};
  return stat(path.c_str(), &facts) == 0 ? StampOf(facts) : FileStamp();
}

namespace file_detail {

inline absl::Status Refuse(const std::string& path, const std::string& why) {
  return absl::FailedPreconditionError(fmt::format("{}: {}", path, why));
}

inline absl::StatusOr<std::string> Read(const std::string& path, bool secret) {
  constexpr off_t kMostBytes = off_t{16} << 20;
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat facts = {};
  if (!file.open() || fstat(file.fd(), &facts) != 0) {
    return Refuse(path, std::generic_category().message(errno));
  }
  if (!S_ISREG(facts.st_mode)) return Refuse(path, "this is no file");
  if (secret && facts.st_uid != 0 && facts.st_uid != geteuid()) {
    return absl::PermissionDeniedError(
        fmt::format("{}: it holds secrets and belongs to user {}, neither to root nor to the user "
                    "of this process; chown it",
                    path, facts.st_uid));
  }
  if (secret && (facts.st_mode & 027) != 0) {
    return absl::PermissionDeniedError(
        fmt::format("{}: it holds secrets, and others can read or change it (mode {:04o}); chmod "
                    "600 {}, or 640 for a group of its own",
                    path, facts.st_mode & 07777, path));
  }
  if (facts.st_size > kMostBytes) return Refuse(path, "it has more than 16 MiB");
  std::string bytes(static_cast<size_t>(facts.st_size), '\0');
  size_t size = 0;
  while (size < bytes.size()) {
    const ssize_t part = read(file.fd(), bytes.data() + size, bytes.size() - size);
    if (part < 0 && errno == EINTR) continue;
    if (part < 0) return Refuse(path, std::generic_category().message(errno));
    if (part == 0) break;
    size += static_cast<size_t>(part);
  }
  bytes.resize(size);
  return bytes;
}

}  // namespace file_detail

/// The bytes of a file that others may read, at most 16 MiB. FAILED_PRECONDITION with the path and
/// why not.
inline absl::StatusOr<std::string> ReadPublicFile(const std::string& path) {
  return file_detail::Read(path, /*secret=*/false);
}

/// Likewise, of a secret one: it must belong to root or to this process' user, and have no
/// permission for others, nor a group's to write; else PERMISSION_DENIED.
inline absl::StatusOr<std::string> ReadPrivateFile(const std::string& path) {
  return file_detail::Read(path, /*secret=*/true);
}

}  // namespace sparsed
