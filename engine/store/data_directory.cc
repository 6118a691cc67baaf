#include "engine/store/data_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <span>
#include <string_view>
#include <vector>

namespace sparsed::engine {
namespace {

constexpr std::string_view kMarkerText =
    "sparsed made a catalog in this directory. With this file, and without catalog.sqlite beside "
    "it,\nsparsed does not start: restore the directory from a backup, or remove this file to "
    "begin empty.\n";

std::string ParentOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

/// Makes a directory and those above it, all of them durable.
absl::Status MakeDirectories(FileSystem& files, const std::string& path) {
  const std::string parent = ParentOf(path);
  const absl::StatusOr<bool> exists = files.Exists(path);
  if (!exists.ok()) return exists.status();
  if (!*exists) {
    if (absl::Status status = MakeDirectories(files, parent); !status.ok()) return status;
  }
  // Says so if it is no directory.
  if (absl::Status status = files.CreateDirectory(path); !status.ok()) return status;
  absl::Status status = files.SyncDirectory(parent);
  // A directory that was there may stand in one that we cannot read; whoever made it saw to it.
  return *exists && absl::IsFailedPrecondition(status) ? absl::OkStatus() : status;
}

/// Makes a file durable, but for its name.
absl::Status WriteFile(FileSystem& files, const std::string& path,
                       std::span<const std::byte> contents) {
  absl::StatusOr<std::unique_ptr<File>> file = files.Open(path, OpenMode::kCreate);
  if (!file.ok()) return file.status();
  if (absl::Status status = (*file)->Write(0, contents); !status.ok()) return status;
  return (*file)->Sync();
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataDirectory>> DataDirectory::Open(FileSystem& files,
                                                                   std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  if (path.empty()) return absl::InvalidArgumentError("the data directory has no name");
  if (absl::Status status = MakeDirectories(files, path); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<FileLock>> lock = files.Lock(path + "/LOCK");
  if (!lock.ok()) return lock.status();
  std::unique_ptr<DataDirectory> directory(new DataDirectory(files, std::move(path)));
  directory->lock_ = *std::move(lock);
  return directory;
}

absl::Status DataDirectory::RemoveCopies() {
  const absl::StatusOr<std::vector<std::string>> names = files_.List(path_);
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    if (!name.starts_with("catalog.copy-")) continue;
    absl::Status status = files_.Remove(fmt::format("{}/{}", path_, name));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> DataDirectory::HadCatalog() { return files_.Exists(marker()); }

absl::Status DataDirectory::CheckCatalog(bool has_blobs) {
  const absl::StatusOr<bool> there = files_.Exists(catalog());
  if (!there.ok() || *there) return there.status();
  const absl::StatusOr<bool> was_there = HadCatalog();
  if (!was_there.ok()) return was_there.status();
  if (!*was_there && !has_blobs) return absl::OkStatus();
  const std::string salvage = has_blobs ? ", or rebuild what its blobs allow with --salvage" : "";
  const std::string begin_empty = has_blobs ? "move it away" : fmt::format("remove {}", marker());
  return absl::DataLossError(
      fmt::format("{} is missing, and there was one: is the right disk mounted? Restore the data "
                  "directory from a backup{}, or {} to start empty",
                  catalog(), salvage, begin_empty));
}

void DataDirectory::RememberCatalog() {
  const absl::StatusOr<bool> known = HadCatalog();
  if (known.ok() && *known) return;
  absl::Status status = MakeDirectories(files_, path_);
  if (status.ok()) status = WriteFile(files_, marker(), std::as_bytes(std::span(kMarkerText)));
  if (status.ok()) (void)files_.SyncDirectory(path_);
}

absl::Status DataDirectory::WriteReserve() {
  // Bytes that no file system stores in less than their length.
  std::vector<uint32_t> bytes(kReserveBytes / sizeof(uint32_t));
  std::ranges::generate(bytes, std::minstd_rand());
  absl::Status status = WriteFile(files_, reserve(), std::as_bytes(std::span(bytes)));
  return status.ok() ? files_.SyncDirectory(path_) : status;
}

void DataDirectory::MakeReserve() {
  if (reserved_) return;
  absl::StatusOr<std::unique_ptr<File>> there = files_.Open(reserve(), OpenMode::kRead);
  if (there.ok()) {
    const absl::StatusOr<int64_t> size = (*there)->Size();
    reserved_ = size.ok() && *size == static_cast<int64_t>(kReserveBytes);
    if (reserved_) return;
  }
  const absl::StatusOr<int64_t> free = files_.FreeBytes(path_);
  if (!free.ok() || *free < static_cast<int64_t>(2 * kReserveBytes)) return;
  reserved_ = WriteReserve().ok();
  if (!reserved_) RemoveReserve();
}

void DataDirectory::RemoveReserve() {
  reserved_ = false;
  (void)files_.Remove(reserve());
}

void DataDirectory::GiveReserveToLog() {
  RemoveReserve();
  const absl::StatusOr<std::unique_ptr<File>> log =
      files_.Open(catalog() + "-wal", OpenMode::kReadWrite);
  if (!log.ok()) return;
  const absl::StatusOr<int64_t> size = (*log)->Size();
  if (!size.ok()) return;
  // Behind its end there may be anything: what counts has a checksum.
  const std::vector<std::byte> block(4096);
  for (int64_t at = *size; at < static_cast<int64_t>(kReserveBytes);) {
    if (!(*log)->Write(at, block).ok()) return;
    at += static_cast<int64_t>(block.size());
  }
}

}  // namespace sparsed::engine
