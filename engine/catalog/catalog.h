// The catalog: which matrices there are. Entries are immutable versions held by leases.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "engine/catalog/canonical.h"
#include "engine/catalog/matrix.h"
#include "engine/catalog/name_locks.h"
#include "engine/catalog/shares.h"
#include "engine/memory/array_assembler.h"
#include "engine/memory/budget.h"
#include "engine/requester.h"
#include "engine/store/store.h"
#include "kernels/problem.h"

namespace sparsed::engine {

/// Of matrices and buffers.
inline constexpr size_t kMaxNameBytes = 255;
/// INVALID_ARGUMENT unless 1 to kMaxNameBytes bytes of [A-Za-z0-9._:/@+-].
absl::Status ValidateName(std::string_view what, std::string_view name);

/// NOT_FOUND; INVALID_ARGUMENT for what no matrix can be called.
absl::Status NoMatrix(std::string_view reference);

/// ALREADY_EXISTS: for an upload that does not ask to replace the matrix of that name.
absl::Status NameIsTaken(std::string_view name);

/// FAILED_PRECONDITION if something is to be kept on disk and the store keeps nothing there.
absl::Status CheckDurable(bool durable, const Store& store);

/// CANCELLED if `stop` became true.
absl::Status CheckStop(Store::Stop stop);

/// Largest number of rows or columns: indices are 32-bit and one value is kept for "none".
inline constexpr int64_t kMaxDimension = 2147483646;

struct UploadHeader {
  std::string tenant, name;
  int64_t rows = 0, cols = 0, nnz = 0;
  ElementType type = ElementType::kF32;
  ElementType row_offsets_type = ElementType::kI64;
  bool replace = false;
  bool sort = false;
  bool sum_duplicates = false;
  bool values_are_ones = false;
  std::string pattern_hash;  ///< empty: not known to the caller
  /// Of no particular type and device: the preparation puts in the matrix's and its own.
  std::vector<ProblemSignature> expected;
  /// For which nothing needs to use it before it is deleted; 0: it stays.
  std::chrono::nanoseconds time_to_live{0};
  /// Of a copy of what another server has: the numbers that it has there. 0: it gets its own.
  uint64_t version = 0;
  int64_t created_unix_ns = 0;
  Requester requester = {};  ///< for who is told of it
};

/// No matrix, sparse or held, may ask for a longer time to live: what a job left behind goes some
/// day.
inline constexpr std::chrono::nanoseconds kLongestTimeToLive = std::chrono::hours(366 * 24);
/// INVALID_ARGUMENT for another one. `what` begins the sentence, `otherwise` says what 0 means.
absl::Status CheckTimeToLive(std::string_view what, std::chrono::nanoseconds time_to_live,
                             std::string_view otherwise);

struct CatalogOptions {
  /// Equal patterns of different tenants share layouts and measurements, and with them who has such
  /// a pattern shows: by the state of the preparation, and by how long an upload takes.
  bool share_patterns = false;
  std::function<std::chrono::steady_clock::time_point()> now = std::chrono::steady_clock::now;
};

/// What became of a matrix whose time to live was over.
struct MatrixExpiry {
  MatrixLease matrix;
  absl::Status status;  ///< not OK: the disk did not let it go, and it is still there
};

class Catalog;

/// An upload under way. Not thread-safe. Destroying it before Finish leaves nothing behind.
class Upload {
 public:
  enum ArrayIndex : uint32_t { kRowOffsets = 0, kColumnIndices = 1, kValues = 2 };

  /// True if the header's pattern hash is known, so that arrays 0 and 1 are not wanted and the
  /// values come in canonical order. (A caller that asks for sorting must send them: its order is
  /// in them.)
  bool pattern_known() const { return known_ != nullptr; }
  /// Where bytes of an array may be written; INVALID_ARGUMENT for an array that is not wanted,
  /// overlaps, overruns.
  absl::StatusOr<std::byte*> Claim(uint32_t array, uint64_t offset, uint64_t size);
  /// Validates, hashes, stores, publishes; once. Blocks on disk and on CPU time: not for a
  /// reactor's thread. ALREADY_EXISTS if another upload of the name was faster; NOT_FOUND if the
  /// pattern was to be known and is not (any more); CANCELLED if `stop` became true in time.
  absl::StatusOr<MatrixLease> Finish(int threads, Store::Stop stop = nullptr);
  /// Bytes that are to come, and those of memory that what came takes.
  size_t announced() const;
  size_t counted() const;

