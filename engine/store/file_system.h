// The file interface under everything that the server keeps in its data directory: blobs, the
// SQLite catalog and the lock. Tests put file systems under it that forget, fail or are full.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sparsed::engine {

/// An open file; closed by its destructor. Calls on one file come from one thread at a time.
class File {
 public:
  virtual ~File() = default;
  /// Fills `out` from byte `offset` on. Returns the bytes read: fewer than asked only where the
  /// file ends.
  virtual absl::StatusOr<size_t> Read(int64_t offset, std::span<std::byte> out) = 0;
  /// Writes all of `data` at byte `offset`; grows the file as needed. After an error any part of it
  /// may have been written.
  virtual absl::Status Write(int64_t offset, std::span<const std::byte> data) = 0;
  /// Cuts the file to `size` bytes.
  virtual absl::Status Truncate(int64_t size) = 0;
  /// Returns when the file's contents would survive a power cut (its name: see SyncDirectory).
  /// After an error nothing written since the last success may be taken for durable, whatever a
  /// later call says.
  virtual absl::Status Sync() = 0;
  /// In bytes.
  virtual absl::StatusOr<int64_t> Size() = 0;
  /// Locks the file against every other holder, in this process or another, until it is closed;
  /// FAILED_PRECONDITION, at once, if somebody has it.
  virtual absl::Status Lock() = 0;
  /// False if `path` names another file by now, or none.
  virtual absl::StatusOr<bool> IsAt(const std::string& path) = 0;
};

/// Held until it is destroyed, or the process ends.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

enum class OpenMode : uint8_t {
  kRead,       ///< existing, read only
  kReadWrite,  ///< existing
  kCreate,     ///< existing, or made empty
  kCreateNew,  ///< made empty; ALREADY_EXISTS if there is one
};

/// Thread-safe. Errors are sentences that name the path: NOT_FOUND, ALREADY_EXISTS,
/// RESOURCE_EXHAUSTED (disk full, quota, file descriptors), FAILED_PRECONDITION (permissions, a
/// read-only disk, a wrong kind of path), INTERNAL (the disk failed).
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) = 0;
  virtual absl::StatusOr<bool> Exists(const std::string& path) = 0;
  /// Atomically replaces `to`. Durable once the directory is synced.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  /// A file's name; whoever has it open can go on reading. Durable once the directory is synced.
  virtual absl::Status Remove(const std::string& path) = 0;
  /// Names in a directory, in no particular order.
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& directory) = 0;
  /// One level; OK if it exists. Durable once the directory above is synced.
  virtual absl::Status CreateDirectory(const std::string& path) = 0;
  /// Returns when names created, renamed and removed in it would survive a power cut.
  virtual absl::Status SyncDirectory(const std::string& path) = 0;
  /// Bytes that can still be written under `path`.
  virtual absl::StatusOr<int64_t> FreeBytes(const std::string& path) = 0;
  /// Makes the file and locks it against every other holder, in this process or another;
  /// FAILED_PRECONDITION, at once, if somebody has it.
  virtual absl::StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& path) = 0;
};

/// The machine's file system. Lives for ever.
FileSystem& PosixFileSystem();

}  // namespace sparsed::engine
