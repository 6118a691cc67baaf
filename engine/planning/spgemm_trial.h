// Trials of SpGEMM: kernels on one pair of matrices, on a sample of the product's rows, on the
// lanes that will run them, while they are idle.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/execution/executor.h"
#include "engine/planning/trial.h"
#include "kernels/array.h"
#include "kernels/kernel_table.h"
#include "kernels/scratch.h"

namespace sparsed::engine {

/// Used by one thread. A run is what comes before the rows, all of it, and the rows of a sample;
/// its time is that of the whole product, were all rows as those.
class SpgemmTrial {
 public:
  /// Analyses the product and takes the sample: ranges of rows here and there. On the CPU. `stop`,
  /// `executor` and what `arguments` view outlive it. Errors: CANCELLED, RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<SpgemmTrial>> Begin(
      const Problem& problem, const SpgemmArguments& arguments, const SpgemmKernel& baseline,
      MemorySource& memory, Executor& executor, const std::atomic<bool>* stop);

  /// Runs kernel and baseline turn by turn, as Trial::Against. Errors: FAILED_PRECONDITION (the
  /// matrices don't suit the kernel's format), CANCELLED, RESOURCE_EXHAUSTED.
  absl::StatusOr<TrialTimes> Against(const SpgemmKernel& kernel, double budget_ms);
  /// The baseline alone, where nothing else may be tried.
  absl::StatusOr<TrialTimes> BaselineAlone(double budget_ms);

  /// The baseline in all turns so far; 0 before the first.
  double baseline_median() const;
  int baseline_runs() const { return static_cast<int>(baseline_ms_.size()); }
  int64_t products() const { return products_; }
  /// Of the result; an estimate, if the sample is not all of it.
  int64_t result_nnz() const { return static_cast<int64_t>(static_cast<double>(nnz_) * scale_); }

 private:
  SpgemmTrial(const Problem& problem, const SpgemmArguments& arguments,
              const SpgemmKernel& baseline, MemorySource& memory, Executor& executor,
              const std::atomic<bool>* stop)
      : problem_(problem),
        arguments_(arguments),
        baseline_(baseline),
        memory_(memory),
        executor_(executor),
        stop_(stop) {}

  absl::Status TakeSample(Lane& lane);
  absl::StatusOr<double> RunOnce(const SpgemmKernel& kernel);
  absl::StatusOr<double> RunOnLane(const SpgemmKernel& kernel, Lane& lane);

  const Problem problem_;
  const SpgemmArguments arguments_;
  const SpgemmKernel& baseline_;
  MemorySource& memory_;
  Executor& executor_;
  const std::atomic<bool>* const stop_;
  std::vector<RowRange> sample_;
  double scale_ = 1;  ///< of the whole product to the sample, by the bounds of the rows
  int64_t products_ = 0;
  int64_t nnz_ = 0;  ///< of the sample's rows
  std::vector<double> baseline_ms_;
  Buffer workspace_;
  Scratch<int64_t> bounds_;               ///< of all rows
  Scratch<int64_t> row_begin_, row_nnz_;  ///< of the largest range
  Scratch<int32_t> columns_;
  Buffer values_;
};

}  // namespace sparsed::engine
