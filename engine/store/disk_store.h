// The store in a data directory:
//
//   LOCK             held while the store is open, and so is a lock of catalog.sqlite itself
//   catalog.sqlite   and its log: rows (schema.cc)
//   blobs/           arrays (blob.h)
//   HAS_CATALOG      there must be a catalog
//   RESERVE          room for a deletion on a full disk
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
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "engine/store/blob.h"
#include "engine/store/data_directory.h"
#include "engine/store/database.h"
#include "engine/store/description.h"
#include "engine/store/records.h"
#include "engine/store/store.h"

namespace sparsed::engine {

class DiskStore final : public Store {
 public:
  /// As OpenStore.
  static absl::StatusOr<std::unique_ptr<Store>> Open(FileSystem& files, std::string directory,
                                                     int64_t past_measurement_bytes);
  /// A store over a catalog of the present schema and the blobs that it is going to know, for a
  /// salvage. It removes no blobs.
  static std::unique_ptr<DiskStore> Over(FileSystem& files, std::unique_ptr<Database> database,
                                         std::shared_ptr<BlobFolder> folder);
  ~DiskStore() override;

  /// Rows for blobs that are there: of row offsets, column indices, values and, if the matrix has
  /// one, the order. Of the arrays only types and lengths are looked at.
  absl::Status AdoptMatrix(const NewMatrix& matrix, std::span<const int64_t> blobs);
  absl::Status AdoptBuffer(const NewBuffer& buffer, int64_t blob);

  bool durable() const override { return true; }
  absl::Status Available() override;
  absl::StatusOr<StoreContents> Load() override;
  absl::StatusOr<StoredMatrix> PutMatrix(const NewMatrix& matrix, Stop stop) override;
  absl::StatusOr<MatrixRecord> PutValues(const std::string& tenant, const std::string& name,
                                         uint64_t version, const Array& values, Stop stop) override;
  absl::Status UseVersions(const std::string& tenant, const std::string& name,
                           uint64_t version) override;
  absl::Status PutShare(const ShareRecord& share) override;
  absl::Status DeleteShare(const std::string& tenant, const std::string& name,
                           const std::string& with) override;
  absl::Status DeleteMatrix(const std::string& tenant, const std::string& name) override;
  absl::StatusOr<LayoutRecord> PutLayout(const std::string& pattern_hash, const Layout& layout,
                                         double build_seconds, Stop stop) override;
  absl::Status DropLayout(const std::string& pattern_hash, const std::string& pipeline) override;
  absl::Status PutPlans(std::span<const PlanRecord> plans) override;
  absl::Status PutMeasurements(std::span<const MeasurementRecord> measurements) override;
  absl::Status PutDecisions(std::span<const DecisionRecord> decisions) override;
  absl::Status PutWanted(std::span<const WantedRecord> wanted) override;
  absl::Status PutPreparation(const std::string& pattern_hash,
                              const PreparationRecord& preparation) override;
  absl::Status PutFeatures(const std::string& pattern_hash, const Features& features) override;
  absl::StatusOr<std::optional<Features>> ReadFeatures(const std::string& pattern_hash,
                                                       MemorySource& memory) override;
  absl::StatusOr<std::optional<PastPattern>> ReadNextPast(const std::string& hash,
                                                          MemorySource& memory) override;
  int64_t past_measurement_bytes() const override { return past_bytes_; }
  absl::StatusOr<BufferRecord> PutBuffer(const NewBuffer& buffer, Stop stop) override;
  absl::Status DeleteBuffer(const std::string& tenant, const std::string& name) override;
  absl::StatusOr<Array> Read(const StoredArray& array, MemorySource& memory, Stop stop) override;
  absl::Status Scrub(
      const std::function<bool(int64_t)>& pace,
      const std::function<void(const StoredArray&, const absl::Status&)>& damaged) override;
  absl::StatusOr<std::unique_ptr<StoreSnapshot>> Snapshot(Stop stop) override;

 private:
  using BlobPtr = std::shared_ptr<Blob>;

  /// What a transaction does to blobs, to be done if it commits.
  struct BlobChanges {
    std::vector<BlobPtr> added;
    std::vector<int64_t> removed;
  };
  struct NewBlob {
    const Array* array;
    ArrayDescription description;
  };
  /// What a change does when the disk is full.
  enum class WhenFull : uint8_t {
    kRefuse,
    kUseReserve,  ///< it frees more than it takes
  };
  /// Which row an array belongs to: a column of table arrays and the row's id.
  struct OwnerRow {
    const char* column;
    int64_t id;
  };

