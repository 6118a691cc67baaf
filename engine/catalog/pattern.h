// Patterns: row offsets and column indices, known by their hash; owners of layouts and plans.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "engine/catalog/plan.h"
#include "engine/catalog/preparation_progress.h"
#include "engine/catalog/trial_log.h"
#include "engine/memory/budget.h"
#include "engine/memory/lazy_array.h"
#include "kernels/features/features.h"
#include "kernels/layout.h"

namespace sparsed::engine {

/// Thread-safe. Lives while a matrix, a request or a preparation holds it.
class Pattern {
 public:
  /// `payer` pays for plain CSR and the layouts, in memory and on disk; null: nobody does. Without
  /// a hash it is derived from another: not prepared, and nothing of it is stored.
  Pattern(std::string hash, int64_t rows, int64_t cols, int64_t nnz,
          std::shared_ptr<LazyLayout> csr, MemoryOwner* payer = nullptr);

  const std::string& hash() const { return hash_; }
  MemoryOwner* payer() const { return payer_; }
  /// The payer's quota for the disk has room for one more layout of so many bytes, and it counts
  /// until it is let go of; null: nobody pays.
  absl::StatusOr<TenantHold> HoldDisk(int64_t bytes) const;
  /// The layout, or plain CSR, is on the disk, as `hold` counts; null: it is not (any more).
  void SetOnDisk(const std::string& pipeline, TenantHold hold);
  bool on_disk(const std::string& pipeline) const;
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t nnz() const { return nnz_; }

  /// Plain CSR; reads the disk if it is not in memory. CANCELLED if `stop` became true meanwhile.
  absl::StatusOr<std::shared_ptr<const Layout>> Csr(LazyLayout::Stop stop = nullptr) {
    return csr_->Get(stop);
  }
  /// Null if it is not in memory.
  std::shared_ptr<const Layout> resident_csr() const { return csr_->Resident(); }
  bool resident() const { return csr_->resident(); }
  /// Bytes of plain CSR's arrays that are in memory.
  int64_t resident_bytes() const { return resident() ? (rows_ + 1) * 8 + nnz_ * 4 : 0; }
  /// Plain CSR was stored: it may leave memory while nobody uses it.
  void SetDiskCopy(LazyLayout::DiskCopy disk) { csr_->SetDiskCopy(std::move(disk)); }

  struct BuiltEntry {
    std::shared_ptr<const Layout> description;  ///< its arrays have no elements
    std::shared_ptr<LazyLayout> layout;
    double build_seconds = 0;
  };
  /// Layouts that exist besides plain CSR, by pipeline.
  std::vector<BuiltEntry> Layouts() const;
  /// Null if there is none.
  std::shared_ptr<LazyLayout> FindLayout(const std::string& pipeline) const;
  /// One that is in memory.
  void AddLayout(std::shared_ptr<const Layout> layout, double build_seconds);
  /// One that is on the disk. The arrays of `description` need no elements.
  void AddLayout(const Layout& description, LazyLayout::DiskCopy disk, double build_seconds);
  /// Requests that hold it keep it alive until they end.
  void DropLayout(const std::string& pipeline);
  /// This one and none that took its place.
  void DropLayout(const std::shared_ptr<const LazyLayout>& layout);

  /// Null until the preparation has computed them.
  std::shared_ptr<const Features> features() const;
  void SetFeatures(std::shared_ptr<const Features> features);

  /// A matrix of `tenant`'s has it.
  void AddOwner(const std::string& tenant);
  /// No matrix of another tenant's ever had it: whatever is done with it is done with that
  /// tenant's.
  bool IsOnlyOf(const std::string& tenant) const;

  PlanTable& plans() { return plans_; }
  const PlanTable& plans() const { return plans_; }

  PreparationProgress& progress() { return progress_; }
  const PreparationProgress& progress() const { return progress_; }
  TrialLog& trials() { return trials_; }
  const TrialLog& trials() const { return trials_; }

 private:
  const std::string hash_;
  const int64_t rows_, cols_, nnz_;
  const std::shared_ptr<LazyLayout> csr_;
  MemoryOwner* const payer_;
  PlanTable plans_;
  PreparationProgress progress_;
  TrialLog trials_;

  mutable Mutex mutex_;
  std::map<std::string, BuiltEntry> layouts_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, TenantHold> on_disk_ ABSL_GUARDED_BY(mutex_);  ///< by pipeline
  std::shared_ptr<const Features> features_ ABSL_GUARDED_BY(mutex_);
  std::string owner_ ABSL_GUARDED_BY(mutex_);  ///< the first one
  bool owned_ ABSL_GUARDED_BY(mutex_) = false, of_several_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace sparsed::engine
