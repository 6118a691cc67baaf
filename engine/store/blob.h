// Blob files: one array each, under a number of its own, with a checksum for every block.
//
// The file, little-endian, nothing between or after its parts:
//   header   64 bytes: "SPRSBLOB", u32 format version 1, u32 element type (kernels/array.h),
//            i64 length in elements, u64 number, u64 block bytes (4 MiB), 8 zero bytes,
//            XXH3-128 of the 48 bytes before
//   data     length * element size bytes
//   table    16 bytes for each block of the data (the last may be shorter): its XXH3-128
//   checksum 16 bytes: XXH3-128 of the table
// Checksums are in xxHash's canonical form.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/store/file_system.h"
#include "kernels/array.h"

namespace sparsed::engine {

class Blob;

/// The folder of the blob files. Thread-safe.
class BlobFolder {
 public:
  using Stop = const std::atomic<bool>*;

  BlobFolder(FileSystem& files, std::string path) : files_(files), path_(std::move(path)) {}

  /// Makes the folder if there is none. Its own name is durable when this returns.
  absl::Status Prepare();
  /// Numbers of all blobs here; removes what unfinished writes left.
  absl::StatusOr<std::vector<int64_t>> List();

  const std::string& path() const { return path_; }
  std::string PathOf(int64_t number) const;
  /// Fails if the disk has no room for arrays of so many bytes in all and for the catalog's growth.
  absl::Status CheckRoom(int64_t bytes);
  /// Writes, syncs and renames a blob. Its name is durable after the next Sync.
  absl::Status Write(int64_t number, const Array& array, Stop stop);
  absl::Status Sync() { return files_.SyncDirectory(path_); }
  /// What cannot be removed now is removed after the next start.
  void Remove(int64_t number) { (void)files_.Remove(PathOf(number)); }

 private:
  friend class BlobReader;
  absl::Status WriteFile(const std::string& path, int64_t number, const Array& array, Stop stop);

  FileSystem& files_;
  const std::string path_;
};

/// A blob that is on disk. When the last reference to a forsaken one goes, so does its file.
class Blob {
 public:
  Blob(std::shared_ptr<BlobFolder> folder, int64_t number, bool forsaken)
      : folder_(std::move(folder)), number_(number), forsaken_(forsaken) {}
  ~Blob() {
    if (forsaken_) folder_->Remove(number_);
  }
  Blob(const Blob&) = delete;
  Blob& operator=(const Blob&) = delete;

  int64_t number() const { return number_; }
  BlobFolder& folder() const { return *folder_; }
  /// No row refers to it (yet, or any more), or one does.
  void set_forsaken(bool forsaken) { forsaken_ = forsaken; }

 private:
  const std::shared_ptr<BlobFolder> folder_;
  const int64_t number_;
  std::atomic<bool> forsaken_;
};

/// Reads a blob block by block. Errors are DATA_LOSS with the file and the offset if anything is
/// not as it was written or the disk cannot read it; otherwise as the file system says.
class BlobReader {
 public:
  /// Checks the file's size, its header and its table against what the catalog says of it.
  static absl::StatusOr<BlobReader> Open(const Blob& blob, ElementType type, int64_t length);

  int64_t blocks() const { return static_cast<int64_t>(table_.size() / kChecksumBytes); }
  size_t BlockBytes(int64_t block) const;
  /// Reads one block into `out`, of BlockBytes(block) bytes, and verifies it.
  absl::Status ReadBlock(int64_t block, std::span<std::byte> out);

  static constexpr size_t kBlockBytes = size_t{4} << 20;

 private:
  static constexpr size_t kChecksumBytes = 16;

  BlobReader(std::string path, std::unique_ptr<File> file, int64_t data_bytes)
      : path_(std::move(path)), file_(std::move(file)), data_bytes_(data_bytes) {}
  absl::Status ReadExactly(int64_t offset, std::span<std::byte> out);
  absl::Status Damaged(int64_t offset, std::string_view what) const;

  std::string path_;
  std::unique_ptr<File> file_;
  int64_t data_bytes_;
  std::vector<std::byte> table_;
};

}  // namespace sparsed::engine
