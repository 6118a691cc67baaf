// Dense matrices that stay on the server: operands, and results that move nothing.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
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

/// One version of a held dense matrix; immutable.
struct HeldDense {
  std::string tenant, name;
  DenseShape shape;
  uint64_t version = 1;
  bool durable = false;
  std::shared_ptr<LazyArray> elements;
  Budget::Charge charge;  ///< all versions that results were written into share it
};
/// What one counts with besides its elements: names, nodes of maps, shared objects.
inline constexpr size_t kHeldDenseBytes = size_t{2} << 10;
using HeldDenseLease = std::shared_ptr<const HeldDense>;

struct PutHeader {
  std::string tenant, name;
  DenseShape shape;
  bool zeros = false;
  bool durable = false;
};

class DenseCatalog;

/// A Put under way. Not thread-safe.
class DensePut {
 public:
  absl::StatusOr<std::byte*> Claim(uint32_t array, uint64_t offset, uint64_t size);
  /// Blocks on the disk if it is durable, or what it replaces was. CANCELLED if `stop` became true
  /// in time.
  absl::StatusOr<HeldDenseLease> Finish(Store::Stop stop = nullptr);
  /// Bytes that are to come, and those of memory that what came takes.
  size_t announced() const { return elements_.array().bytes(); }
  size_t counted() const { return elements_.counted(); }

 private:
  friend class DenseCatalog;
  DensePut(DenseCatalog& catalog, PutHeader header)
      : catalog_(catalog), header_(std::move(header)) {}

  DenseCatalog& catalog_;
  const PutHeader header_;
  ArrayAssembler elements_;
};

/// The right to write one held matrix: from BeginWrite to Publish or destruction. Move-only.
class DenseWrite {
 public:
  DenseWrite() = default;
  DenseWrite(DenseWrite&& other) noexcept { *this = std::move(other); }
  DenseWrite& operator=(DenseWrite&& other) noexcept;
  ~DenseWrite();
  const HeldDenseLease& base() const { return base_; }
  /// Makes `elements` (base's shape) the new version, which is not durable. NOT_FOUND if it was
  /// deleted, ABORTED if a Put replaced it meanwhile.
  absl::Status Publish(std::shared_ptr<LazyArray> elements);

 private:
  friend class DenseCatalog;
  DenseWrite(DenseCatalog& catalog, HeldDenseLease base)
      : catalog_(&catalog), base_(std::move(base)) {}

  DenseCatalog* catalog_ = nullptr;  ///< null: nothing is held
  HeldDenseLease base_;
};

/// Thread-safe.
class DenseCatalog {
 public:
  DenseCatalog(Store& store, Budget& budget) : store_(store), budget_(budget) {}
  /// Enters what the store holds; elements are read when they are first needed. Called once, before
  /// anything else. DATA_LOSS if a record makes no sense, RESOURCE_EXHAUSTED if there are too many.
  absl::Status Restore(const StoreContents& contents);

  absl::StatusOr<std::unique_ptr<DensePut>> BeginPut(PutHeader header);
  absl::StatusOr<HeldDenseLease> Find(std::string_view tenant, std::string_view name) const;
  /// Those whose names begin with `prefix` and come after `after`, by name.
  std::vector<HeldDenseLease> List(std::string_view tenant, std::string_view prefix,
                                   std::string_view after = "") const;
  /// Blocks on the disk if a version of it was durable.
  absl::Status Delete(std::string_view tenant, std::string_view name);
  /// ABORTED while another request writes it.
  absl::StatusOr<DenseWrite> BeginWrite(std::string_view tenant, std::string_view name);
  int64_t size() const;

 private:
  friend class DensePut;
  friend class DenseWrite;
  /// Stores `held` if it is to be durable, sets its version and publishes it.
  absl::Status Replace(const std::shared_ptr<HeldDense>& held, const Array& elements, bool durable,
                       Store::Stop stop);

  /// Of a tenant's held matrices.
  MemorySource& MemoryOf(std::string_view tenant) {
    return budget_.Source(MemoryUse::kBuffers, &budget_.OwnerOf(tenant));
  }
  absl::StatusOr<Budget::Charge> CountHeld(std::string_view tenant);

  Store& store_;
  Budget& budget_;
  NameLocks changes_;  ///< taken before mutex_, held while the disk is written
  mutable Mutex mutex_;
  std::map<NameKey, HeldDenseLease> entries_ ABSL_GUARDED_BY(mutex_);
  /// Of which the store has a version, not always the present one.
  std::set<NameKey> stored_ ABSL_GUARDED_BY(mutex_);
  std::set<NameKey> writing_ ABSL_GUARDED_BY(mutex_);  ///< by DenseWrites
};

}  // namespace sparsed::engine