 private:
  friend class Catalog;
  Upload(Catalog& catalog, UploadHeader header);
  bool wanted(uint32_t array) const;
  absl::Status Reserve();
  absl::StatusOr<Array> TakeValues(int threads);

  Catalog& catalog_;
  const UploadHeader header_;
  MemorySource& memory_;  ///< the tenant's
  std::shared_ptr<Pattern> known_;
  ArrayAssembler arrays_[3];  ///< row_offsets has room for 64-bit elements whatever comes
};

struct UpdateHeader {
  std::string tenant, name;
  ElementType type = ElementType::kF32;
  bool durable = false;
  uint64_t if_version = 0;
};

/// Replacement values under way. Not thread-safe.
class ValuesUpdate {
 public:
  /// Array 0: nnz values in the caller's order (the canonical one, if duplicates were summed).
  absl::StatusOr<std::byte*> Claim(uint32_t array, uint64_t offset, uint64_t size);
  /// Refreshes every layout, then publishes the new version; once. Blocks: not for a reactor's
  /// thread. ABORTED if the matrix has another version than `if_version` or was replaced meanwhile;
  /// CANCELLED if `stop` became true in time.
  absl::StatusOr<MatrixLease> Finish(int threads, Store::Stop stop = nullptr);
  /// Bytes that are to come, and those of memory that what came takes.
  size_t announced() const { return values_.array().bytes(); }
  size_t counted() const { return values_.counted(); }

 private:
  friend class Catalog;
  ValuesUpdate(Catalog& catalog, UpdateHeader header, MatrixLease base);
  absl::Status CheckVersion(const Matrix& present) const;

  Catalog& catalog_;
  const UpdateHeader header_;
  MemorySource& memory_;  ///< the tenant's
  const MatrixLease base_;
  ArrayAssembler values_;
};

/// Names are a tenant's own; other tenants' matrices that their owners share are named by a
/// reference, "alice~web" (Named). To whom one is not shared, it is not there. Thread-safe.
class Catalog {
 public:
  Catalog(Store& store, Budget& budget, CatalogOptions options = {});

  /// Enters what the store holds; arrays are read when they are first needed. Called once, before
  /// anything else. DATA_LOSS if a record makes no sense, RESOURCE_EXHAUSTED if there are too many.
  absl::Status Restore(const StoreContents& contents);

  /// Reserves memory for the arrays at once: RESOURCE_EXHAUSTED now rather than in the middle.
  /// ALREADY_EXISTS, INVALID_ARGUMENT. Reads only memory.
  absl::StatusOr<std::unique_ptr<Upload>> BeginUpload(UploadHeader header);
  /// Likewise, of a matrix that may be another tenant's, who then pays for the values;
  /// FAILED_PRECONDITION if it is to be durable and nothing is, PERMISSION_DENIED if it is shared
  /// for reading alone.
  absl::StatusOr<std::unique_ptr<ValuesUpdate>> BeginUpdate(UpdateHeader header);
  /// A matrix made from arrays that are valid canonical CSR (SpGEMM results). Blocks on the disk.
  absl::StatusOr<MatrixLease> Insert(const UploadHeader& header, Array row_offsets,
                                     Array column_indices, Array values);

