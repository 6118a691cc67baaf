#include <fmt/format.h>

#include <algorithm>

#include "tools/corpus/integers.h"
#include "tools/corpus/meshes.h"
#include "tools/corpus/variants.h"

namespace sparsed::corpus {
namespace {

/// Of about so many points, in two dimensions about `aspect` times as long as wide, in three as
/// high.
Extent ExtentOf(int64_t points, int dimensions, int64_t aspect) {
  const auto area = static_cast<uint64_t>(std::max<int64_t>(points / aspect, 1));
  const auto width = static_cast<int64_t>(dimensions == 2 ? SquareRoot(area) : CubeRoot(area));
  const int64_t face = dimensions == 2 ? width : width * width;
  return {std::max<int64_t>(points / face, 1), width, face / width};
}

std::string TextOf(const Extent& e, int64_t unknowns) {
  return fmt::format("extent={}x{}x{} unknowns={}", e.x, e.y, e.z, unknowns);
}

/// Entries of pairs of points that are (x, y, z) apart, in both directions.
int64_t Pairs(const Extent& e, int64_t x, int64_t y, int64_t z) {
  return 2 * (e.x - x) * (e.y - y) * (e.z - z);
}

/// `make` gives the nodes' pattern, of `node_nnz` nonzeros.
Sized WithNodes(const Extent& extent, int64_t node_nnz, int64_t unknowns,
                std::function<Pattern(uint64_t)> make) {
  const int64_t rows = extent.points() * unknowns;
  return {rows, rows, node_nnz * unknowns * unknowns, TextOf(extent, unknowns), [=](uint64_t seed) {
            Pattern nodes = make(seed);
            return unknowns == 1 ? nodes : WithUnknowns(nodes, unknowns);
          }};
}

struct StencilShape {
  int dimensions = 2;
  Neighbours neighbours = Neighbours::kStar;
  int64_t unknowns = 1;
  int64_t aspect = 1;
  bool periodic = false;
};

int64_t NnzOf(const Extent& e, const StencilShape& shape, int64_t point_nnz) {
  if (shape.periodic) return e.points() * point_nnz;
  if (shape.neighbours == Neighbours::kBox) return (3 * e.x - 2) * (3 * e.y - 2) * (3 * e.z - 2);
  return e.points() + Pairs(e, 1, 0, 0) + Pairs(e, 0, 1, 0) + Pairs(e, 0, 0, 1);
}

Variant StencilVariant(const char* family, std::string name, const StencilShape& shape) {
  const bool box = shape.neighbours == Neighbours::kBox;
  const int64_t point_nnz = shape.dimensions == 2 ? (box ? 9 : 5) : (box ? 27 : 7);
  const auto size = [=](int64_t target) {
    const int64_t points = target / (point_nnz * shape.unknowns * shape.unknowns);
    const Extent extent = ExtentOf(points, shape.dimensions, shape.aspect);
    return WithNodes(extent, NnzOf(extent, shape, point_nnz), shape.unknowns,
                     [=](uint64_t) { return Stencil(extent, shape.neighbours, shape.periodic); });
  };
  return {family, std::move(name), size};
}

Variant TriangleVariant(std::string name, int64_t unknowns, int holes, int64_t aspect = 1) {
  const auto size = [=](int64_t target) {
    const Extent extent = ExtentOf(target / (7 * unknowns * unknowns), 2, aspect);
    const int64_t nnz =
        extent.points() + Pairs(extent, 1, 0, 0) + Pairs(extent, 0, 1, 0) + Pairs(extent, 1, 1, 0);
    return WithNodes(extent, nnz, unknowns,
                     [=](uint64_t seed) { return TriangleMesh(extent.x, extent.y, holes, seed); });
  };
  return {"fem", std::move(name), size};
}

Variant TetrahedronVariant(std::string name, int64_t unknowns, int holes) {
  const auto size = [=](int64_t target) {
    const Extent extent = ExtentOf(target / (15 * unknowns * unknowns), 3, 1);
    int64_t nnz = extent.points();
    for (int bits = 1; bits < 8; ++bits) nnz += Pairs(extent, bits & 1, bits >> 1 & 1, bits >> 2);
    return WithNodes(extent, nnz, unknowns,
                     [=](uint64_t seed) { return TetrahedronMesh(extent, holes, seed); });
  };
  return {"fem", std::move(name), size};
}

}  // namespace

std::vector<Variant> MeshVariants() {
  constexpr auto kStar = Neighbours::kStar, kBox = Neighbours::kBox;
  return {StencilVariant("stencil", "2d5", {2, kStar}),
          StencilVariant("stencil", "2d5strip", {2, kStar, 1, 16}),
          StencilVariant("stencil", "2d9", {2, kBox}),
          StencilVariant("stencil", "2d9periodic", {2, kBox, 1, 1, true}),
          StencilVariant("stencil", "3d7", {3, kStar}),
          StencilVariant("stencil", "3d7periodic", {3, kStar, 1, 1, true}),
          StencilVariant("stencil", "3d27", {3, kBox}),
          StencilVariant("stencil", "2d5u3", {2, kStar, 3}),
          StencilVariant("stencil", "3d7u4", {3, kStar, 4}),
          StencilVariant("fem", "quadrangle_u2", {2, kBox, 2}),
          StencilVariant("fem", "hexahedron_u3", {3, kBox, 3}),
          StencilVariant("fem", "hexahedron_beam", {3, kBox, 3, 12}),
          TriangleVariant("triangle", 1, 0),
          TriangleVariant("triangle_holes", 1, 12),
          TriangleVariant("triangle_u2", 2, 4),
          TriangleVariant("triangle_u6strip", 6, 2, 8),
          TetrahedronVariant("tetrahedron", 1, 0),
          TetrahedronVariant("tetrahedron_holes", 1, 20),
          TetrahedronVariant("tetrahedron_u3", 3, 4)};
}

}  // namespace sparsed::corpus
