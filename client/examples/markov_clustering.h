// Markov clustering (van Dongen, "Graph clustering by flow simulation", 2000).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sparsed/client.h"

namespace sparsed::examples {

struct MarkovOptions {
  double inflation = 2;  ///< the power that chances are raised to: larger ones, smaller clusters
  float least = 1e-4F;   ///< smaller chances are dropped
  int iterations = 50;   ///< at most
};

/// One step of it: what the chances are after two steps of a walk (computed by the server, M * M),
/// raised to the power `inflation`, without the small ones, summing to 1 in each row again.
/// `chances` is square and f32, each row sums to 1. `name` is that of the matrix on the server,
/// which is replaced.
absl::StatusOr<CsrMatrix> MarkovStep(const Client& client, const CsrMatrix& chances,
                                     const MarkovOptions& options, const std::string& name);

/// The cluster of each vertex, named by one of its vertices. `graph` is square, with an entry (u,
/// v) of a positive weight for an edge from u to v, and best one (u, u) for each vertex, too.
/// `scratch` is the name of a matrix that is made, replaced and deleted on the way.
absl::StatusOr<std::vector<int32_t>> MarkovClusters(const Client& client, const CsrMatrix& graph,
                                                    const MarkovOptions& options,
                                                    const std::string& scratch);

}  // namespace sparsed::examples