  /// The one place that says whether a tenant may have a matrix. A use: its time to live begins
  /// anew. NOT_FOUND, the same if there is none and if it is somebody else's alone;
  /// PERMISSION_DENIED if it is shared for less than `right`.
  absl::StatusOr<MatrixLease> Find(std::string_view tenant, std::string_view reference,
                                   Right right = Right::kRead) const;
  /// The tenant's own of that very name, to look at: that is no use of it. Null if there is none.
  MatrixLease Look(std::string_view tenant, std::string_view name) const {
    return Present(NameKey(tenant, name));
  }
  /// Likewise one of another owner that is shared with the tenant.
  MatrixLease LookAtShared(std::string_view tenant, const NameKey& key) const;
  /// Those whose names begin with `prefix` and come after `after`, by name.
  std::vector<MatrixLease> List(std::string_view tenant, std::string_view prefix,
                                std::string_view after = "") const;
  /// Those that others share with the tenant, whose references begin with `prefix` and come after
  /// `after`, by reference.
  std::vector<MatrixLease> ListShared(std::string_view tenant, std::string_view prefix,
                                      std::string_view after = "") const;
  /// Those of all tenants, whose "TENANT~NAME" begin with `prefix` and come after `after`, by
  /// tenant, then by name.
  std::vector<MatrixLease> ListAll(std::string_view prefix, std::string_view after = "") const;
  /// The tenant's own alone. Blocks on the disk.
  absl::Status Delete(std::string_view tenant, std::string_view name);
  /// Gives the tenant's own matrix another name. Whoever looks finds it by one of the two, never by
  /// both; who holds it goes on. Shares go along, and so does its time to live. Its values, those
  /// that were not durable, too, are written under the new name, so that it takes as long as that.
  /// Blocks on the disk and on CPU time. NOT_FOUND; ALREADY_EXISTS; RESOURCE_EXHAUSTED.
  absl::StatusOr<MatrixLease> Rename(std::string_view tenant, std::string_view name,
                                     const std::string& new_name, int threads,
                                     Store::Stop stop = nullptr);
  /// Another matrix with the values that the tenant's own has now: it has its pattern, layouts,
  /// plans and time to live in common with it, and is shared with nobody. Otherwise as Rename;
  /// `replace`: a matrix of the new name, if there is one.
  absl::StatusOr<MatrixLease> Copy(std::string_view tenant, std::string_view name,
                                   const std::string& new_name, bool replace, int threads,
                                   Store::Stop stop = nullptr);
  /// Lets somebody else use the tenant's own matrix of that name, whatever stands for it from now
  /// on, until it is deleted. Blocks on the disk. NOT_FOUND; INVALID_ARGUMENT for what is no
  /// tenant; RESOURCE_EXHAUSTED past Shares::kMost.
  absl::Status Share(std::string_view tenant, std::string_view name, engine::Share share);
  /// What was begun goes on. NOT_FOUND if it was not shared with him.
  absl::Status Unshare(std::string_view tenant, std::string_view name, std::string_view with);
  std::vector<engine::Share> SharesOf(const Matrix& matrix) const;

  /// Deletes those that nothing used for their time to live. Whoever holds one uses it. For a
  /// thread that calls it every few seconds: it looks at some thousands, goes on behind them the
  /// next time, and blocks on the disk, until it is told to stop.
  std::vector<MatrixExpiry> Expire(const std::stop_token& stop = {});
  /// The present versions of every matrix of a pattern.
  std::vector<MatrixLease> MatricesOf(const Pattern& pattern) const;
  std::vector<MatrixLease> All() const;
  int64_t patterns() const;
  /// Other servers that change the same names may have used versions up to this one: those that are
  /// made here from now on are higher.
  void RaiseVersions(uint64_t used);
  /// Matrices have that pattern, or one that is being uploaded.
  bool HasPattern(const std::string& hash) const;

  /// Called, outside any lock, after a matrix was published by an upload (with the signatures that
  /// it expects) and after the last matrix of a pattern was deleted. Set before the first upload.
  std::function<void(MatrixLease, const std::vector<ProblemSignature>&, const Requester&)>
      on_published;
  std::function<void(const std::shared_ptr<Pattern>&)> on_pattern_gone;
  /// Called as the name comes to stand for other values or another matrix, or for none, or is
  /// shared no more: with the catalog's lock, so that nobody sees the change before. Must not
  /// block, nor call the catalog. Set before the first upload.
  std::function<void(std::string_view tenant, std::string_view name)> on_changed;

 private:
  friend class Upload;
  friend class ValuesUpdate;

