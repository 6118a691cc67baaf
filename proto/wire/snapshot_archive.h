// The file that a snapshot is: a tar archive in one fixed form, written as it is sent and checked
// as it comes.
//
//   snapshot.json     when it was taken, of which server, how much is in it
//   contents.jsonl    a line for each matrix and buffer
//   catalog.sqlite    as in a data directory (docs/storage.md)
//   blobs/N.blob      likewise, in ascending order
//   damaged.txt       only if arrays were damaged when it was taken: a line for each
//   MANIFEST          "XXH3-128  NAME" of each file before it, as xxh128sum -c reads it
//
// tar unpacks it to a data directory. Headers have one possible form and what pads them is zeros,
// so that no byte can change unnoticed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

struct XXH3_state_s;

namespace sparsed::wire {

inline constexpr int kSnapshotFormat = 1;
inline constexpr std::string_view kSnapshotFacts = "snapshot.json";
inline constexpr std::string_view kSnapshotContents = "contents.jsonl";
inline constexpr std::string_view kSnapshotCatalog = "catalog.sqlite";
inline constexpr std::string_view kSnapshotDamaged = "damaged.txt";
inline constexpr std::string_view kSnapshotManifest = "MANIFEST";
/// Files that an archive may have; who writes or reads one keeps some 100 bytes of each.
inline constexpr size_t kMostSnapshotFiles = size_t{1} << 21;

/// The number of "blobs/0000000000000017.blob"; none of any other name.
std::optional<int64_t> SnapshotBlobNumber(std::string_view name);

/// Checksums of an archive's files as they pass by.
class SnapshotChecksums {
 public:
  SnapshotChecksums();
  ~SnapshotChecksums();
  SnapshotChecksums(const SnapshotChecksums&) = delete;
  SnapshotChecksums& operator=(const SnapshotChecksums&) = delete;

  void Begin(std::string_view name);
  void Add(std::span<const std::byte> bytes);
  void End();
  size_t files() const { return files_.size(); }
  const std::string& name(size_t file) const { return files_[file].name; }
  int64_t manifest_bytes() const { return manifest_bytes_; }
  /// Of MANIFEST, with its line's end.
  std::string Line(size_t file) const;

 private:
  struct File {
    std::string name;
    uint64_t high = 0, low = 0;
  };

  XXH3_state_s* const state_;
  std::vector<File> files_;
  int64_t manifest_bytes_ = 0;
};

/// Makes an archive's bytes: for each file Begin, its bytes themselves through Add, and End; at
/// last Finish until it has nothing more.
class SnapshotWriter {
 public:
  /// What goes before the file's bytes.
  std::string Begin(std::string_view name, int64_t bytes);
  void Add(std::span<const std::byte> bytes) { checksums_.Add(bytes); }
  /// What goes behind them.
  std::string End();
  /// The next part of MANIFEST and the archive's end; empty after the last.
  std::string Finish();
  size_t files() const { return checksums_.files(); }

 private:
  SnapshotChecksums checksums_;
  int64_t bytes_ = 0;  ///< of the file
  size_t listed_ = 0;  ///< in MANIFEST
  enum class End : uint8_t { kNotYet, kListing, kDone } end_ = End::kNotYet;
};

/// Reads an archive's bytes as they come, in pieces of any size.
class SnapshotReader {
 public:
  /// Gets what is in it. What it says that a file holds is certain only once Finish is OK. An error
  /// ends the reading with it.
  class Handler {
   public:
    virtual ~Handler() = default;
    virtual absl::Status OnFile(std::string_view name, int64_t bytes) = 0;
    virtual absl::Status OnBytes(std::span<const std::byte> bytes) = 0;
    virtual absl::Status OnFileEnd() = 0;
  };

  explicit SnapshotReader(Handler& handler) : handler_(handler) {}

  /// INVALID_ARGUMENT if it is no snapshot at all, DATA_LOSS with the place if it is damaged.
  absl::Status Add(std::span<const std::byte> bytes);
  /// After the last bytes: DATA_LOSS if the archive's end did not come.
  absl::Status Finish() const;
  int64_t bytes() const { return at_; }  ///< that came

 private:
  enum class State : uint8_t { kHeader, kFile, kPadding, kManifest, kEnd, kDone };

  absl::Status Damaged(int64_t offset, std::string_view what) const;
  absl::Status OnHeader();
  absl::Status CheckOrder(std::string_view name, int64_t bytes);
  absl::Status EndFile();
  absl::Status CheckManifest(std::span<const std::byte> bytes);
  absl::Status CheckZeros(std::span<const std::byte> bytes) const;

  Handler& handler_;
  SnapshotChecksums checksums_;
  State state_ = State::kHeader;
  int64_t at_ = 0;       ///< in the archive
  int64_t left_ = 0;     ///< of the state's bytes
  std::string header_;   ///< what has come of it
  int64_t padding_ = 0;  ///< behind the file
  int stage_ = 0;        ///< which kinds of files came already
  int64_t last_blob_ = -1;
  std::string expected_;  ///< of MANIFEST, what has yet to come of a line
  size_t listed_ = 0;     ///< its lines
};

}  // namespace sparsed::wire
