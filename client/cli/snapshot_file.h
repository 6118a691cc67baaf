// A snapshot's file, without a server: what is in it, whether it is whole, and the data directory
// that it makes.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/json.h"
#include "proto/wire/snapshot_archive.h"

namespace sparsed::cli {

/// What a snapshot says of itself.
struct SnapshotSummary {
  Json facts;                     ///< snapshot.json's object
  Json contents = Json::array();  ///< the first kMostListed of contents.jsonl's objects
  int64_t listed = 0;             ///< of them, in all
  Json damaged = Json::array();   ///< a sentence for each array that was damaged when it was saved
  int64_t files = 0;
  int64_t bytes = 0;  ///< of the file

  static constexpr int64_t kMostListed = 100'000;
};

/// Where a snapshot's files go as they come; given each wholly or, after an error, in part.
class SnapshotSink {
 public:
  virtual ~SnapshotSink() = default;
  virtual absl::Status OnFile(std::string_view name, int64_t bytes) = 0;
  virtual absl::Status OnBytes(std::span<const std::byte> bytes) = 0;
  virtual absl::Status OnFileEnd() = 0;
};

/// Checks the bytes of a snapshot as they come, whoever brings them. Errors: INVALID_ARGUMENT (it
/// is none, or of a newer program), DATA_LOSS (damaged, with the place), those of the sink.
class SnapshotCheck : private wire::SnapshotReader::Handler {
 public:
  /// `sink`: null, or outlives this.
  explicit SnapshotCheck(SnapshotSink* sink = nullptr) : sink_(sink) {}

  absl::Status Add(std::string_view bytes);
  /// After the last: what is in it.
  absl::StatusOr<SnapshotSummary> Finish();
  int64_t bytes() const { return reader_.bytes(); }

 private:
  absl::Status OnFile(std::string_view name, int64_t bytes) override;
  absl::Status OnBytes(std::span<const std::byte> bytes) override;
  absl::Status OnFileEnd() override;
  absl::Status OnLine();
  absl::Status OnFacts();

  SnapshotSink* const sink_;
  wire::SnapshotReader reader_{*this};
  SnapshotSummary summary_;
  std::string file_;  ///< the name of the one that comes
  std::string text_;  ///< of it: all of a small file, or the line that comes
};

/// Reads the snapshot at `path`, "-": standard input, to its end. `progress` gets the bytes so far
/// and in all (0: not known). Errors: as SnapshotCheck's, with the path; NOT_FOUND;
/// CANCELLED once `stop` became true.
absl::StatusOr<SnapshotSummary> ReadSnapshot(
    const std::string& path, SnapshotSink* sink,
    const std::function<void(int64_t done, int64_t total)>& progress,
    const std::atomic<bool>& stop);

/// A data directory in the making. Nobody can take it for one before Commit: without a catalog no
/// server starts in it. Unless that is called everything is removed again.
class RestoredDirectory final : public SnapshotSink {
 public:
  /// FAILED_PRECONDITION if there is something in it already, or no permission.
  static absl::StatusOr<std::unique_ptr<RestoredDirectory>> Make(const std::string& path);
  ~RestoredDirectory() override;

  absl::Status OnFile(std::string_view name, int64_t bytes) override;
  absl::Status OnBytes(std::span<const std::byte> bytes) override;
  absl::Status OnFileEnd() override;
  /// Returns when all of it would survive a power cut.
  absl::Status Commit();

 private:
  explicit RestoredDirectory(std::string path);
  absl::Status Failed(std::string_view doing, const std::string& what) const;

  struct Open;
  const std::string path_;
  std::unique_ptr<Open> open_;
  bool made_ = false;  ///< the directory itself
  bool ours_ = false;  ///< what is in it, until Commit
};

}  // namespace sparsed::cli
