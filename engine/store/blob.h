// Blob files: one array each, under a number of its own, with a checksum for every block.
//
// The file, little-endian, nothing between or after its parts:
//   header      64 bytes: "SPRSBLOB", u32 format version, u32 element type (kernels/array.h),
//               i64 length in elements, u64 number, u64 block bytes (4 MiB), u64 description bytes,
//               XXH3-128 of the 48 bytes before
//   data        length * element size bytes
//   table       16 bytes for each block of the data (the last may be shorter): its XXH3-128
//   description what the array is (description.h)
//   checksum    16 bytes: XXH3-128 of table and description
// Checksums are in xxHash's canonical form. Version 1 is version 2 without descriptions.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/store/file_system.h"
#include "kernels/array.h"

namespace sparsed::engine {

class Blob;

/// Left free by blobs, so that the catalog can still delete on a disk that they have filled: with
/// less than that free, everything that would need a blob is refused.
inline constexpr int64_t kCatalogRoomBytes = int64_t{16} << 20;

/// The folder of the blob files. Thread-safe.
class BlobFolder {
 public:
  using Stop = const std::atomic<bool>*;

  BlobFolder(FileSystem& files, std::string path) : files_(files), path_(std::move(path)) {}

  /// Makes the folder if there is none. Its own name is durable when this returns.
  absl::Status Prepare();
  /// Numbers of all blobs here.
  absl::StatusOr<std::vector<int64_t>> List();
  /// Removes what writes left that never ended. Nobody may be writing.
  absl::Status RemoveUnfinished();

  const std::string& path() const { return path_; }
  std::string PathOf(int64_t number) const;
  bool Has(int64_t number) const { return files_.Exists(PathOf(number)).value_or(false); }
  /// Fails if the disk has no room for arrays of so many bytes in all and for the catalog's growth.
  absl::Status CheckRoom(int64_t bytes);
  /// Writes, syncs and renames a blob. Its name is durable after the next Sync. The description is
  /// at most kMaxDescriptionBytes long.
  absl::Status Write(int64_t number, const Array& array, std::string_view description, Stop stop);
  absl::Status Sync() { return files_.SyncDirectory(path_); }
  /// For reading it as it is.
  absl::StatusOr<std::unique_ptr<File>> OpenFile(int64_t number) {
    return files_.Open(PathOf(number), OpenMode::kRead);
  }
  /// What cannot be removed now is removed after the next start.
  void Remove(int64_t number) { (void)files_.Remove(PathOf(number)); }

 private:
  friend class BlobReader;
  absl::Status WriteFile(const std::string& path, int64_t number, const Array& array,
                         std::string_view description, Stop stop);

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
  /// Its file is there, and nobody found it damaged.
  bool intact() const { return !damaged_ && folder_->Has(number_); }
  void FoundDamaged() const { damaged_ = true; }

 private:
  const std::shared_ptr<BlobFolder> folder_;
  const int64_t number_;
  std::atomic<bool> forsaken_;
  mutable std::atomic<bool> damaged_ = false;
};

/// Reads a blob block by block. Errors are DATA_LOSS with the file and the offset if anything is
/// not as it was written or the disk cannot read it; otherwise as the file system says.
class BlobReader {
 public:
  /// Checks the file's size, its header and its table against what the catalog says of it.
  static absl::StatusOr<BlobReader> Open(const Blob& blob, ElementType type, int64_t length);
  /// Likewise where no catalog says anything of it.
  static absl::StatusOr<BlobReader> Open(BlobFolder& folder, int64_t number);

  ElementType type() const { return type_; }
  int64_t length() const { return length_; }  ///< in elements
  const std::string& description() const { return description_; }
  int64_t blocks() const { return static_cast<int64_t>(table_.size() / kChecksumBytes); }
  size_t BlockBytes(int64_t block) const;
  /// Reads one block into `out`, of BlockBytes(block) bytes, and verifies it.
  absl::Status ReadBlock(int64_t block, std::span<std::byte> out);
  /// Verifies one that was read from the file otherwise.
  absl::Status CheckBlock(int64_t block, std::span<const std::byte> data) const;

  static constexpr size_t kBlockBytes = size_t{4} << 20;
  /// Before the first block.
  static constexpr int64_t kHeaderBytes = 64;

 private:
  static constexpr size_t kChecksumBytes = 16;

  BlobReader(std::string path, std::unique_ptr<File> file)
      : path_(std::move(path)), file_(std::move(file)) {}
  absl::Status ReadHeader(int64_t number);
  absl::Status ReadTail(int64_t size);
  absl::Status ReadExactly(int64_t offset, std::span<std::byte> out);
  absl::Status Damaged(int64_t offset, std::string_view what) const;

  std::string path_;
  std::unique_ptr<File> file_;
  ElementType type_ = ElementType::kI32;
  int64_t length_ = 0;
  int64_t data_bytes_ = 0;
  std::vector<std::byte> table_;
  std::string description_;
};

}  // namespace sparsed::engine
