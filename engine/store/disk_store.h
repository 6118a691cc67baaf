// The store in a data directory:
//
//   LOCK             held while the store is open
//   catalog.sqlite   and its log: rows (schema.cc)
//   blobs/           arrays (blob.h)
//
// A row refers to its blobs by number. A blob is written, synced, renamed and its folder synced
// before the transaction that refers to it; it is removed after the transaction that forgets it. So
// every row's blobs are there at any moment, and a blob without a row is rubbish, which opening
// removes.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/store/blob.h"
#include "engine/store/database.h"
#include "engine/store/records.h"
#include "engine/store/store.h"

namespace sparsed::engine {

class DiskStore final : public Store {
 public:
  static absl::StatusOr<std::unique_ptr<Store>> Open(FileSystem& files, std::string directory);
  ~DiskStore() override;

  bool durable() const override { return true; }
  absl::StatusOr<StoreContents> Load() override;
  absl::StatusOr<StoredMatrix> PutMatrix(const NewMatrix& matrix, Stop stop) override;
  absl::StatusOr<MatrixRecord> PutValues(const std::string& tenant, const std::string& name,
                                         uint64_t version, const Array& values, Stop stop) override;
  absl::Status DeleteMatrix(const std::string& tenant, const std::string& name) override;
  absl::StatusOr<LayoutRecord> PutLayout(const std::string& pattern_hash, const Layout& layout,
                                         double build_seconds, Stop stop) override;
  absl::Status DropLayout(const std::string& pattern_hash, const std::string& recipe) override;
  absl::Status PutPlans(std::span<const PlanRecord> plans) override;
  absl::Status PutMeasurements(std::span<const MeasurementRecord> measurements) override;
  absl::Status PutDecisions(std::span<const DecisionRecord> decisions) override;
  absl::Status PutWanted(std::span<const WantedRecord> wanted) override;
  absl::Status PutPreparation(const std::string& pattern_hash,
                              const PreparationRecord& preparation) override;
  absl::Status PutFeatures(const std::string& pattern_hash, const Features& features) override;
  absl::StatusOr<std::optional<Features>> ReadFeatures(const std::string& pattern_hash,
                                                       MemorySource& memory) override;
  absl::StatusOr<BufferRecord> PutBuffer(const NewBuffer& buffer, Stop stop) override;
  absl::Status DeleteBuffer(const std::string& tenant, const std::string& name) override;
  absl::StatusOr<Array> Read(const StoredArray& array, MemorySource& memory, Stop stop) override;
  absl::Status Scrub(
      const std::function<bool(int64_t)>& pace,
      const std::function<void(const StoredArray&, const absl::Status&)>& damaged) override;

 private:
  using BlobPtr = std::shared_ptr<Blob>;

  /// What a transaction does to blobs, to be done if it commits.
  struct BlobChanges {
    std::vector<BlobPtr> added;
    std::vector<int64_t> removed;
  };
  /// Which row an array belongs to: a column of table arrays and the row's id.
  struct OwnerRow {
    const char* column;
    int64_t id;
  };

  DiskStore(std::unique_ptr<FileLock> lock, std::unique_ptr<Database> database,
            std::shared_ptr<BlobFolder> folder)
      : lock_(std::move(lock)), database_(std::move(database)), folder_(std::move(folder)) {}
  /// Compares rows with files, given by number: fills blobs_, removes files without a row.
  absl::Status CollectBlobs(std::span<const int64_t> files);

  /// Writes arrays to blobs that are gone again unless a committed change adds them. Without the
  /// lock.
  absl::StatusOr<std::vector<BlobPtr>> WriteBlobs(std::span<const Array* const> arrays, Stop stop);
  /// Runs `body` as a transaction, with the lock held, and does the changes to blobs if it commits.
  absl::Status Apply(const std::function<absl::Status(BlobChanges&)>& body);

  // For bodies of transactions, with the lock held.
  absl::StatusOr<int64_t> PatternRow(const std::string& hash);
  absl::Status AddArray(OwnerRow row, int64_t position, const StoredArray& array,
                        const BlobPtr& blob, BlobChanges& changes);
  absl::Status RemoveArrays(OwnerRow row, BlobChanges& changes);
  absl::Status RemovePatternIfUnused(int64_t pattern, BlobChanges& changes);
  absl::StatusOr<PatternRecord> StorePattern(const NewMatrix& matrix,
                                             std::span<const BlobPtr> blobs, BlobChanges& changes);
  absl::StatusOr<MatrixRecord> StoreMatrix(const NewMatrix& matrix, std::span<const BlobPtr> blobs,
                                           BlobChanges& changes);

  absl::Status StoreLayout(int64_t pattern, const LayoutRecord& record,
                           std::span<const BlobPtr> blobs, BlobChanges& changes);
  absl::Status RemoveLayout(int64_t pattern, const std::string& recipe, BlobChanges& changes);

  /// ABORTED if the pattern is needed and `with_pattern` is false.
  absl::StatusOr<StoredMatrix> TryPutMatrix(const NewMatrix& matrix, bool with_pattern, Stop stop);
  bool PatternIsUsable(const std::string& hash);
  absl::StatusOr<Array> ReadBlob(const StoredArray& array, MemorySource& memory, Stop stop);
  /// Names the array in what reading it failed with, and remembers a damaged pattern.
  absl::Status ReadError(const StoredArray& array, const absl::Status& status);

  const std::unique_ptr<FileLock> lock_;
  std::mutex mutex_;  // guards everything below but folder_ and next_blob_
  const std::unique_ptr<Database> database_;
  const std::shared_ptr<BlobFolder> folder_;
  std::atomic<int64_t> next_blob_{1};
  Blobs blobs_;
  /// Blobs of commits that failed but may come back after a crash, until the next commit.
  std::vector<BlobPtr> undecided_;
  /// Patterns whose arrays were found damaged.
  std::set<std::string> damaged_patterns_;
};

}  // namespace sparsed::engine
