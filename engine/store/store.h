// What survives a restart: patterns, matrices, layouts, plans, measurements and held dense
// matrices, as rows of a SQLite catalog and a checksummed blob file for each array.
//
// A call that returns OK is durable: it survives `kill -9` and a power cut at any point. A call
// that returns an error, or never returns, has happened wholly or not at all. What it is all kept
// in, and why that holds, is docs/storage.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/store/file_system.h"
#include "engine/store/pattern_pair.h"
#include "kernels/array.h"
#include "kernels/features/features.h"
#include "kernels/layout.h"

namespace sparsed::engine {

class Blob;
class StoreSnapshot;

/// Whom a stored array belongs to. Unused fields are empty.
struct ArrayOwner {
  enum class Kind : uint8_t { kPattern, kMatrix, kLayout, kBuffer };
  Kind kind = Kind::kPattern;
  std::string pattern_hash;  ///< kPattern, kMatrix, kLayout
  std::string tenant;        ///< kMatrix, kBuffer
  std::string name;          ///< kMatrix, kBuffer
  std::string pipeline;      ///< kLayout
};

/// An array on disk. Copies share it, and what it refers to stays readable until the last copy is
/// gone, even if its record is replaced or deleted meanwhile. Copies must be gone before the store.
struct StoredArray {
  ArrayOwner owner;
  std::string name;
  ElementType type = ElementType::kI32;
  int64_t length = 0;  ///< in elements
  std::shared_ptr<const Blob> blob;

