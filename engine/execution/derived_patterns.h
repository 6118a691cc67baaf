// What is derived from patterns and may be needed again: transposed layouts, how many entries each
// row of a product has, and what each of several GPUs has of a matrix in rows.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "engine/catalog/pattern_product.h"
#include "engine/execution/row_distribution.h"
#include "engine/memory/budget.h"
#include "kernels/array.h"
#include "kernels/layout.h"
#include "kernels/pipeline.h"

namespace sparsed::engine {

/// The sizes of a product's rows, which stay as they are while its patterns do, whatever the
/// values.
struct RowSizes {
  Array row_nnz;  ///< i64, exact, of each row of the result
  int64_t products = 0;
};

/// Bounded: what was used longest ago goes first, and all of it gives way, in its turn, to whoever
/// else needs host memory. What belongs to a pattern that is gone is never found again.
/// Thread-safe.
class DerivedPatterns final : public Evictable {
 public:
  /// Of S^T in plain CSR, as the preparation names it, too. All that are made by it are equal.
  static constexpr const char* kTransposePipeline = "transpose";

  /// `limit_bytes` of the budget at the most.
  DerivedPatterns(Budget& budget, int64_t limit_bytes)
      : memory_(budget.Source(MemoryUse::kLayouts)),
        evictions_(*budget.evictions()),
        limit_bytes_(limit_bytes) {}

  /// Plain CSR of S^T, if it is in memory; else null.
  std::shared_ptr<const Layout> FindTransposed(const std::shared_ptr<Pattern>& pattern);
  /// Plain CSR of S^T: the one that the preparation made, the one that was built last, or a new
  /// one. `context` has threads and the flag to stop. Errors: RESOURCE_EXHAUSTED, CANCELLED, and
  /// those of Pattern::Csr.
  absl::StatusOr<std::shared_ptr<const Layout>> Transposed(const std::shared_ptr<Pattern>& pattern,
                                                           BuildContext context);

  std::optional<RowSizes> FindSizes(const PatternProduct& product);
  /// Of a product that found none: keeps a copy, if there is room for it.
  void KeepSizes(const PatternProduct& product, const RowSizes& sizes);

  /// Of op(S), for an operand whose rows are so divided; null: there is none.
  std::shared_ptr<RowDistribution> FindRows(const std::shared_ptr<Pattern>& pattern,
                                            bool transposed,
                                            const std::vector<int64_t>& operand_bounds);
  /// In the place of what there was; again when it has grown.
  void KeepRows(const std::shared_ptr<Pattern>& pattern, bool transposed,
                std::shared_ptr<RowDistribution> rows);

  /// Bytes that are kept.
  int64_t bytes() const;
  /// Products whose sizes were found, and those that had to compute them.
  int64_t sizes_found() const;
  int64_t sizes_computed() const;

 protected:
  /// Forgets what was used longest ago, or what is of patterns that are gone.
  bool Evict() override;
  bool idle() const override { return true; }

 private:
  /// Of a product. Of a transposed layout, the pattern alone; of a matrix in rows, the pattern,
  /// whether it is transposed, and the bounds.
  struct Key {
    std::array<const Pattern*, 3> patterns = {};  ///< left, right, mask
    bool transpose_left = false, transpose_right = false;
    std::vector<int64_t> operand_bounds = {};  ///< of a matrix in rows

    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Entry {
    std::array<std::weak_ptr<const Pattern>, 3> patterns;  ///< those of the key
    std::shared_ptr<const Layout> transposed;              ///< or
    RowSizes sizes;                                        ///< or
    std::shared_ptr<RowDistribution> rows;
    int64_t bytes = 0;
    uint64_t used = 0;  ///< when: larger is later
  };
  using Entries = std::map<Key, Entry>;

  static Key KeyOf(const PatternProduct& product);
  /// The patterns of the key are those that they were, not others at their addresses.
  static bool IsOf(const Key& key, const Entry& entry);
  Entry* FindLocked(const Key& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// What has to go is freed when the caller lets go of it, without the lock.
  std::vector<Entry> InsertLocked(const Key& key, Entry entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<Entry> TakeDeadLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<Entry> TakeOldestLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  MemorySource& memory_;
  EvictionQueue& evictions_;
  const int64_t limit_bytes_;
  mutable Mutex mutex_;
  Entries entries_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t clock_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t sizes_found_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t sizes_computed_ ABSL_GUARDED_BY(mutex_) = 0;
};

/// What each GPU has of op(S), with plans of its parts for `problem`, made after `plan`, that of
/// all of S: what is kept, or new. `with_layouts` as in RowDistribution::AddPlans. Errors:
/// CANCELLED, RESOURCE_EXHAUSTED, and those of Pattern::Csr.
absl::StatusOr<std::shared_ptr<RowDistribution>> FindOrBuildRows(
    DerivedPatterns& derived, const std::shared_ptr<Pattern>& pattern, const Problem& problem,
    const std::shared_ptr<const ActivePlan>& plan, const std::vector<int64_t>& operand_bounds,
    bool with_layouts, Budget& budget, const std::atomic<bool>* stop,
    std::shared_ptr<RowDistribution> known = nullptr);

}  // namespace sparsed::engine
