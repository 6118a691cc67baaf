// Dense matrices that stay on the server: operands, and results that move nothing.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "engine/catalog/distribution.h"
#include "engine/catalog/haloed_dense.h"
#include "engine/catalog/matrix.h"
#include "engine/catalog/name_locks.h"
#include "engine/memory/array_assembler.h"
#include "engine/memory/budget.h"
#include "engine/memory/lazy_array.h"
#include "engine/store/store.h"
#include "kernels/array.h"

namespace sparsed::engine {

/// Row-major; leading dimension in elements, >= cols.
struct DenseShape {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t leading_dimension = 0;
  ElementType type = ElementType::kF32;

  /// Elements of the array that holds it: (rows - 1) * leading_dimension + cols, or 0.
  int64_t elements() const { return rows == 0 ? 0 : (rows - 1) * leading_dimension + cols; }
};
/// INVALID_ARGUMENT for negative sizes, cols < 1, a leading dimension below cols, a type that is no
/// float, an overflow.
absl::Status ValidateShape(std::string_view what, const DenseShape& shape);
/// The same but for the type.
absl::Status ValidateSizes(std::string_view what, const DenseShape& shape);

/// `shape.rows` rows and `shape.cols` columns of a buffer, from these on, without gaps.
struct DenseBlock {
  int64_t first_row = 0, first_col = 0;
  DenseShape shape;
  std::shared_ptr<LazyArray> elements;
};

/// Blocks that were cut out of one buffer, for the next requests that want the same: the last few
/// ways of cutting it. Thread-safe.
class DenseCuts {
 public:
  /// `on_moved` (may be null): so many bytes were copied on the host.
  explicit DenseCuts(std::function<void(int64_t bytes)> on_moved)
      : on_moved_(std::move(on_moved)) {}

  /// Those that begin and end as `blocks` do, with elements: what there is, or what `make` makes of
  /// them.
  std::vector<DenseBlock> Find(
      std::vector<DenseBlock> blocks,
      const std::function<std::vector<DenseBlock>(std::vector<DenseBlock>)>& make);
  const std::function<void(int64_t bytes)>& on_moved() const { return on_moved_; }

 private:
  static constexpr size_t kMost = 4;