  /// False for an array that is not on disk: everything that an in-memory store returns.
  bool readable() const { return blob != nullptr; }
};

/// Its file is there, and nobody found it damaged. Takes no lock of the store's.
bool IsIntact(const StoredArray& array);

/// For sentences: "values of matrix 'web' of tenant 'a'", "row_offsets of pattern 1f0c...".
std::string Describe(const StoredArray& array);

/// What the preparation of a pattern came to.
struct PreparationRecord {
  std::string state;   ///< the catalog's word for it; empty if it never ended
  std::string detail;  ///< for people
  double seconds = 0;
};

struct PatternRecord {
  std::string hash;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t nnz = 0;
  StoredArray row_offsets;
  StoredArray column_indices;
  PreparationRecord preparation;
};

struct MatrixRecord {
  std::string tenant;
  std::string name;
  std::string pattern_hash;
  ElementType type = ElementType::kF32;
  uint64_t version = 0;       ///< of the values
  uint64_t used_version = 0;  ///< no higher one was ever used for the name
  int64_t created_unix_ns = 0;
  StoredArray values;
  std::optional<StoredArray> value_order;  ///< none: the caller's order is the canonical one
  int64_t time_to_live_ns = 0;             ///< after its last use; 0: none
};

/// Whom a matrix's owner lets use it.
struct ShareRecord {
  std::string tenant;  ///< the owner
  std::string name;
  std::string with;  ///< a tenant, or "*" for all
  bool may_write = false;
};

struct LayoutRecord {
  std::string pattern_hash;
  Layout layout;  ///< all but its arrays
  double build_seconds = 0;
  std::vector<StoredArray> arrays;
};

struct PlanRecord {
  std::string pattern_hash;
  std::string signature;  ///< ToString(ProblemSignature)
  std::string pipeline;
  std::string kernel;
  double baseline_ms = 0;
  double plan_ms = 0;
  std::string reason;
  /// How operands had best lie over GPUs: "whole", "columns" or "rows"; empty: nothing was tried.
  std::string distribution = {};
  int32_t gpus = 0;     ///< that there were
  double whole_ms = 0;  ///< a request on one of them
  double best_ms = 0;   ///< one that is distributed so
};

struct MeasurementRecord {
  std::string pattern_hash;
  std::string signature;  ///< ToString(ProblemSignature)
  std::string pipeline;
  std::string kernel;
  std::string device;
  int64_t k = 0;  ///< the width that was timed
  double median_ms = 0;
  int32_t runs = 0;
  int64_t measured_unix_ns = 0;
  double baseline_ms = 0;     ///< of plain CSR at that time; 0: not known
  double roofline_ms = 0;     ///< at that time; 0: not known
  double preparation_ms = 0;  ///< to build the layout
  std::string model = {};     ///< the processor's or the card's name; empty: not known
  std::optional<PatternPair> pair = std::nullopt;  ///< SpGEMM, which is tried pair by pair
  double compulsory_bytes = 0;                     ///< that roofline_ms is of; 0: not known
  bool censored = false;  ///< stopped early: far slower than what it was compared with
};

/// What was measured on a pattern that is stored no more.
struct PastPattern {
  std::string hash;
  std::optional<Features> features;  ///< none: they were not stored
  std::vector<MeasurementRecord> measurements;
};
/// What past patterns may take on disk, by estimate.
inline constexpr int64_t kPastMeasurementBytes = int64_t{64} << 20;

/// What became of a pipeline for a signature, or of a kernel of SpGEMM for a pair.
struct DecisionRecord {
  std::string pattern_hash;
  std::string signature;  ///< ToString(ProblemSignature)
  std::string pipeline;   ///< empty: it is about the signature
  bool tried = false;
  std::string reason;
  std::string kernel = {};                         ///< of SpGEMM
  std::optional<PatternPair> pair = std::nullopt;  ///< likewise
};

/// A problem signature that a pattern is to be prepared for: it has no plan yet, or is to be timed
/// again.
struct WantedRecord {
  std::string pattern_hash;
  std::string signature;  ///< ToString(ProblemSignature)
};

/// A dense matrix that the server holds.
struct BufferRecord {
  std::string tenant;
  std::string name;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t leading_dimension = 0;  ///< in elements
  uint64_t version = 0;
  std::string owner;                     ///< may be empty
  int64_t time_to_live_ns = 0;           ///< after its last use; 0: none
  StoredArray array;                     ///< its type is the buffer's
  std::string distribution = {};         ///< over GPUs, "columns" or "rows"; empty: it was whole
  std::vector<int64_t> row_bounds = {};  ///< of "rows": where each GPU's begin, and the end
};

/// Everything that is stored; patterns and names in ascending order, measurements and decisions in
/// the order in which they were taken.
struct StoreContents {
  std::vector<PatternRecord> patterns;
  std::vector<MatrixRecord> matrices;
  std::vector<ShareRecord> shares;
  std::vector<LayoutRecord> layouts;
  std::vector<PlanRecord> plans;
  std::vector<MeasurementRecord> measurements;
  std::vector<DecisionRecord> decisions;
  std::vector<WantedRecord> wanted;
  std::vector<BufferRecord> buffers;
  uint64_t deleted_version = 0;  ///< the highest of any matrix that was deleted
  int64_t scrubbed_unix_ns = 0;  ///< when the last scrub came to its end; 0: none did
};

/// UNAVAILABLE: the store's directory is gone. IsStoreGone tells it from a device that is lost.
absl::Status StoreGone(const std::string& sentence);
bool IsStoreGone(const absl::Status& status);

/// A matrix to store. The arrays' bytes must not change before the call returns.
struct NewMatrix {
  std::string tenant;
  std::string name;
  std::string pattern_hash;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t nnz = 0;
  /// May be left out only if the pattern is stored; NOT_FOUND if it is not, or not any more.
  std::optional<Array> row_offsets;
  std::optional<Array> column_indices;
  Array values;
  std::optional<Array> value_order;
  uint64_t version = 1;
  int64_t created_unix_ns = 0;
  int64_t time_to_live_ns = 0;
  /// If not empty, the tenant's matrix of this name is forgotten in the same change, and what was
  /// shared by that name is by the new one, which no stored matrix has. NOT_FOUND if it is not
  /// stored.
  std::string moved_from = {};
};

struct StoredMatrix {
  PatternRecord pattern;
  MatrixRecord matrix;
};

/// A dense matrix to store.
struct NewBuffer {
  std::string tenant;
  std::string name;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t leading_dimension = 0;
  uint64_t version = 1;
  std::string owner;
  int64_t time_to_live_ns = 0;
  Array array;
  std::string distribution = {};  ///< as BufferRecord's
  std::vector<int64_t> row_bounds = {};
};

/// Thread-safe: calls about different names run at the same time, big writes and reads without a
/// lock held. Calls that write one name must be put in order by the caller.
///
/// Errors of calls that write: RESOURCE_EXHAUSTED (disk full: with the path and the bytes needed;
/// there is always room for deletions, unless others take that, too), CANCELLED (`stop` became
/// true), UNAVAILABLE (the directory is gone), INTERNAL (the disk failed). After any of them the
/// store is as before the call and goes on working.
class Store {
 public:
  using Stop = const std::atomic<bool>*;

