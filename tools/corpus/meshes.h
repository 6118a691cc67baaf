// Matrices of discretised equations: stencils on grids, finite elements on meshes. The same for the
// same arguments on every machine.
#pragma once

#include <cstdint>

#include "tools/corpus/pattern.h"

namespace sparsed::corpus {

/// Points along each axis; z = 1: in two dimensions.
struct Extent {
  int64_t x = 1, y = 1, z = 1;
  int64_t points() const { return x * y * z; }
};

enum class Neighbours : uint8_t {
  kStar,  ///< one step along an axis: 5 points in two dimensions, 7 in three
  kBox,   ///< along several axes at once too: 9, 27
};
/// Each point with its neighbours. `periodic`: what leaves on one side comes in on the other.
Pattern Stencil(const Extent& extent, Neighbours neighbours, bool periodic = false);

/// Each point of a triangulated rectangle with those that it shares a triangle with; which of its
/// two diagonals cuts a cell is drawn. `holes` round holes, a twentieth of the width each, leave
/// points out.
Pattern TriangleMesh(int64_t width, int64_t height, int holes, uint64_t seed);

/// Likewise of a box whose cubes are cut into six tetrahedra, all alike: 15 points.
Pattern TetrahedronMesh(const Extent& extent, int holes, uint64_t seed);

/// Each entry becomes a full block of `unknowns` x `unknowns`: several degrees of freedom a node.
Pattern WithUnknowns(const Pattern& nodes, int64_t unknowns);

}  // namespace sparsed::corpus
