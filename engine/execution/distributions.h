// How an operand had best lie on a server's GPUs for products with a matrix.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/catalog/matrix.h"
#include "engine/execution/executor.h"
#include "engine/planning/distribution.h"

namespace sparsed::engine {

struct DistributionChoice {
  Distribution best = Distribution::kWhole;
  int gpus = 1;
  std::vector<DistributionEstimate> estimates;  ///< by bytes and rates
  std::optional<TriedDistribution> tried;       ///< by which `best` is chosen, if it is there
  double spread_ms = 0;
};

/// The bounds of rows of the operand of op(S) that the server chooses: by S's nonzeros where the
/// result has the same rows, else as many. `stored` is S as it was uploaded.
std::vector<int64_t> ChosenBounds(const CsrView& stored, bool transposed, int64_t parts);

/// Of SpMM with an operand of `k` columns, on all GPUs. Whole, where there are fewer than two, or
/// one of them is lost. A pass over the nonzeros finds what rows exchange, and reads the disk; with
/// `best_alone` only where no trial says what is best, and the estimate of rows is without it
/// elsewhere. Errors: CANCELLED, RESOURCE_EXHAUSTED, and those of Pattern::Csr.
absl::StatusOr<DistributionChoice> ChooseDistribution(const Executor& executor,
                                                      const Matrix& matrix, bool transposed,
                                                      int64_t k, const std::atomic<bool>* stop,
                                                      bool best_alone = false);

}  // namespace sparsed::engine
