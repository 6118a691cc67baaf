// Trials: a layout and a kernel against plain CSR, in the worker slots that will run it, while they
// are idle or in a turn that they get. On the GPU, times are those between two events.
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
#include "engine/catalog/plan.h"
#include "engine/execution/backend.h"
#include "engine/execution/executor.h"
#include "kernels/array.h"
#include "kernels/layout.h"
#include "kernels/problem.h"

namespace sparsed::engine {

/// What takes part: a kernel on a layout, with the matrix's values.
struct Contender {
  std::shared_ptr<const Layout> layout;
  Array values;  ///< as Backend::ValuesFor gives them
  std::string kernel;
};

/// How a contender did. Milliseconds.
struct TrialTimes {
  double baseline_median = 0;
  double median = 0;
  int runs = 0;           ///< of each
  bool censored = false;  ///< the contender was hopeless: there were one or two turns
  int won = 0;            ///< turns in which the contender was the faster one

  double speedup() const { return median > 0 ? baseline_median / median : 0; }
  /// Faster in two turns of three: on a machine that others use, medians of few turns may differ by
  /// accident.
  bool WonMostTurns() const { return 3 * won >= 2 * runs; }
};

double Median(std::vector<double> times);

/// One run, in milliseconds.
using TimedRun = std::function<absl::StatusOr<double>()>;
/// Baseline and contender (null: none) turn by turn until `budget_ms` is spent, three turns at the
/// least, one or two if the contender is hopeless. The baseline's times are appended to
/// `all_baseline_ms`, too.
absl::StatusOr<TrialTimes> TakeTurns(const TimedRun& baseline, const TimedRun& contender,
                                     double budget_ms, std::vector<double>& all_baseline_ms);

/// The trials of one signature on one pattern: one set of random operands, one baseline, contenders
/// one after the other. Used by one thread.
class Trial {
 public:
  /// Allocates operands for `rows` x `cols` with `nnz` nonzeros in `backend`'s memory for
  /// preparations; if that has no room for them the width is halved until they fit. All that are
  /// given outlive it. After `until` it waits for worker slots no longer (DEADLINE_EXCEEDED).
  static absl::StatusOr<std::unique_ptr<Trial>> Begin(
      const ProblemSignature& signature, int64_t rows, int64_t cols, int64_t nnz, Backend& backend,
      Executor& executor, const std::atomic<bool>* stop,
      std::chrono::steady_clock::time_point until = kNever);

  /// Width that is timed: the signature's, or less for want of memory.
  const Problem& problem() const { return problem_; }
  void set_baseline(Contender baseline) { baseline_ = std::move(baseline); }

  /// Runs contender and baseline turn by turn, so that noise hits both: a warm-up each, then until
  /// `budget_ms` is spent, three turns at the least (fewer, if it is hopeless). Errors: CANCELLED,
  /// RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED, or what the kernel said.
  absl::StatusOr<TrialTimes> Against(const Contender& contender, double budget_ms);
  /// The baseline alone. For a pattern that has no other candidate.
  absl::StatusOr<TrialTimes> BaselineAlone(double budget_ms);

  /// The baseline in all turns so far; 0 before the first.
  double baseline_median() const;
  int baseline_runs() const { return static_cast<int>(baseline_ms_.size()); }

 private:
  Trial(const Problem& problem, Backend& backend, Executor& executor, const std::atomic<bool>* stop,
        std::chrono::steady_clock::time_point until)
      : problem_(problem),
        backend_(backend),
        memory_(backend.memory(MemoryUse::kPreparation)),
        executor_(executor),
        stop_(stop),
        until_(until) {}

  absl::Status AllocateOperands(int64_t rows, int64_t cols, int64_t nnz);
  absl::Status Fill(Array& array, uint64_t seed);
  /// One kernel run in an idle worker slot, on the CPU in pieces where requests come meanwhile;
  /// milliseconds of the kernel.
  absl::StatusOr<double> RunOnce(const Contender& contender);
  /// Its kernel on what is placed of it.
  BoundRun Bind(const Contender& contender, const PlacedSparse& placed);

  Problem problem_;
  Backend& backend_;
  MemorySource& memory_;
  Executor& executor_;
  const std::atomic<bool>* const stop_;
  const std::chrono::steady_clock::time_point until_;
  Contender baseline_;
  bool baseline_warm_ = false;
  std::vector<double> baseline_ms_;
  int64_t rows_ = 0, cols_ = 0;  ///< of the matrix, not of a layout
  Array tall_;                   ///< rows x K: SpMM's C (transposed: B), SDDMM's A
  Array wide_;                   ///< cols x K: SpMM's B (transposed: C), SDDMM's B
  Array result_;                 ///< SDDMM's, nnz
  Buffer workspace_;
};

}  // namespace sparsed::engine
