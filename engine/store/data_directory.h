// The directory that a store is in: who may use it, what says that there was data in it, and room
// for deletions on a full disk.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/store/file_system.h"

namespace sparsed::engine {

/// Used by one thread at a time.
class DataDirectory {
 public:
  /// Makes the directory if there is none, and locks its LOCK against other servers. `files` must
  /// outlive this. Errors: as FileSystem.
  static absl::StatusOr<std::unique_ptr<DataDirectory>> Open(FileSystem& files, std::string path);

  const std::string& path() const { return path_; }
  std::string catalog() const { return path_ + "/catalog.sqlite"; }
  std::string blobs() const { return path_ + "/blobs"; }

  /// A name for a copy of the catalog that nobody reads after the process has ended.
  std::string NewCopy() { return path_ + "/catalog.copy-" + std::to_string(++copies_); }
  /// Removes copies that a process left behind.
  absl::Status RemoveCopies();

  /// True if a catalog was made here once, or at this path before the directory was lost.
  absl::StatusOr<bool> HadCatalog();
  /// DATA_LOSS, with what to do about it, if there is no catalog but must be one: there was one, or
  /// `has_blobs`.
  absl::Status CheckCatalog(bool has_blobs);
  /// Remembers that a catalog was made here, also if the directory itself has gone meanwhile: then
  /// in a new one, so that a restart does not take that for a first start. A disk that has no room
  /// for it does not matter.
  void RememberCatalog();

  /// Sees to it that kReserveBytes are set aside, if the disk has some room to spare.
  void MakeReserve();
  /// Gives them to the catalog's log, as far as nobody else is faster. The log keeps its size until
  /// the catalog is closed, so that what is written to it later finds room, too.
  void GiveReserveToLog();

  static constexpr size_t kReserveBytes = size_t{1} << 20;

 private:
  DataDirectory(FileSystem& files, std::string path) : files_(files), path_(std::move(path)) {}
  absl::Status WriteReserve();
  void RemoveReserve();
  std::string marker() const { return path_ + "/HAS_CATALOG"; }
  std::string reserve() const { return path_ + "/RESERVE"; }

  FileSystem& files_;
  const std::string path_;
  std::unique_ptr<FileLock> lock_;
  bool reserved_ = false;
  int64_t copies_ = 0;
};

}  // namespace sparsed::engine