  virtual ~Store() = default;

  /// False if nothing is kept on disk.
  virtual bool durable() const = 0;
  /// OK while everything is where it was when the store was opened. UNAVAILABLE when it was removed
  /// or replaced meanwhile: so say then all calls that need the disk.
  virtual absl::Status Available() = 0;
  /// What is stored now; called once after a start.
  virtual absl::StatusOr<StoreContents> Load() = 0;

  /// Stores a matrix, and its pattern if that is not stored yet; replaces a matrix of the same
  /// name. A pattern whose stored arrays are known to be damaged is written anew.
  virtual absl::StatusOr<StoredMatrix> PutMatrix(const NewMatrix& matrix, Stop stop = nullptr) = 0;
  /// Replaces a matrix's values. NOT_FOUND if it is not stored.
  virtual absl::StatusOr<MatrixRecord> PutValues(const std::string& tenant, const std::string& name,
                                                 uint64_t version, const Array& values,
                                                 Stop stop = nullptr) = 0;
  /// Remembers that versions of the matrix up to this one may be used, by values that are not
  /// stored. OK if the matrix is not stored.
  virtual absl::Status UseVersions(const std::string& tenant, const std::string& name,
                                   uint64_t version) = 0;
  /// Replaces the share with the same. It stays with the name until that is deleted. NOT_FOUND if
  /// the matrix is not stored.
  virtual absl::Status PutShare(const ShareRecord& share) = 0;
  /// OK if it is not stored.
  virtual absl::Status DeleteShare(const std::string& tenant, const std::string& name,
                                   const std::string& with) = 0;
  /// Forgets a matrix, but for the highest version that it may have had, and with a pattern's last
  /// matrix the pattern and everything known of it but its features and last measurements, which
  /// become those of a past pattern unless the disk is full. OK if it is not stored.
  virtual absl::Status DeleteMatrix(const std::string& tenant, const std::string& name) = 0;

  /// Stores a finished layout; replaces one of the same pipeline. NOT_FOUND if the pattern is not
  /// stored (any more).
  virtual absl::StatusOr<LayoutRecord> PutLayout(const std::string& pattern_hash,
                                                 const Layout& layout, double build_seconds,
                                                 Stop stop = nullptr) = 0;
  /// Forgets a layout, and with it the plans that use it: their signatures are wanted again. OK if
  /// it is not stored.
  virtual absl::Status DropLayout(const std::string& pattern_hash, const std::string& pipeline) = 0;

