// Breadth-first search from many vertices at once.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sparsed/client.h"

namespace sparsed::examples {

/// Steps from each source to each vertex: element [v * sources.size() + i] is the length of the
/// shortest path from sources[i] to v, -1 where there is none. `graph` is a square f32 matrix on
/// the server with an entry (u, v) for an edge from u to v; values don't matter. `scratch` is the
/// name of a matrix that is made, replaced and deleted on the way. INVALID_ARGUMENT for a source
/// that is no vertex.
absl::StatusOr<std::vector<int32_t>> BreadthFirstLevels(const Client& client, const Matrix& graph,
                                                        std::span<const int32_t> sources,
                                                        const std::string& scratch);

}  // namespace sparsed::examples
