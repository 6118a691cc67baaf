// What a product takes whose operand and result lie on several GPUs, by bytes and rates: each has
// columns of the operand and all of S, or rows of both and fetches those that its nonzeros name.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/catalog/distribution.h"
#include "kernels/problem.h"

namespace sparsed::engine {

/// Between GPUs that read each other's memory (NVLink 4, measured: one after the other, and rows
/// that are picked out), each reading at once.
inline constexpr double kPeerCopyBytesPerSecond = 300e9;
inline constexpr double kPeerRowsBytesPerSecond = 200e9;

/// An SpMM on GPUs that are alike.
struct DistributedProblem {
  Problem problem;
  int64_t rows = 0, cols = 0, nnz = 0;  ///< of S as it was uploaded
  int gpus = 2;
  double bytes_per_second = 0;       ///< of a GPU's memory
  double peer_bytes_per_second = 0;  ///< rows that are picked out of another's memory
  double copy_bytes_per_second = 0;  ///< what is copied from there as it lies
  double whole_ms = 0;               ///< on one of them, as was measured; 0: by bytes
  // Of rows; a GPU has as many nonzeros as the others, about.
  int64_t fetched_rows = 0;       ///< of the operand, by all GPUs together
  int64_t most_fetched_rows = 0;  ///< by one of them
  int64_t fetched_nonzeros = 0;   ///< that name those, of all GPUs
};

struct DistributionEstimate {
  Distribution distribution = Distribution::kWhole;
  double exchanged_bytes = 0;  ///< from GPU to GPU, for each product
  double milliseconds = 0;
};

/// Whole, then the others that the sizes allow.
std::vector<DistributionEstimate> EstimateDistributions(const DistributedProblem& of);

/// The fastest; whole, if no other gains enough over it.
Distribution BestOf(const std::vector<DistributionEstimate>& estimates);

/// To spread an operand that lies on one GPU over the others, and bring the result together there.
double SpreadMilliseconds(const DistributedProblem& of);

}  // namespace sparsed::engine