  /// Of that very name, which is no use of it; null if there is none.
  MatrixLease Present(const NameKey& key) const;
  /// Why it is not the tenant's to delete.
  absl::Status NotDeletable(std::string_view tenant, std::string_view reference) const;
  bool IsDue(const MatrixLease& matrix) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Of the next few thousand entries.
  std::vector<NameKey> FindDue();
  /// None if it was used, replaced or deleted meanwhile.
  std::optional<MatrixExpiry> ExpireIfDue(const NameKey& key);
  /// It was deleted from the disk: forgets what else is known by its name. A pattern that is no
  /// longer used.
  std::shared_ptr<Pattern> ForgetNameLocked(const NameKey& key, const MatrixLease& deleted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// The pattern of that hash if one of the tenant's matrices has it, else null.
  std::shared_ptr<Pattern> KnownPattern(std::string_view tenant, std::string_view hash) const;
  /// The pattern that canonical arrays are: one that exists, or a new one, which shares them.
  absl::StatusOr<std::shared_ptr<Pattern>> Intern(std::string_view tenant, const CsrArrays& arrays,
                                                  Store::Stop stop);
  /// Interns, stores and publishes a new matrix.
  absl::StatusOr<MatrixLease> AddArrays(const UploadHeader& header, CsrArrays arrays, int threads,
                                        Store::Stop stop);
  /// The record of a new matrix with that pattern. Its arrays are written only if the store does
  /// not have them, or knows that they are damaged.
  static NewMatrix RecordOf(const NameKey& key, const Pattern& pattern, const Layout& csr,
                            Array values, std::optional<Array> caller_order);
  /// What was stored may leave memory.
  void SetDiskCopies(const Matrix& matrix, LazyArray& values, const StoredMatrix& stored);
  /// Of matrix `old`, which has another name, with what it holds; stores and publishes it in its
  /// place. The locks of both names are held.
  absl::StatusOr<MatrixLease> Move(const MatrixLease& old, const NameKey& to, int threads,
                                   Store::Stop stop);
  /// Takes `old` away and puts `matrix` there, its shares included, at once.
  void PublishMoved(const MatrixLease& old, const MatrixLease& matrix);
  /// Stores and publishes a new matrix, with its pattern if the store does not have that.
  absl::StatusOr<MatrixLease> Add(const UploadHeader& header, std::shared_ptr<Pattern> pattern,
                                  Array values, std::optional<Array> caller_order, int threads,
                                  Store::Stop stop);
  /// Of a tenant's matrices: of a pattern that several upload, the first's.
  MemorySource& MemoryOf(std::string_view tenant) {
    return budget_.Source(MemoryUse::kMatrices, &budget_.OwnerOf(tenant));
  }
  /// Before anything of it comes; it is asked again when all is there.
  absl::Status CheckQuotas(const UploadHeader& header);
  Tenant& TenantOf(std::string_view tenant) { return budget_.tenants().Of(tenant); }
  /// `array` of a tenant's was stored as `stored`: it may leave memory.
  void SetDiskCopy(LazyArray& array, std::string_view tenant, const StoredArray& stored);
  /// What a matrix of the tenant's takes that is to be there besides the others, or instead of
  /// `replaced` (may be null); `on_disk`: bytes of its arrays. RESOURCE_EXHAUSTED.
  absl::StatusOr<MatrixKeep> KeepMatrix(std::string_view tenant, const Matrix* replaced,
                                        int64_t on_disk, std::chrono::nanoseconds time_to_live);
  /// Places the values of a version that is to be published in every layout of its pattern, but for
  /// those that only a GPU uses: they get theirs there.
  absl::Status PlaceInLayouts(const Matrix& matrix, int threads, Store::Stop stop);
  /// The version that comes next for a name, whose lock in `changes_` is held: higher than any that
  /// it ever had, also before a restart, or before it was deleted.
  uint64_t NextVersion(const NameKey& key) const;
  /// To be called before values that are not stored are published as this version.
  absl::Status UseVersion(const NameKey& key, uint64_t version);
  /// Puts it in the place of what has its name, in both maps. Returns what was there.
  MatrixLease ReplaceLocked(const MatrixLease& matrix) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Takes what has the name out of both maps; null if nothing has it. Every change of what a name
  /// stands for comes by here.
  MatrixLease RemoveLocked(const NameKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Puts `matrix` in the place of what has its name. Returns a pattern that is no longer used.
  std::shared_ptr<Pattern> Publish(const MatrixLease& matrix);
  /// Returns the pattern if no matrix has it any more; new uploads then do not find it either.
  std::shared_ptr<Pattern> RetireLocked(const std::shared_ptr<Pattern>& pattern)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const CatalogOptions options_;
  Store& store_;
  Budget& budget_;
  NameLocks changes_;  ///< taken before mutex_, held while the disk is written
  mutable Mutex mutex_;
  struct Versions {
    uint64_t last = 0;      ///< no higher one was used
    uint64_t reserved = 0;  ///< no higher one may be used before the store knows
  };
  std::map<NameKey, MatrixLease> matrices_ ABSL_GUARDED_BY(mutex_);
  /// The same matrices, for whoever asks for those of one pattern.
  std::unordered_map<const Pattern*, std::map<NameKey, MatrixLease>> of_pattern_
      ABSL_GUARDED_BY(mutex_);
  Shares shares_ ABSL_GUARDED_BY(mutex_);
  NameKey looked_at_ ABSL_GUARDED_BY(mutex_);  ///< the last one that FindDue did; empty: none
  std::map<NameKey, Versions> versions_ ABSL_GUARDED_BY(mutex_);  ///< of matrices_
  uint64_t deleted_version_ ABSL_GUARDED_BY(mutex_) = 0;  ///< the highest of any that was deleted
  uint64_t others_version_ ABSL_GUARDED_BY(mutex_) = 0;   ///< the highest that others may have used
  std::map<std::string, std::weak_ptr<Pattern>> patterns_ ABSL_GUARDED_BY(mutex_);  ///< by hash
};

}  // namespace sparsed::engine
