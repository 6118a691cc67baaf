#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/descriptor.h"
#include "engine/store/file_system.h"

namespace sparsed::engine {
namespace {

// Matrices belong to their tenants: nobody else on the machine reads them.
constexpr mode_t kDirectoryMode = 0700;
constexpr mode_t kFileMode = 0600;

/// "cannot `action` `path`: reason", with the code that file_system.h promises.
absl::Status ErrnoStatus(int error, std::string_view action, const std::string& path) {
  const std::string sentence =
      fmt::format("cannot {} {}: {}", action, path, std::generic_category().message(error));
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(sentence);
    case EEXIST:
      return absl::AlreadyExistsError(sentence);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return absl::ResourceExhaustedError(sentence);
    case EACCES:
    case EPERM:
    case EROFS:
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
      return absl::FailedPreconditionError(sentence);
    default:
      return absl::InternalError(sentence);
  }
}

/// Calls `call` again as long as a signal interrupts it.
template <typename Call>
auto Uninterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

/// Locks an open file until it is closed. `holder` is for the sentence, if somebody else has it:
/// " (process 17)", or empty.
absl::Status LockFile(int fd, const std::string& path, const std::string& holder) {
  if (Uninterrupted([&] { return ::flock(fd, LOCK_EX | LOCK_NB); }) == 0) return absl::OkStatus();
  if (errno != EWOULDBLOCK) return ErrnoStatus(errno, "lock", path);
  return absl::FailedPreconditionError(
      fmt::format("{} is locked: another server{} uses this directory; stop it, or choose another "
                  "directory",
                  path, holder));
}

class PosixFile final : public File {
 public:
  PosixFile(Descriptor fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  absl::StatusOr<size_t> Read(int64_t offset, std::span<std::byte> out) override {
    size_t done = 0;
    while (done < out.size()) {
      const ssize_t n = Uninterrupted([&] {
        return ::pread(fd_.fd(), out.data() + done, out.size() - done,
                       offset + static_cast<int64_t>(done));
      });
      if (n < 0) {
        return ErrnoStatus(errno, fmt::format("read {} bytes at byte {} of", out.size(), offset),
                           path_);
      }
      if (n == 0) break;
      done += static_cast<size_t>(n);
    }
    return done;
  }

  absl::Status Write(int64_t offset, std::span<const std::byte> data) override {
    size_t done = 0;
    while (done < data.size()) {
      const ssize_t n = Uninterrupted([&] {
        return ::pwrite(fd_.fd(), data.data() + done, data.size() - done,
                        offset + static_cast<int64_t>(done));
      });
      if (n < 0) {
        return ErrnoStatus(errno, fmt::format("write {} bytes at byte {} of", data.size(), offset),
                           path_);
      }
      done += static_cast<size_t>(n);
    }
    return absl::OkStatus();
  }

  absl::Status Truncate(int64_t size) override {
    if (Uninterrupted([&] { return ::ftruncate(fd_.fd(), size); }) != 0) {
      return ErrnoStatus(errno, fmt::format("cut to {} bytes", size), path_);
    }
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    if (::fsync(fd_.fd()) != 0) return ErrnoStatus(errno, "sync", path_);
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> Size() override {
    struct stat status;
    if (::fstat(fd_.fd(), &status) != 0) return ErrnoStatus(errno, "find the size of", path_);
    return static_cast<int64_t>(status.st_size);
  }

  absl::Status Lock() override { return LockFile(fd_.fd(), path_, /*holder=*/""); }

  absl::StatusOr<bool> IsAt(const std::string& path) override {
    struct stat ours, theirs;
    if (::fstat(fd_.fd(), &ours) != 0) return ErrnoStatus(errno, "look at", path_);
    if (::stat(path.c_str(), &theirs) != 0) {
      if (errno == ENOENT || errno == ENOTDIR) return false;
      return ErrnoStatus(errno, "look up", path);
    }
    return ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino;
  }

 private:
  const Descriptor fd_;
  const std::string path_;
};

class PosixFileLock final : public FileLock {
 public:
  explicit PosixFileLock(Descriptor fd) : fd_(std::move(fd)) {}

 private:
  const Descriptor fd_;  // closing it gives the lock up
};

int OpenFlags(OpenMode mode) {
  switch (mode) {
    case OpenMode::kRead:
      return O_RDONLY;
    case OpenMode::kReadWrite:
      return O_RDWR;
    case OpenMode::kCreate:
      return O_RDWR | O_CREAT;
    case OpenMode::kCreateNew:
      return O_RDWR | O_CREAT | O_EXCL;
  }
  return O_RDONLY;
}

class Posix final : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override {
    Descriptor fd(Uninterrupted(
        [&] { return ::open(path.c_str(), OpenFlags(mode) | O_CLOEXEC, kFileMode); }));
    if (!fd.open()) return ErrnoStatus(errno, "open", path);
    return std::make_unique<PosixFile>(std::move(fd), path);
  }

  absl::StatusOr<bool> Exists(const std::string& path) override {
    struct stat status;
    if (::stat(path.c_str(), &status) == 0) return true;
    if (errno == ENOENT) return false;
    return ErrnoStatus(errno, "look up", path);
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) {
      return ErrnoStatus(errno, fmt::format("rename {} to", from), to);
    }
    return absl::OkStatus();
  }

