// Trials of SpGEMM: kernels on one pair of matrices, on a sample of the product's rows, on the
// worker slots that will run them, while they are idle. On the GPU, times are those between two
// events.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/execution/bound_spgemm.h"
#include "engine/execution/executor.h"
#include "engine/execution/piece_run.h"
#include "engine/preparation/trial.h"
#include "kernels/array.h"
#include "kernels/kernel_table.h"
#include "kernels/layout.h"
#include "kernels/scratch.h"

namespace sparsed::engine {

/// Used by one thread. A run is what comes before the rows, all of it, and the rows of a sample;
/// its time is that of the whole product, were all rows as those.
class SpgemmTrial {
 public:
  /// Analyses the product and takes the sample: ranges of rows here and there. `memory` is the
  /// host's, for what is looked at there. All that are given outlive the trial.
  /// After `until` it waits for worker slots no longer. Errors: CANCELLED, RESOURCE_EXHAUSTED,
  /// DEADLINE_EXCEEDED, UNAVAILABLE (the device is lost).
  static absl::StatusOr<std::unique_ptr<SpgemmTrial>> Begin(
      const Problem& problem, SpgemmFactor left, SpgemmFactor right, const SpgemmKernel& baseline,
      MemorySource& memory, Backend& backend, Executor& executor, const std::atomic<bool>* stop,
      std::chrono::steady_clock::time_point until = kNever);

  /// Runs kernel and baseline turn by turn, as Trial::Against, the kernel on `left` and `right`,
  /// which are the trial's in the formats that it reads. Errors: FAILED_PRECONDITION (the matrices
  /// don't suit the kernel), and as Begin.
  absl::StatusOr<TrialTimes> Against(const SpgemmKernel& kernel, const SpgemmFactor& left,
                                     const SpgemmFactor& right, double budget_ms);
  /// The baseline alone, where nothing else may be tried.
  absl::StatusOr<TrialTimes> BaselineAlone(double budget_ms);

  /// The baseline in all turns so far; 0 before the first.
  double baseline_median() const;
  int baseline_runs() const { return static_cast<int>(baseline_ms_.size()); }
  int64_t products() const { return products_; }
  /// Of the result; an estimate, if the sample is not all of it.
  int64_t result_nnz() const { return static_cast<int64_t>(static_cast<double>(nnz_) * scale_); }

 private:
  SpgemmTrial(const Problem& problem, SpgemmFactor left, SpgemmFactor right,
              const SpgemmKernel& baseline, MemorySource& memory, Backend& backend,
              Executor& executor, const std::atomic<bool>* stop,
              std::chrono::steady_clock::time_point until);

  /// Of at most `ranges` ranges with up to `range_entries` each (more, if a single row has them).
  absl::Status TakeSample(int64_t ranges, int64_t range_entries);
  /// A run of a kernel, as far as it has come.
  struct Run {
    Run(BoundSpgemm bound, const std::atomic<bool>* wanted, BlockOfPiece& block_of_kernel)
        : product(std::move(bound)), analysis(wanted), block(block_of_kernel) {}
    BoundSpgemm product;
    bool prepared = false;
    PieceRun analysis;    ///< on the CPU
    BlockOfPiece& block;  ///< likewise
    size_t range = 0;     ///< of the sample, that is computed
    int64_t row = 0;      ///< the next of that
    int64_t nnz = 0;      ///< of the sample's rows
    double before_ms = 0, rows_ms = 0;
  };
  /// Calls `piece` in idle worker slots until it says that it was the last, with `kernel` on the
  /// factors where it runs.
  absl::Status OnSlot(const SpgemmKernel& kernel, const SpgemmFactor& left,
                      const SpgemmFactor& right,
                      const std::function<absl::StatusOr<bool>(Run&, WorkerSlot&)>& piece);
  RunOptions Options() { return {workspace_, memory_, stop_}; }
  /// Bounds of all rows, or on a GPU their exact sizes, with what comes before that. True once they
  /// are found; on the CPU it ends before when a request waits.
  absl::StatusOr<bool> FindBounds(Run& run, WorkerSlot& slot);
  absl::StatusOr<double> RunOnce(const SpgemmKernel& kernel, const SpgemmFactor& left,
                                 const SpgemmFactor& right);
  absl::StatusOr<double> RunBaseline() { return RunOnce(baseline_, left_, right_); }
  /// True once all of the sample is computed; as FindBounds.
  absl::StatusOr<bool> RunSample(Run& run, WorkerSlot& slot);
  /// Rows of the sample, after all before them.
  absl::Status RunRows(Run& run, RowRange rows, WorkerSlot& slot);

  const Problem problem_;
  const SpgemmFactor left_, right_;
  const SpgemmKernel& baseline_;
  MemorySource& host_memory_;
  Backend& backend_;
  Executor& executor_;
  MemorySource& memory_;  ///< where the kernels run
  const std::atomic<bool>* const stop_;
  const std::chrono::steady_clock::time_point until_;
  std::vector<RowRange> sample_;
  double scale_ = 1;  ///< of the whole product to the sample, by the bounds of the rows
  int64_t products_ = 0;
  int64_t nnz_ = 0;  ///< of the sample's rows
  std::vector<double> baseline_ms_;
  std::map<const SpgemmKernel*, BlockOfPiece>
      blocks_;                  ///< known from run to run, of whatever layouts
  Scratch<int64_t> bounds_;     ///< of all rows
  Scratch<int64_t> row_begin_;  ///< of the largest range
  // Where the kernels run, for the largest range.
  Buffer workspace_;
  Array device_row_begin_;  ///< unless that is the host
  Array row_nnz_, columns_, values_;
};

}  // namespace sparsed::engine