  DiskStore(FileSystem& files, std::unique_ptr<DataDirectory> directory,
            std::unique_ptr<Database> database, std::shared_ptr<BlobFolder> folder)
      : files_(files),
        directory_(std::move(directory)),
        database_(std::move(database)),
        folder_(std::move(folder)) {}
  /// Compares rows with files, given by number: fills blobs_, removes files without a row.
  absl::Status CollectBlobs(std::span<const int64_t> files) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  /// Writes arrays to blobs that are gone again unless a committed change adds them.
  absl::StatusOr<std::vector<BlobPtr>> WriteBlobs(std::span<const NewBlob> arrays, Stop stop)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::vector<BlobPtr>> TryWriteBlobs(std::span<const NewBlob> arrays, Stop stop);
  /// Runs `body` as a transaction, with the lock held, and does the changes to blobs if it commits.
  /// `body` may run more than once, each time with no changes yet.
  absl::Status Apply(const std::function<absl::Status(BlobChanges&)>& body,
                     WhenFull when_full = WhenFull::kRefuse) ABSL_LOCKS_EXCLUDED(mutex_);
  /// Likewise, for one that frees more than it takes.
  absl::Status ApplyRemoval(const std::function<absl::Status(BlobChanges&)>& body)
      ABSL_LOCKS_EXCLUDED(mutex_);
  /// What Available() says.
  absl::Status AvailableLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Database::Outcome Transact(const std::function<absl::Status(BlobChanges&)>& body,
                             BlobChanges& changes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Database::Outcome TransactWhenFull(const std::function<absl::Status(BlobChanges&)>& body,
                                     BlobChanges& changes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  static StoredArray Describing(ArrayOwner owner, std::string name, const Array& array,
                                BlobPtr blob);
  /// But for the version. NOT_FOUND if the matrix is not stored.
  absl::StatusOr<ArrayDescription> DescribeValues(const std::string& tenant,
                                                  const std::string& name)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // For bodies of transactions.
  absl::StatusOr<int64_t> PatternRow(const std::string& hash) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status AddArray(OwnerRow row, int64_t position, const StoredArray& array,
                        const BlobPtr& blob, BlobChanges& changes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status RemoveArrays(OwnerRow row, BlobChanges& changes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::optional<int64_t>> MatrixRow(const std::string& tenant,
                                                   const std::string& name)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status RemoveMatrix(int64_t id, BlobChanges& changes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Forgets what `matrix`, which is stored, was called before (NewMatrix::moved_from).
  absl::Status ForgetMoved(const NewMatrix& matrix, BlobChanges& changes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status RemovePatternIfUnused(int64_t pattern, BlobChanges& changes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Makes what is known of a pattern that goes a past pattern's.
  absl::Status KeepAsPast(int64_t pattern) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Forgets the oldest past patterns until the others take no more than they may.
  absl::Status BoundPast() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<PatternRecord> StorePattern(const NewMatrix& matrix,
                                             std::span<const BlobPtr> blobs, BlobChanges& changes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<MatrixRecord> StoreMatrix(const NewMatrix& matrix, std::span<const BlobPtr> blobs,
                                           BlobChanges& changes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status StoreLayout(int64_t pattern, const LayoutRecord& record,
                           std::span<const BlobPtr> blobs, BlobChanges& changes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status RemoveLayout(int64_t pattern, const std::string& pipeline, BlobChanges& changes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<BufferRecord> StoreBuffer(const NewBuffer& buffer, const BlobPtr& blob,
                                           BlobChanges& changes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  /// ABORTED if the pattern is needed and `with_pattern` is false.
  absl::StatusOr<StoredMatrix> TryPutMatrix(const NewMatrix& matrix, bool with_pattern, Stop stop);
  bool PatternIsUsable(const std::string& hash);
  absl::StatusOr<Array> ReadBlob(const StoredArray& array, MemorySource& memory, Stop stop);
  /// Names the array in what reading it failed with, and remembers a damaged pattern.
  absl::Status ReadError(const StoredArray& array, const absl::Status& status);

  FileSystem& files_;
  Mutex mutex_;
  /// Null: of a salvage.
  const std::unique_ptr<DataDirectory> directory_ ABSL_PT_GUARDED_BY(mutex_);
  const std::unique_ptr<Database> database_ ABSL_PT_GUARDED_BY(mutex_);
  const std::shared_ptr<BlobFolder> folder_;
  std::atomic<int64_t> next_blob_{1};
  Blobs blobs_ ABSL_GUARDED_BY(mutex_);
  /// Blobs of commits that failed but may come back after a crash, until the next commit.
  std::vector<BlobPtr> undecided_ ABSL_GUARDED_BY(mutex_);
  /// Patterns whose arrays were found damaged.
  std::set<std::string> damaged_patterns_ ABSL_GUARDED_BY(mutex_);
  int64_t most_past_bytes_ = 0;  ///< since it was opened
  std::atomic<int64_t> past_bytes_ = 0;
  /// What that is once the change under way is done, if it is another.
  std::optional<int64_t> next_past_bytes_ ABSL_GUARDED_BY(mutex_);
  bool disk_is_full_ ABSL_GUARDED_BY(mutex_) = false;  ///< while a change frees more than it takes
};

}  // namespace sparsed::engine
