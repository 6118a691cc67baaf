#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "tools/corpus/graphs.h"
#include "tools/corpus/integers.h"
#include "tools/corpus/variants.h"

namespace sparsed::corpus {
namespace {

/// What drawing more than once costs: five draws for four edges.
int64_t Draws(int64_t edges) { return edges * 5 / 4; }

Variant RmatVariant(std::string name, int64_t edge_factor, const RmatOptions& options) {
  const auto size = [=](int64_t target) {
    const auto vertices = static_cast<uint64_t>(std::max<int64_t>(target / edge_factor, 2));
    const int scale = static_cast<int>(std::bit_width(vertices)) - 1;
    const int64_t edges = Draws(options.symmetric ? target / 2 : target);
    const Quadrants& q = options.quadrants;
    return Sized{int64_t{1} << scale, int64_t{1} << scale, target,
                 fmt::format("scale={} edges={} a={} b={} c={} symmetric={} shuffled={}", scale,
                             edges, q.a, q.b, q.c, options.symmetric, options.shuffled),
                 [=](uint64_t seed) { return Rmat(scale, edges, options, seed); }};
  };
  return {"rmat", std::move(name), size, options.shuffled};
}

Variant BarabasiVariant(int64_t attached) {
  const auto size = [=](int64_t target) {
    const int64_t vertices = target / (2 * attached) + 1;
    return Sized{vertices, vertices, target,
                 fmt::format("vertices={} attached={}", vertices, attached),
                 [=](uint64_t seed) { return BarabasiAlbert(vertices, attached, seed); }};
  };
  return {"barabasi", fmt::format("m{}", attached), size};
}

Variant BlocksVariant(std::string name, int64_t degree, const BlockOptions& options) {
  const auto size = [=](int64_t target) {
    const int64_t vertices = target / degree;
    return Sized{
        vertices, vertices, target,
        fmt::format("vertices={} degree={} blocks={} inside={} uneven={} shuffled={}", vertices,
                    degree, options.blocks, options.inside, options.uneven, options.shuffled),
        [=](uint64_t seed) { return StochasticBlocks(vertices, degree, options, seed); }};
  };
  return {"blocks", std::move(name), size, options.shuffled};
}

Variant SmallWorldVariant(int64_t neighbours, int rewired) {
  const auto size = [=](int64_t target) {
    const int64_t vertices = target / neighbours;
    return Sized{vertices, vertices, target,
                 fmt::format("vertices={} neighbours={} rewired={}", vertices, neighbours, rewired),
                 [=](uint64_t seed) { return SmallWorld(vertices, neighbours, rewired, seed); }};
  };
  return {"small_world", fmt::format("k{}r{}", neighbours, rewired), size};
}

Variant PowerLawVariant(std::string name, int64_t degree, Falloff falloff) {
  const auto size = [=](int64_t target) {
    const int64_t vertices = target / degree, edges = Draws(target);
    return Sized{vertices, vertices, target, fmt::format("vertices={} edges={}", vertices, edges),
                 [=](uint64_t seed) { return ChungLu(vertices, edges, falloff, seed); }};
  };
  return {"power_law", std::move(name), size, /*unordered=*/true};
}

Variant RoadVariant(std::string name, int64_t aspect, int kept, int diagonals) {
  const auto size = [=](int64_t target) {
    const int64_t crossings = target * 1000 / (4 * (kept + diagonals));
    const auto width = static_cast<int64_t>(SquareRoot(static_cast<uint64_t>(crossings * aspect)));
    const int64_t height = std::max<int64_t>(crossings / width, 1);
    return Sized{
        width * height, width * height, target,
        fmt::format("width={} height={} kept={} diagonals={}", width, height, kept, diagonals),
        [=](uint64_t seed) { return RoadGrid(width, height, kept, diagonals, seed); }};
  };
  return {"road", std::move(name), size};
}

Variant GeometricVariant(int64_t degree) {
  const auto size = [=](int64_t target) {
    const int64_t points = target / degree;
    return Sized{points, points, target, fmt::format("points={} degree={}", points, degree),
                 [=](uint64_t seed) { return RandomGeometric(points, degree, seed); }};
  };
  return {"road", fmt::format("geometric{}", degree), size};
}

}  // namespace

std::vector<Variant> GraphVariants() {
  constexpr Quadrants kMild{450, 220, 220}, kSkewed{650, 150, 150};
  return {RmatVariant("graph500f8", 8, {}),
          RmatVariant("graph500f32", 32, {}),
          RmatVariant("symmetric", 16, {.symmetric = true}),
          RmatVariant("ordered", 16, {.shuffled = false}),
          RmatVariant("mild", 16, {.quadrants = kMild}),
          RmatVariant("skewed", 8, {.quadrants = kSkewed}),
          BarabasiVariant(2),
          BarabasiVariant(4),
          BarabasiVariant(8),
          BarabasiVariant(16),
          BlocksVariant("b16d16", 16, {.blocks = 16, .inside = 900}),
          BlocksVariant("b64d24shuffled", 24, {.blocks = 64, .inside = 950, .shuffled = true}),
          BlocksVariant("b8d32uneven", 32, {.blocks = 8, .inside = 700, .uneven = true}),
          BlocksVariant("b100d12", 12, {.blocks = 100, .inside = 980}),
          SmallWorldVariant(4, 50),
          SmallWorldVariant(6, 300),
          SmallWorldVariant(8, 10),
          SmallWorldVariant(16, 100),
          PowerLawVariant("half8", 8, Falloff::kHalf),
          PowerLawVariant("quarters4", 4, Falloff::kThreeQuarters),
          PowerLawVariant("quarters16", 16, Falloff::kThreeQuarters),
          PowerLawVariant("one24", 24, Falloff::kOne),
          RoadVariant("grid800", 1, 800, 0),
          RoadVariant("grid650", 1, 650, 50),
          RoadVariant("grid950", 1, 950, 10),
          RoadVariant("strip", 25, 750, 20),
          GeometricVariant(6),
          GeometricVariant(12),
          GeometricVariant(24)};
}

std::vector<Variant> Variants() {
  std::vector<Variant> all = GraphVariants();
  for (auto* const more : {MeshVariants, SystemVariants, RectangleVariants}) {
    std::ranges::move(more(), std::back_inserter(all));
  }
  return all;
}

}  // namespace sparsed::corpus
