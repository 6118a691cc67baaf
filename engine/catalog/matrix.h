// Matrices: a name, a pattern and one version of values.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "engine/catalog/pattern.h"
#include "engine/memory/budget.h"
#include "kernels/array.h"
#include "kernels/layout.h"

namespace sparsed::engine {

/// What a matrix counts with besides its arrays: it, its pattern, their names, plans and
/// measurements.
inline constexpr size_t kMatrixBytes = size_t{8} << 10;

/// One version of a matrix. Immutable but for what is computed on demand; a request that holds it
/// uses it throughout. Thread-safe.
class Matrix {
 public:
  /// `caller_order`, if not null (i64, nnz): position in the caller's arrays of each canonical CSR
  /// nonzero. SDDMM results and UpdateValues speak the caller's order. `charge`: of kMatrixBytes,
  /// which all versions of its values share.
  Matrix(std::string tenant, std::string name, std::shared_ptr<Pattern> pattern, ElementType type,
         uint64_t version, int64_t created_unix_ns, bool durable, std::shared_ptr<LazyArray> values,
         std::shared_ptr<LazyArray> caller_order, Budget::Charge charge);

  const std::string& tenant() const { return tenant_; }
  const std::string& name() const { return name_; }
  const std::shared_ptr<Pattern>& pattern() const { return pattern_; }
  ElementType type() const { return type_; }
  uint64_t version() const { return version_; }
  int64_t created_unix_ns() const { return created_unix_ns_; }
  bool durable() const { return durable_; }
  const std::shared_ptr<LazyArray>& caller_order() const { return caller_order_; }
  const Budget::Charge& charge() const { return charge_; }

  /// In canonical CSR order; reads the disk if they are not in memory. CANCELLED if `stop` became
  /// true meanwhile.
  absl::StatusOr<Array> Values(LazyArray::Stop stop = nullptr) const;
  /// Pattern and values are in memory.
  bool resident() const { return values_->resident() && pattern_->resident(); }
  /// Bytes of them in memory.
  int64_t resident_bytes() const {
    return values_->resident() ? pattern_->nnz() * static_cast<int64_t>(SizeOf(type_)) : 0;
  }
  /// In a layout's order; computed the first time and kept while the pattern has the layout. Plain
  /// CSR's are Values().
  absl::StatusOr<Array> ValuesIn(const Layout& layout, MemorySource& memory, int threads) const;
  /// Forgets the values of a layout that the pattern has dropped.
  void DropLayout(const std::string& recipe) const;
  /// Bytes of values held for layouts besides plain CSR, by recipe.
  int64_t LayoutValueBytes(const std::string& recipe) const;

 private:
  const std::string tenant_, name_;
  const std::shared_ptr<Pattern> pattern_;
  const ElementType type_;
  const uint64_t version_;
  const int64_t created_unix_ns_;
  const bool durable_;
  const std::shared_ptr<LazyArray> values_;
  const std::shared_ptr<LazyArray> caller_order_;
  const Budget::Charge charge_;
  mutable std::mutex mutex_;
  struct Placed {
    /// A rebuilt layout of the same recipe may order values differently, and be where this was.
    std::weak_ptr<const Layout> layout;
    Array values;
  };
  mutable std::map<std::string, Placed> placed_;  ///< by recipe
};

using MatrixLease = std::shared_ptr<const Matrix>;

}  // namespace sparsed::engine