  const std::function<void(int64_t bytes)> on_moved_;
  Mutex mutex_;
  std::deque<std::vector<DenseBlock>> known_ ABSL_GUARDED_BY(mutex_);
};

/// What times to live are measured by.
using DenseClock = std::chrono::steady_clock;
/// One version of a buffer; immutable.
struct HeldDense {
  std::string tenant, name;
  DenseShape shape;
  uint64_t version = 1;
  bool durable = false;
  std::shared_ptr<LazyArray> elements;
  /// What each GPU has of it; empty: it is whole. `elements` is made of them where somebody needs
  /// it in one place.
  std::vector<DenseBlock> blocks;
  Distribution distribution() const {
    if (blocks.empty()) return Distribution::kWhole;
    return blocks[0].shape.cols == shape.cols ? Distribution::kRows : Distribution::kColumns;
  }
  std::string owner;  ///< as whoever put it said, for people to read; may be empty
  /// For which nothing needs to use it before it is deleted; 0: it stays.
  DenseClock::duration time_to_live{0};
  /// What lies around it in operands of products; none: it is a buffer by itself.
  Halo halo;
  /// Its elements with room for that; null: there is none, as they were made on a GPU, or when
  /// memory was short.
  std::shared_ptr<HaloedDense> haloed = nullptr;
  /// What was cut out of it for requests; null: each cuts it anew.
  std::shared_ptr<DenseCuts> cuts = nullptr;
  // All versions that results were written into share these.
  Budget::Charge charge;
  TenantHold count;  ///< as one of the tenant's buffers
  TenantHold disk;   ///< its bytes there, of the last version that was stored; null: none was
  std::shared_ptr<std::atomic<DenseClock::time_point>> used;  ///< the last time
};
/// What one counts with besides its elements: names, nodes of maps, shared objects.
inline constexpr size_t kHeldDenseBytes = size_t{2} << 10;
/// What one counts with in its tenant's quota, wherever its elements are, with its halo.
int64_t QuotaBytes(const DenseShape& shape, const Halo& halo = {});
using HeldDenseLease = std::shared_ptr<const HeldDense>;

struct PutHeader {
  std::string tenant, name;
  DenseShape shape;
  bool zeros = false;
  bool durable = false;
  std::string owner{};  ///< empty, or of the form of a name
  /// 0: the catalog's, or none if it is durable.
  DenseClock::duration time_to_live{0};
  Distribution distribution = Distribution::kWhole;
  /// kRows: each GPU has those that are this matrix's with as many of its nonzeros, about; null: as
  /// many rows. kAuto: the matrix that it is to be multiplied with, or whose transpose.
  MatrixLease rows_of = nullptr;
  uint64_t version = 0;  ///< 0: one above that of what it replaces
};

struct DenseOptions {
  DenseClock::duration time_to_live = std::chrono::hours(24);  ///< unless a Put asks; 0: none
  int64_t tenant_bytes = 0;  ///< QuotaBytes of all that one tenant holds; 0: no quota
  std::function<DenseClock::time_point()> now = DenseClock::now;
  /// That a buffer which is distributed has: one for each GPU.
  int64_t blocks = 1;
  /// kAuto: how an operand of that shape had best lie for a matrix. May read the disk. CANCELLED,
  /// and what the disk says.
  std::function<absl::StatusOr<Distribution>(const MatrixLease& matrix, const DenseShape& shape,
                                             Store::Stop stop)>
      choose = nullptr;
  /// So many bytes of one that is distributed were put together on the host, or cut there.
  std::function<void(int64_t bytes)> on_moved_by_host = nullptr;
};

/// Of one tenant.
struct DenseTotals {
  int64_t count = 0, bytes = 0;  ///< held now, with QuotaBytes
  int64_t expired = 0;           ///< deleted because nothing used them
  int64_t refused = 0;           ///< Puts, for the quota
};

/// What became of one whose time to live was over.
struct DenseExpiry {
  HeldDenseLease held;
  absl::Status status;  ///< not OK: the disk did not let it go, and it is still there
};

/// `count` blocks of a matrix of that shape, whose columns differ by one at most; without elements.
std::vector<DenseBlock> ColumnBlocks(const DenseShape& shape, int64_t count);
/// Block i has rows [bounds[i], bounds[i + 1]); without elements.
std::vector<DenseBlock> BlocksOfRows(const DenseShape& shape, std::span<const int64_t> bounds);
/// The bounds of blocks that are rows: of one, and the last one's end.
std::vector<int64_t> RowBoundsOf(const std::vector<DenseBlock>& blocks);
/// `count` blocks of rows whose numbers differ by one at most.
std::vector<int64_t> EvenBounds(int64_t rows, int64_t count);
/// Those of a buffer: its own, if they are these, else blocks that are copied out of the whole, for
/// a request, when it needs them.
std::vector<DenseBlock> ColumnBlocksOf(const HeldDenseLease& held, int64_t count, Budget& budget);
std::vector<DenseBlock> RowBlocksOf(const HeldDenseLease& held, std::span<const int64_t> bounds,
                                    Budget& budget);
/// What putting it together on the host would take; 0: it is whole, or is there already.
int64_t BytesToPutTogether(const HeldDense& held);

class DenseCatalog;

/// A Put under way. Not thread-safe.
class DensePut {
 public:
  absl::StatusOr<std::byte*> Claim(uint32_t array, uint64_t offset, uint64_t size);
  /// With room for `halo` where memory is free, unless it is durable, is distributed or has gaps
  /// between its rows. Blocks on the disk if it is durable, or what it replaces was. CANCELLED if
  /// `stop` became true in time.
  absl::StatusOr<HeldDenseLease> Finish(Store::Stop stop = nullptr, Halo halo = {});
  const PutHeader& header() const { return header_; }
  /// Bytes that are to come, and those of memory that what came takes.
  size_t announced() const { return elements_.array().bytes(); }
  size_t counted() const { return elements_.counted(); }

