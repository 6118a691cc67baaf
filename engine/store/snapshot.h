// What a store holds at one moment, read file by file while the store goes on changing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/store/blob.h"
#include "engine/store/database.h"
#include "engine/store/file_system.h"

namespace sparsed::engine {

struct SnapshotFacts {
  int64_t created_unix_ns = 0;
  int64_t schema_version = 0;  ///< of the catalog
  int64_t patterns = 0, matrices = 0, layouts = 0, buffers = 0;
  int64_t arrays = 0;
  int64_t array_bytes = 0;
};

/// A copy of the catalog, and the blobs that it refers to, which keep their files for as long as
/// this lives. Gone before its store. Used by one thread at a time. Errors of its calls: as the
/// file system's; UNAVAILABLE if the directory is gone.
class StoreSnapshot {
 public:
  struct FileInfo {
    std::string name;  ///< in a data directory: "catalog.sqlite", "blobs/0000000000000017.blob"
    int64_t bytes = 0;
  };

  /// Takes over a finished copy of the catalog, whose file goes when this does. `available` says
  /// whether the store's directory is still there.
  static absl::StatusOr<std::unique_ptr<StoreSnapshot>> Make(
      FileSystem& files, std::unique_ptr<Database> catalog,
      std::vector<std::shared_ptr<const Blob>> blobs, int64_t created_unix_ns,
      std::function<absl::Status()> available);

  const SnapshotFacts& facts() const { return facts_; }
  /// Objects of JSON, a line for each matrix, then for each buffer; by tenant and name. Gives them
  /// away.
  std::string TakeContents() { return std::move(contents_); }
  /// A sentence for each array that was found damaged so far. Its file comes as it is, with zeros
  /// for what cannot be read, and not at all if there is none.
  const std::vector<std::string>& damaged() const { return damaged_; }

  /// The next file: the catalog, then blobs in ascending order; none after the last.
  absl::StatusOr<std::optional<FileInfo>> Next();
  /// The next bytes of it: as many as fit `out`, fewer only at its end.
  absl::StatusOr<size_t> Read(std::span<std::byte> out);

 private:
  StoreSnapshot(std::vector<std::shared_ptr<const Blob>> blobs,
                std::function<absl::Status()> available)
      : blobs_(std::move(blobs)), available_(std::move(available)) {}
  absl::Status ReadCatalog(Database& catalog);
  /// False if it has no file.
  absl::StatusOr<bool> OpenBlob(std::shared_ptr<const Blob> blob);
  /// The next piece of the open file: a blob's header, each of its blocks, the rest.
  absl::Status FillPiece();
  /// UNAVAILABLE if everything seems damaged because the directory is gone; of the catalog, what
  /// the damage is.
  absl::Status NoteDamage(const absl::Status& damage);

  SnapshotFacts facts_;
  std::string contents_;
  std::vector<std::shared_ptr<const Blob>> blobs_;  ///< ascending
  const std::function<absl::Status()> available_;
  std::vector<std::string> damaged_;

  std::unique_ptr<File> catalog_;  ///< until it is read
  int64_t catalog_bytes_ = 0;
  size_t next_blob_ = 0;

  // The open file.
  std::shared_ptr<const Blob> blob_;  ///< null: the catalog
  std::unique_ptr<File> file_;
  int64_t bytes_ = 0, offset_ = 0;     ///< in all, and of the pieces so far
  std::optional<BlobReader> checker_;  ///< none: its bytes have no checksums, or not sound ones
  bool noted_ = false;                 ///< that it is damaged
  std::vector<std::byte> piece_;
  size_t given_ = 0;  ///< of the piece
};

}  // namespace sparsed::engine
