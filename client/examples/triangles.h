// Triangles of a graph by one product under a mask.
#pragma once

#include <cstdint>

#include "sparsed/client.h"

namespace sparsed::examples {

/// Triangles of an undirected graph whose edges are the entries below the diagonal of `lower`: a
/// square matrix on the server, L, with entry (i, j), i > j, for an edge between i and j; values
/// don't matter.
absl::StatusOr<int64_t> CountTriangles(const Matrix& lower);

}  // namespace sparsed::examples
