// Patterns: row offsets and column indices, known by their hash; owners of layouts and plans.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "engine/catalog/plan.h"
#include "engine/memory/lazy_array.h"
#include "kernels/features/features.h"
#include "kernels/layout.h"

namespace sparsed::engine {

enum class PreparationState : uint8_t { kQueued, kPreparing, kReady, kFailed };
/// "QUEUED", "PREPARING", "READY", "FAILED".
std::string_view Name(PreparationState state);

/// Where the preparation of a pattern stands.
struct PreparationStatus {
  PreparationState state = PreparationState::kQueued;
  std::string stage;  ///< empty between stages
  int64_t done = 0;
  int64_t total = 0;
  std::string message;  ///< what just happened, for people
  std::string detail;   ///< the outcome so far: gained, skipped and why, failed
  double seconds = 0;   ///< spent so far
};

/// Thread-safe. Lives while a matrix, a request or a preparation holds it.
class Pattern {
 public:
  Pattern(std::string hash, int64_t rows, int64_t cols, int64_t nnz,
          std::shared_ptr<LazyLayout> csr);

  const std::string& hash() const { return hash_; }
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
  /// Layouts that exist besides plain CSR, by recipe.
  std::vector<BuiltEntry> Layouts() const;
  /// Null if there is none.
  std::shared_ptr<LazyLayout> FindLayout(const std::string& recipe) const;
  /// One that is in memory.
  void AddLayout(std::shared_ptr<const Layout> layout, double build_seconds);
  /// One that is on the disk. The arrays of `description` need no elements.
  void AddLayout(const Layout& description, LazyLayout::DiskCopy disk, double build_seconds);
  /// Requests that hold it keep it alive until they end.
  void DropLayout(const std::string& recipe);
  /// This one and none that took its place.
  void DropLayout(const std::shared_ptr<const LazyLayout>& layout);

  /// Null until the preparation has computed them.
  std::shared_ptr<const Features> features() const;
  void SetFeatures(std::shared_ptr<const Features> features);

  PlanTable& plans() { return plans_; }
  const PlanTable& plans() const { return plans_; }

  PreparationStatus status() const;
  std::vector<Measurement> measurements() const;
  /// Replaces one of the same class, K, recipe, kernel, device and pair.
  void AddMeasurement(Measurement measurement);
  /// Replaces all; of each class, K, recipe, kernel, device and pair there is one.
  void SetMeasurements(std::vector<Measurement> measurements);
  /// Forgets those of the class; where `pair` is given, those of that pair alone.
  void ForgetMeasurements(const ProblemClass& problem_class,
                          const std::optional<PatternPair>& pair = std::nullopt);
  /// What became of recipes, class by class.
  std::vector<Decision> decisions() const;
  /// Replaces those about the class, which all of `decisions` are about; where `pair` is given,
  /// those about that pair alone.
  void SetDecisions(const ProblemClass& problem_class, std::vector<Decision> decisions,
                    const std::optional<PatternPair>& pair = std::nullopt);
  /// Changes the status and tells every watcher, in order. The lock is held while `change` runs,
  /// not while watchers are told.
  void UpdateStatus(const std::function<void(PreparationStatus&)>& change);

  using Watcher = std::function<void(const PreparationStatus&)>;
  /// Tells `watcher` the present status at once and each change until Unwatch; it must not block or
  /// call back here.
  int64_t Watch(Watcher watcher);
  /// Afterwards the watcher is not called any more (waits for a call in progress on another
  /// thread).
  void Unwatch(int64_t id);

 private:
  const std::string hash_;
  const int64_t rows_, cols_, nnz_;
  const std::shared_ptr<LazyLayout> csr_;
  PlanTable plans_;

  mutable Mutex mutex_;
  std::map<std::string, BuiltEntry> layouts_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const Features> features_ ABSL_GUARDED_BY(mutex_);
  PreparationStatus status_ ABSL_GUARDED_BY(mutex_);
  std::vector<Measurement> measurements_ ABSL_GUARDED_BY(mutex_);
  std::vector<Decision> decisions_ ABSL_GUARDED_BY(mutex_);

  Mutex watchers_mutex_;  ///< taken before mutex_; orders the calls of watchers
  std::map<int64_t, Watcher> watchers_ ABSL_GUARDED_BY(watchers_mutex_);
  int64_t next_watcher_ ABSL_GUARDED_BY(watchers_mutex_) = 1;
};

}  // namespace sparsed::engine
