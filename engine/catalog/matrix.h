// Matrices: a name, a pattern and one version of values.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "engine/catalog/pattern.h"
#include "engine/memory/budget.h"
#include "kernels/array.h"
#include "kernels/layout.h"

namespace sparsed::engine {

/// What a matrix counts with besides its arrays: it, its pattern, their names, plans and
/// measurements.
inline constexpr size_t kMatrixBytes = size_t{8} << 10;

/// What keeping a matrix takes, and how long it is kept.
struct MatrixKeep {
  MemoryOwner* payer = nullptr;  ///< its tenant's memory
  // All versions of its values share these.
  Budget::Charge charge;  ///< of kMatrixBytes
  TenantHold count;       ///< as one of the tenant's matrices
  /// The bytes of the values on the disk: of this version, or of the last one that was stored.
  TenantHold disk;
  /// For which nothing needs to use it before it is deleted; 0: it stays.
  std::chrono::nanoseconds time_to_live{0};
  /// The last time.
  std::shared_ptr<std::atomic<std::chrono::steady_clock::time_point>> used;
  /// How much its requests use the plans of its pattern.
  std::shared_ptr<PlanUses> plan_uses = std::make_shared<PlanUses>();
};

/// Values in the order of a layout, computed again where they were evicted. Thread-safe.
class PlacedValues final : public Evictable {
 public:
  PlacedValues(std::shared_ptr<const LazyLayout> layout, Array values,
               std::shared_ptr<EvictionQueue> evictions, const MemoryOwner* payer)
      : layout_(layout),
        evictions_(std::move(evictions)),
        payer_(payer),
        values_(std::move(values)) {}

  /// Those of `layout`; none if they are another's, or are not here any more.
  std::optional<Array> Find(const std::shared_ptr<const LazyLayout>& layout);
  /// In memory.
  int64_t bytes() const;

 protected:
  bool Evict() override;
  bool idle() const override;

 private:
  /// A rebuilt layout of the same pipeline may order values differently.
  const std::weak_ptr<const LazyLayout> layout_;
  const std::shared_ptr<EvictionQueue> evictions_;
  const MemoryOwner* const payer_;
  mutable Mutex mutex_;
  std::optional<Array> values_ ABSL_GUARDED_BY(mutex_);
};

/// One version of a matrix. Immutable but for what is computed on demand; a request that holds it
/// uses it throughout. Thread-safe.
class Matrix {
 public:
  /// `caller_order`, if not null (i64, nnz): position in the caller's arrays of each canonical CSR
  /// nonzero. SDDMM results and UpdateValues speak the caller's order. What it computes on demand
  /// is in `evictions`.
  Matrix(std::string tenant, std::string name, std::shared_ptr<Pattern> pattern, ElementType type,
         uint64_t version, int64_t created_unix_ns, bool durable, std::shared_ptr<LazyArray> values,
         std::shared_ptr<LazyArray> caller_order, MatrixKeep keep,
         std::shared_ptr<EvictionQueue> evictions);

  const std::string& tenant() const { return tenant_; }
  const std::string& name() const { return name_; }
  const std::shared_ptr<Pattern>& pattern() const { return pattern_; }
  ElementType type() const { return type_; }
  uint64_t version() const { return version_; }
  int64_t created_unix_ns() const { return created_unix_ns_; }
  bool durable() const { return durable_; }
  const std::shared_ptr<LazyArray>& caller_order() const { return caller_order_; }
  const MatrixKeep& keep() const { return keep_; }
  /// A request for it runs on a plan of its pattern's, or on what took its place.
  void CountUse(const Plan& plan) const;
  /// The plans of its pattern for values of its type, and how much requests for it use them.
  std::vector<PlanTable::Used> UsedPlans() const;
  /// What its values, and their order, take on the disk, if they are there.
  int64_t disk_bytes() const;
  /// Who pays for values that it has in layouts.
  MemoryOwner* payer() const { return keep_.payer; }

  /// In canonical CSR order; reads the disk if they are not in memory. CANCELLED if `stop` became
  /// true meanwhile.
  absl::StatusOr<Array> Values(LazyArray::Stop stop = nullptr) const;
  /// Pattern and values are in memory.
  bool resident() const { return values_->resident() && pattern_->resident(); }
  bool values_resident() const { return values_->resident(); }
  /// Bytes of them in memory.
  int64_t resident_bytes() const {
    return values_->resident() ? pattern_->nnz() * static_cast<int64_t>(SizeOf(type_)) : 0;
  }
  /// In a layout's order; computed the first time and kept while the pattern has the layout and
  /// nobody needs the room. Plain CSR's are Values().
  absl::StatusOr<Array> ValuesIn(const Layout& layout, MemorySource& memory, int threads) const;
  /// Forgets the values of a layout that the pattern has dropped.
  void DropLayout(const std::string& pipeline) const;
  /// Bytes of values held for layouts besides plain CSR, by pipeline.
  int64_t LayoutValueBytes(const std::string& pipeline) const;

 private:
  /// Null if there are none.
  std::shared_ptr<PlacedValues> FindPlaced(const std::string& pipeline) const;

  const std::string tenant_, name_;
  const std::shared_ptr<Pattern> pattern_;
  const ElementType type_;
  const uint64_t version_;
  const int64_t created_unix_ns_;
  const bool durable_;
  const std::shared_ptr<LazyArray> values_;
  const std::shared_ptr<LazyArray> caller_order_;
  const MatrixKeep keep_;
  const std::shared_ptr<EvictionQueue> evictions_;
  mutable Mutex mutex_;
  /// By pipeline.
  mutable std::map<std::string, std::shared_ptr<PlacedValues>> placed_ ABSL_GUARDED_BY(mutex_);
};

using MatrixLease = std::shared_ptr<const Matrix>;

}  // namespace sparsed::engine