  /// Replace what is known of each pattern and signature that is named. All or none. NOT_FOUND if a
  /// pattern is not stored (any more).
  virtual absl::Status PutPlans(std::span<const PlanRecord> plans) = 0;
  virtual absl::Status PutMeasurements(std::span<const MeasurementRecord> measurements) = 0;
  virtual absl::Status PutDecisions(std::span<const DecisionRecord> decisions) = 0;
  /// Adds to what is wanted; a signature that PutPlans brings a plan for is not wanted any more.
  /// All or none. NOT_FOUND if a pattern is not stored (any more).
  virtual absl::Status PutWanted(std::span<const WantedRecord> wanted) = 0;
  virtual absl::Status PutPreparation(const std::string& pattern_hash,
                                      const PreparationRecord& preparation) = 0;
  /// Replaces a pattern's features. NOT_FOUND if the pattern is not stored (any more).
  virtual absl::Status PutFeatures(const std::string& pattern_hash, const Features& features) = 0;
  /// None if they are not stored, or not all of them; the density map is of `memory`. Errors:
  /// RESOURCE_EXHAUSTED, DATA_LOSS, INTERNAL.
  virtual absl::StatusOr<std::optional<Features>> ReadFeatures(const std::string& pattern_hash,
                                                               MemorySource& memory) = 0;

  /// The past pattern whose hash comes next after `hash` (empty: the first); none: that was the
  /// last. The density map is of `memory`. Errors: as ReadFeatures'.
  virtual absl::StatusOr<std::optional<PastPattern>> ReadNextPast(const std::string& hash,
                                                                  MemorySource& memory) = 0;
  /// What past patterns take on disk, by estimate.
  virtual int64_t past_measurement_bytes() const = 0;

  /// Stores a buffer; replaces one of the same name.
  virtual absl::StatusOr<BufferRecord> PutBuffer(const NewBuffer& buffer, Stop stop = nullptr) = 0;
  /// OK if it is not stored.
  virtual absl::Status DeleteBuffer(const std::string& tenant, const std::string& name) = 0;

  /// Reads an array and verifies its checksums. DATA_LOSS, which names the owner, the array, the
  /// file and the offset, if it is damaged; RESOURCE_EXHAUSTED from `memory`; CANCELLED;
  /// FAILED_PRECONDITION if it is not readable().
  virtual absl::StatusOr<Array> Read(const StoredArray& array, MemorySource& memory,
                                     Stop stop = nullptr) = 0;
  /// Reads all arrays of a layout.
  absl::StatusOr<Layout> ReadLayout(const LayoutRecord& record, MemorySource& memory,
                                    Stop stop = nullptr);

  /// Verifies every array once, block by block. After each block `pace` gets its bytes and may
  /// wait; false ends the pass. `damaged` gets each array that is damaged, with the DATA_LOSS that
  /// Read would give. Both are called on the calling thread without a lock held. Any other error
  /// ends the pass. The time of a pass that came to its end is stored.
  virtual absl::Status Scrub(
      const std::function<bool(int64_t bytes)>& pace,
      const std::function<void(const StoredArray&, const absl::Status&)>& damaged) = 0;

  /// What is stored at one moment during the call; the store goes on changing. `stop` may end it.
  /// FAILED_PRECONDITION if nothing is kept on disk. What it holds must be gone before the store.
  virtual absl::StatusOr<std::unique_ptr<StoreSnapshot>> Snapshot(Stop stop = nullptr) = 0;
};

/// Opens the store in `directory`, making it if there is none, and removes what unfinished writes
/// left behind. `files` must outlive the store. Of past patterns it keeps the last ones, as many as
/// take `past_measurement_bytes` or less.
/// Errors: FAILED_PRECONDITION (another server uses the directory, it was written by a newer
/// program, permissions), DATA_LOSS (the catalog is damaged, or missing where there was one),
/// RESOURCE_EXHAUSTED, INTERNAL.
absl::StatusOr<std::unique_ptr<Store>> OpenStore(
    FileSystem& files, const std::string& directory,
    int64_t past_measurement_bytes = kPastMeasurementBytes);

/// Keeps nothing: writes succeed, what they return is not readable(), and Load is always empty.
std::unique_ptr<Store> MakeInMemoryStore();

}  // namespace sparsed::engine