 private:
  friend class DenseCatalog;
  DensePut(DenseCatalog& catalog, PutHeader header)
      : catalog_(catalog), header_(std::move(header)) {}
  /// What came, or zeros; in memory that has room for held's halo, if that is to be had.
  absl::StatusOr<Array> TakeElements(HeldDense& held);

  DenseCatalog& catalog_;
  const PutHeader header_;
  ArrayAssembler elements_;
};

/// The right to write one buffer: from BeginWrite to Publish or destruction. Move-only.
class DenseWrite {
 public:
  DenseWrite() = default;
  DenseWrite(DenseWrite&& other) noexcept { *this = std::move(other); }
  DenseWrite& operator=(DenseWrite&& other) noexcept;
  ~DenseWrite();
  const HeldDenseLease& base() const { return base_; }
  /// That it will have, in the place of the next one.
  void SetVersion(uint64_t version) { version_ = version; }
  /// Makes `elements` (base's shape) the new version, which is not durable; `haloed` (may be null)
  /// has them, with room for base's halo. NOT_FOUND if it was deleted, ABORTED if a Put replaced it
  /// meanwhile.
  absl::Status Publish(std::shared_ptr<LazyArray> elements,
                       std::shared_ptr<HaloedDense> haloed = nullptr) {
    return Publish(std::move(elements), std::move(haloed), {});
  }
  /// The same of one that is distributed.
  absl::Status Publish(std::vector<DenseBlock> blocks);

 private:
  friend class DenseCatalog;
  DenseWrite(DenseCatalog& catalog, HeldDenseLease base)
      : catalog_(&catalog), base_(std::move(base)) {}
  absl::Status Publish(std::shared_ptr<LazyArray> elements, std::shared_ptr<HaloedDense> haloed,
                       std::vector<DenseBlock> blocks);

  DenseCatalog* catalog_ = nullptr;  ///< null: nothing is held
  HeldDenseLease base_;
  uint64_t version_ = 0;  ///< 0: one above base's
};

/// Thread-safe.
class DenseCatalog {
 public:
  DenseCatalog(Store& store, Budget& budget, DenseOptions options = {})
      : options_(std::move(options)), store_(store), budget_(budget) {}
  /// Enters what the store holds, used just now; elements are read when they are first needed.
  /// Called once, before anything else but Expire. DATA_LOSS if a record makes no sense,
  /// RESOURCE_EXHAUSTED if there are too many for the memory; a quota is none for them.
  absl::Status Restore(const StoreContents& contents);

  /// RESOURCE_EXHAUSTED if the tenant's quota or the memory has no room for it.
  absl::StatusOr<std::unique_ptr<DensePut>> BeginPut(PutHeader header);
  /// A use: its time to live begins anew.
  absl::StatusOr<HeldDenseLease> Find(std::string_view tenant, std::string_view name) const;
  /// Those whose names begin with `prefix` and come after `after`, by name. No use of them.
  std::vector<HeldDenseLease> List(std::string_view tenant, std::string_view prefix,
                                   std::string_view after = "") const;
  /// Those of all tenants, whose "TENANT~NAME" begin with `prefix` and come after `after`, by
  /// tenant, then by name. No use of them.
  std::vector<HeldDenseLease> ListAll(std::string_view prefix, std::string_view after = "") const;
  /// Blocks on the disk if a version of it was durable.
  absl::Status Delete(std::string_view tenant, std::string_view name);
  /// ABORTED while another request writes it.
  absl::StatusOr<DenseWrite> BeginWrite(std::string_view tenant, std::string_view name);

  /// Deletes those that nothing used for their time to live. Whoever holds one, or has begun to
  /// write it, uses it. For a thread that calls it every few seconds: it looks at some thousands,
  /// goes on behind them the next time, and blocks on the disk for those of which it has a version,
  /// until it is told to stop.
  std::vector<DenseExpiry> Expire(const std::stop_token& stop = {});

