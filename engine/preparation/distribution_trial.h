// Trials of how operands lie on several GPUs: requests, as callers make them, whose operand and
// result the server holds.
#pragma once

#include <atomic>
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

/// SpMM with a matrix that the catalog has under its name. Not in the way of who uses the GPUs: its
/// requests wait as others do, and each is as short.
struct DistributionTrialSpec {
  MatrixLease matrix;
  Problem problem;  ///< not transposed or transposed, of K columns
  Distribution distribution = Distribution::kColumns;
  std::vector<int64_t> bounds;  ///< of kRows: each GPU's rows of the operand
  double budget_ms = 0;         ///< in all
};

/// Requests on one GPU (the baseline) and on all of them, turn by turn, without the way to a
/// caller. Errors: RESOURCE_EXHAUSTED (no GPU has room for the operands), CANCELLED, UNAVAILABLE,
/// and what requests end with.
absl::StatusOr<TrialTimes> TryDistribution(const DistributionTrialSpec& spec, Executor& executor,
                                           Budget& budget, const std::atomic<bool>* stop);

}  // namespace sparsed::engine
