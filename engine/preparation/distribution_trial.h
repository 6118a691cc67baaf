// Trials of how operands lie on several GPUs: requests, as callers make them, whose operand and
// result the server holds.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/catalog/distribution.h"
#include "engine/catalog/matrix.h"
#include "engine/execution/executor.h"
#include "engine/memory/budget.h"
#include "engine/preparation/trial.h"
#include "kernels/problem.h"

namespace sparsed::engine {

/// SpMM with a matrix. Each request waits until each of its GPUs is idle, or has a turn for trials
/// (Executor::RunIdle), and then runs as any other, beside what came meanwhile: of no tenant
/// (kTrialTenant), and without being counted as a use.
struct DistributionTrialSpec {
  MatrixLease matrix;
  Problem problem;  ///< not transposed or transposed, of K columns
  Distribution distribution = Distribution::kColumns;
  std::vector<int64_t> bounds;  ///< of kRows: each GPU's rows of the operand
  double budget_ms = 0;         ///< in all
  std::chrono::steady_clock::time_point until = kNever;  ///< then it waits for GPUs no longer
};

/// Requests on one GPU (the baseline) and on all of them, turn by turn, without the way to a caller
/// and without what they waited for worker slots. Errors: RESOURCE_EXHAUSTED (no GPU has room for
/// the operands), CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE, and what requests end with.
absl::StatusOr<TrialTimes> TryDistribution(const DistributionTrialSpec& spec, Executor& executor,
                                           Budget& budget, const std::atomic<bool>* stop);

}  // namespace sparsed::engine