  int64_t size() const;
  /// By tenant: of those that ever held something, or were refused.
  std::map<std::string, DenseTotals, std::less<>> totals() const;
  DenseClock::time_point now() const { return options_.now(); }

 private:
  friend class DensePut;
  friend class DenseWrite;
  /// Stores `held` if it is to be durable, sets its version, as PutHeader has it, and publishes it.
  absl::Status Replace(const std::shared_ptr<HeldDense>& held, const Array& elements,
                       uint64_t version, Store::Stop stop);
  /// Makes the disk agree: it has `held` if that is durable, else none of its name.
  absl::Status Write(const HeldDense& held, const Array& elements, bool stored, Store::Stop stop);

  /// It may lie in blocks, and has a column, or a row, for each.
  bool Distributes(const PutHeader& header, Distribution distribution) const;
  /// Those blocks, without elements; none: it is whole. Reads the disk if the matrix that says
  /// where they begin is not in memory.
  absl::StatusOr<std::vector<DenseBlock>> BlocksFor(const PutHeader& header,
                                                    Store::Stop stop) const;
  /// Of one that is stored: as it lay, but over the GPUs that there are now.
  std::vector<DenseBlock> BlocksOf(const BufferRecord& record) const;
  /// Of a tenant's buffers.
  MemorySource& MemoryOf(std::string_view tenant) {
    return budget_.Source(MemoryUse::kBuffers, &budget_.OwnerOf(tenant));
  }
  absl::StatusOr<Budget::Charge> CountHeld(std::string_view tenant);
  void Touch(const HeldDense& held) const { held.used->store(now(), std::memory_order_relaxed); }
  /// Why there is none of this name, with mutex_ held.
  absl::Status NoDense(const NameKey& key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  DenseTotals& TotalsOf(std::string_view tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// What one of this name that counts with QuotaBytes `bytes` needs besides what is there.
  int64_t GrowthBy(const NameKey& key, int64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Of room that a buffer can do without.
  bool HasQuotaFor(const PutHeader& header, const Halo& halo);
  absl::Status CheckQuota(const NameKey& key, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Gives `held`, which is to be of that name, what it takes of the tenant's quotas.
  absl::Status TakeQuotas(const NameKey& key, HeldDense& held)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Into its place, with the tenant's totals; what was there.
  HeldDenseLease Enter(const NameKey& key, HeldDenseLease held)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Out of it; what was there, and has to be.
  HeldDenseLease TakeOut(const NameKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsUsed(const NameKey& key, const HeldDenseLease& held) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// What is in use is used now.
  bool IsDue(const NameKey& key, const HeldDenseLease& held) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Of the next few thousand entries.
  std::vector<NameKey> FindDue();
  /// None if it was used, replaced or deleted meanwhile.
  std::optional<DenseExpiry> ExpireIfDue(const NameKey& key);

  const DenseOptions options_;
  Store& store_;
  Budget& budget_;
  NameLocks changes_;  ///< taken before mutex_, held while the disk is written
  mutable Mutex mutex_;
  std::map<NameKey, HeldDenseLease> entries_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, DenseTotals, std::less<>> totals_ ABSL_GUARDED_BY(mutex_);
  NameKey looked_at_ ABSL_GUARDED_BY(mutex_);  ///< the last one that FindDue did; empty: none
  struct Expired {
    NameKey key;
    DenseClock::duration time_to_live;
  };
  /// The last few of which there is no other since, so that whoever asks for one learns why.
  std::deque<Expired> expired_ ABSL_GUARDED_BY(mutex_);
  /// Of which the store has a version, not always the present one.
  std::set<NameKey> stored_ ABSL_GUARDED_BY(mutex_);
  std::set<NameKey> writing_ ABSL_GUARDED_BY(mutex_);  ///< by DenseWrites
};

}  // namespace sparsed::engine
