// Trials of SpGEMM: kernels on one pair of matrices, on a sample of the product's rows, on the
// lanes that will run them, while they are idle. On the GPU, times are those between two events.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/execution/executor.h"
#include "engine/planning/trial.h"
#include "kernels/array.h"
#include "kernels/kernel_table.h"
#include "kernels/layout.h"
#include "kernels/scratch.h"

namespace sparsed::engine {

struct DeviceLane;

/// Both matrices of a product, in plain CSR.
struct SpgemmOperands {
  std::shared_ptr<const Layout> left, right;
  Array left_values, right_values;  ///< in CSR's order; of what is on the device, in its layout's

  SpgemmArguments arguments() const;
};

/// Used by one thread. A run is what comes before the rows, all of it, and the rows of a sample;
/// its time is that of the whole product, were all rows as those.
class SpgemmTrial {
 public:
  /// Analyses the product and takes the sample: ranges of rows here and there. `memory` is the
  /// host's; a problem for GPUs is tried on `gpu`. They, `stop` and `executor` outlive the trial.
  /// After `until` it waits for lanes no longer. Errors: CANCELLED, RESOURCE_EXHAUSTED,
  /// DEADLINE_EXCEEDED, UNAVAILABLE (the device is lost).
  static absl::StatusOr<std::unique_ptr<SpgemmTrial>> Begin(
      const Problem& problem, SpgemmOperands operands, const SpgemmKernel& baseline,
      MemorySource& memory, Device* gpu, Executor& executor, const std::atomic<bool>* stop,
      std::chrono::steady_clock::time_point until = kNever);

  /// Runs kernel and baseline turn by turn, as Trial::Against. Errors: FAILED_PRECONDITION (the
  /// matrices don't suit the kernel's format), and as Begin.
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
  SpgemmTrial(const Problem& problem, SpgemmOperands operands, const SpgemmKernel& baseline,
              MemorySource& memory, Device* gpu, Executor& executor, const std::atomic<bool>* stop,
              std::chrono::steady_clock::time_point until);

  /// Bounds of all rows, or on the GPU their exact sizes.
  absl::Status FindBounds(const SpgemmArguments& arguments, Lane& lane);
  /// Of at most `ranges` ranges with up to `range_entries` each (more, if a single row has them).
  absl::Status TakeSample(int64_t ranges, int64_t range_entries);
  /// `use` on an idle lane, with the operands where it runs.
  absl::Status OnLane(const std::function<absl::Status(const SpgemmArguments&, Lane&)>& use);
  absl::StatusOr<SpgemmOperands> OnDevice() const;
  absl::StatusOr<double> RunOnce(const SpgemmKernel& kernel);
  absl::StatusOr<double> RunOnCpu(const SpgemmKernel& kernel, const SpgemmArguments& arguments,
                                  Lane& lane);
  absl::StatusOr<double> RunOnDevice(const SpgemmKernel& kernel, const SpgemmArguments& arguments,
                                     DeviceLane& gpu);
  Context OfLane(DeviceLane& gpu);
  /// What the kernel makes beforehand, if anything, goes to `prepared` and the context.
  absl::Status Prepare(const SpgemmKernel& kernel, const SpgemmArguments& arguments,
                       Context& context, std::shared_ptr<void>& prepared);
  /// What comes before the rows on the GPU: what is prepared goes to `prepared` and the context,
  /// the rows' sizes to counts_.
  absl::Status QueueCounts(const SpgemmKernel& kernel, const SpgemmArguments& arguments,
                           Context& context, std::shared_ptr<void>& prepared);

  const Problem problem_;
  const SpgemmOperands operands_;
  const SpgemmKernel& baseline_;
  MemorySource& host_memory_;
  Device* const gpu_;  ///< null: on the CPU
  Executor& executor_;
  MemorySource& memory_;  ///< where the kernels run
  const std::atomic<bool>* const stop_;
  const std::chrono::steady_clock::time_point until_;
  std::vector<RowRange> sample_;
  double scale_ = 1;  ///< of the whole product to the sample, by the bounds of the rows
  int64_t products_ = 0;
  int64_t nnz_ = 0;  ///< of the sample's rows
  std::vector<double> baseline_ms_;
  Scratch<int64_t> bounds_;     ///< of all rows
  Scratch<int64_t> row_begin_;  ///< of the largest range
  // Where the kernels run, for the largest range.
  Buffer workspace_;
  Array row_nnz_, columns_, values_;
  // On the GPU.
  Array counts_, product_count_;  ///< of all rows
  Array row_begin_there_;
};

}  // namespace sparsed::engine