  absl::Status Remove(const std::string& path) override {
    if (::unlink(path.c_str()) != 0) return ErrnoStatus(errno, "remove", path);
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override {
    const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(directory.c_str()), &::closedir);
    if (stream == nullptr) return ErrnoStatus(errno, "list", directory);
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = ::readdir(stream.get())) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
      errno = 0;
    }
    if (errno != 0) return ErrnoStatus(errno, "list", directory);
    return names;
  }

  absl::Status CreateDirectory(const std::string& path) override {
    if (::mkdir(path.c_str(), kDirectoryMode) == 0) return absl::OkStatus();
    const int error = errno;
    struct stat status;
    if (error == EEXIST && ::stat(path.c_str(), &status) == 0) {
      if (S_ISDIR(status.st_mode)) return absl::OkStatus();
      return ErrnoStatus(ENOTDIR, "use as a directory", path);
    }
    return ErrnoStatus(error, "make the directory", path);
  }

  absl::Status SyncDirectory(const std::string& path) override {
    const Descriptor fd(
        Uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
    if (!fd.open()) return ErrnoStatus(errno, "open the directory", path);
    // EINVAL: some network and FUSE file systems have nothing to sync in a directory.
    if (::fsync(fd.fd()) != 0 && errno != EINVAL) {
      return ErrnoStatus(errno, "sync the directory", path);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> FreeBytes(const std::string& path) override {
    struct statvfs status;
    if (Uninterrupted([&] { return ::statvfs(path.c_str(), &status); }) != 0) {
      return ErrnoStatus(errno, "find the free space of", path);
    }
    return static_cast<int64_t>(status.f_bavail) * static_cast<int64_t>(status.f_frsize);
  }

  absl::StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& path) override {
    Descriptor fd(Uninterrupted(
        [&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kFileMode); }));
    if (!fd.open()) return ErrnoStatus(errno, "open", path);
    // The holder left its process id, for people.
    std::array<char, 32> holder{};
    const ssize_t n = ::pread(fd.fd(), holder.data(), holder.size() - 1, 0);
    absl::Status status =
        LockFile(fd.fd(), path, n > 0 ? fmt::format(" (process {})", holder.data()) : "");
    if (!status.ok()) return status;
    const std::string self = std::to_string(::getpid());
    // A full disk has no room for it: no reason to stay away.
    if (::ftruncate(fd.fd(), 0) == 0) (void)!::pwrite(fd.fd(), self.data(), self.size(), 0);
    return std::make_unique<PosixFileLock>(std::move(fd));
  }
};

}  // namespace

FileSystem& PosixFileSystem() {
  static Posix* const posix = new Posix;
  return *posix;
}

}  // namespace sparsed::engine
