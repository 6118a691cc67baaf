#include "engine/planning/distribution.h"

#include <algorithm>

#include "engine/catalog/plan.h"

namespace sparsed::engine {
namespace {

/// What a request takes longer, because it has parts: those of columns run by themselves, those of
/// rows have the rows that they fetch listed, and are waited for. Measured on two and four H100.
constexpr double kColumnsMs = 0.03, kRowsMs = 0.1;
/// A gain below this is not told from noise.
constexpr double kLeastGain = 1.03;
/// What rows that were fetched are multiplied to is added: about as many are read and written.
constexpr double kPassesOverFetched = 2;

double BytesOf(const DistributedProblem& of, int64_t k) {
  Problem problem = of.problem;
  problem.k = k;
  return CompulsoryBytes(problem, of.rows, of.cols, of.nnz);
}

double WholeMs(const DistributedProblem& of) {
  return of.whole_ms > 0 ? of.whole_ms : 1e3 * BytesOf(of, of.problem.k) / of.bytes_per_second;
}

double RowBytes(const DistributedProblem& of) {
  return static_cast<double>(of.problem.k) * static_cast<double>(SizeOf(of.problem.type));
}

DistributionEstimate InColumns(const DistributedProblem& of) {
  const int64_t most = (of.problem.k + of.gpus - 1) / of.gpus;
  const double part = BytesOf(of, most) / std::max(BytesOf(of, of.problem.k), 1.0);
  return {Distribution::kColumns, 0, WholeMs(of) * part + kColumnsMs};
}

DistributionEstimate InRows(const DistributedProblem& of) {
  const double exchanged = static_cast<double>(of.fetched_rows) * RowBytes(of);
  const double fetched = static_cast<double>(of.most_fetched_rows) * RowBytes(of);
  // They come while the GPU multiplies with its own, and are multiplied then.
  const double share =
      static_cast<double>(of.fetched_nonzeros) / static_cast<double>(std::max<int64_t>(of.nnz, 1));
  const double own_ms = WholeMs(of) / of.gpus * (1 - share);
  const double fetched_ms = WholeMs(of) / of.gpus * share;
  const double fetch_ms = 1e3 * fetched / of.peer_bytes_per_second;
  const double add_ms = 1e3 * kPassesOverFetched * fetched / of.bytes_per_second;
  return {Distribution::kRows, exchanged,
          std::max(own_ms, fetch_ms) + fetched_ms + add_ms + kRowsMs};
}

}  // namespace

std::vector<DistributionEstimate> EstimateDistributions(const DistributedProblem& of) {
  std::vector<DistributionEstimate> estimates = {{Distribution::kWhole, 0, WholeMs(of)}};
  if (of.gpus < 2) return estimates;
  if (of.problem.k >= of.gpus) estimates.push_back(InColumns(of));
  if (std::min(of.rows, of.cols) >= of.gpus) estimates.push_back(InRows(of));
  return estimates;
}

Distribution BestOf(const std::vector<DistributionEstimate>& estimates) {
  const auto best = std::ranges::min_element(estimates, {}, &DistributionEstimate::milliseconds);
  const bool gains = best->milliseconds * kLeastGain <= estimates.front().milliseconds;
  return gains ? best->distribution : Distribution::kWhole;
}

double SpreadMilliseconds(const DistributedProblem& of) {
  const bool transposed = of.problem.transposed;
  const auto operand = static_cast<double>(transposed ? of.rows : of.cols) * RowBytes(of);
  const auto result = static_cast<double>(transposed ? of.cols : of.rows) * RowBytes(of);
  const double others = static_cast<double>(of.gpus - 1) / of.gpus;
  return 1e3 * others * (operand + result) / of.copy_bytes_per_second;
}

}  // namespace sparsed::engine
