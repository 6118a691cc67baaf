#include "tools/corpus/meshes.h"

#include <array>
#include <span>
#include <utility>
#include <vector>

#include "tools/corpus/assemble.h"
#include "tools/corpus/random.h"

namespace sparsed::corpus {
namespace {

struct Step {
  int x = 0, y = 0, z = 0;
};

int64_t Wrapped(int64_t place, int64_t size) { return (place + size) % size; }

/// Points outside all of `holes` round holes at random places have numbers, row by row; others -1.
std::vector<int32_t> NumberPoints(const Extent& extent, int holes, uint64_t seed) {
  struct Hole {
    int64_t x, y, z;
  };
  Random random(seed);
  std::vector<Hole> all(holes);
  for (Hole& hole : all) {
    hole.x = random.Below(extent.x);
    hole.y = random.Below(extent.y);
    hole.z = random.Below(extent.z);
  }
  const int64_t radius = std::max<int64_t>(extent.x / 20, 1);
  std::vector<int32_t> numbers(extent.points(), -1);
  int32_t next = 0;
  for (int64_t point = 0; point < extent.points(); ++point) {
    const int64_t x = point % extent.x, y = point / extent.x % extent.y,
                  z = point / extent.x / extent.y;
    const bool outside = std::ranges::none_of(all, [&](const Hole& hole) {
      const int64_t a = x - hole.x, b = y - hole.y, c = z - hole.z;
      return a * a + b * b + c * c < radius * radius;
    });
    if (outside) numbers[point] = next++;
  }
  return numbers;
}

/// Each point that has a number with itself and those that `joined(point, step)` of the steps leads
/// to.
template <typename Joined>
Pattern Mesh(const Extent& extent, const std::vector<int32_t>& numbers, std::span<const Step> steps,
             Joined joined) {
  std::vector<int64_t> points;
  for (int64_t point = 0; point < extent.points(); ++point) {
    if (numbers[point] >= 0) points.push_back(point);
  }
  const auto rows = static_cast<int64_t>(points.size());
  const auto most = static_cast<int64_t>(steps.size()) + 1;
  return FillRows(rows, rows, most, [&](int64_t row, int32_t* columns) {
    const int64_t point = points[row];
    const int64_t x = point % extent.x, y = point / extent.x % extent.y,
                  z = point / extent.x / extent.y;
    int64_t count = 0;
    columns[count++] = static_cast<int32_t>(row);
    for (const Step& step : steps) {
      const int64_t to_x = x + step.x, to_y = y + step.y, to_z = z + step.z;
      if (to_x < 0 || to_x >= extent.x || to_y < 0 || to_y >= extent.y || to_z < 0 ||
          to_z >= extent.z) {
        continue;
      }
      const int64_t to = (to_z * extent.y + to_y) * extent.x + to_x;
      if (numbers[to] >= 0 && joined(point, step)) columns[count++] = numbers[to];
    }
    return count;
  });
}

}  // namespace

Pattern Stencil(const Extent& extent, Neighbours neighbours, bool periodic) {
  const auto fill = [&](int64_t row, int32_t* columns) {
    const int64_t x = row % extent.x, y = row / extent.x % extent.y, z = row / extent.x / extent.y;
    int64_t count = 0;
    for (int64_t dz = -1; dz <= 1; ++dz) {
      for (int64_t dy = -1; dy <= 1; ++dy) {
        for (int64_t dx = -1; dx <= 1; ++dx) {
          if (neighbours == Neighbours::kStar && dx * dx + dy * dy + dz * dz > 1) continue;
          if (extent.z == 1 && dz != 0) continue;
          int64_t to_x = x + dx, to_y = y + dy, to_z = z + dz;
          if (periodic) {
            to_x = Wrapped(to_x, extent.x);
            to_y = Wrapped(to_y, extent.y);
            to_z = Wrapped(to_z, extent.z);
          } else if (to_x < 0 || to_x >= extent.x || to_y < 0 || to_y >= extent.y || to_z < 0 ||
                     to_z >= extent.z) {
            continue;
          }
          columns[count++] = static_cast<int32_t>((to_z * extent.y + to_y) * extent.x + to_x);
        }
      }
    }
    return count;
  };
  const int64_t most = neighbours == Neighbours::kStar ? 7 : extent.z == 1 ? 9 : 27;
  return FillRows(extent.points(), extent.points(), most, fill);
}

Pattern TriangleMesh(int64_t width, int64_t height, int holes, uint64_t seed) {
  constexpr std::array<Step, 8> kSteps = {
      {{1, 0}, {-1, 0}, {0, 1}, {0, -1}, {1, 1}, {-1, -1}, {1, -1}, {-1, 1}}};
  const Extent extent{width, height};
  const Dice falls(seed + 1);
  return Mesh(extent, NumberPoints(extent, holes, seed), kSteps, [&](int64_t point, const Step& s) {
    if (s.x == 0 || s.y == 0) return true;
    // The cell's least corner, and whether its diagonal goes from there.
    const int64_t cell = point - (s.x < 0 ? 1 : 0) - (s.y < 0 ? width : 0);
    return falls.Chance(500, cell) == (s.x == s.y);
  });
}

Pattern TetrahedronMesh(const Extent& extent, int holes, uint64_t seed) {
  // Kuhn's tetrahedra have the edges from a corner towards all of which no coordinate is less.
  std::array<Step, 14> steps;
  size_t count = 0;
  for (int bits = 1; bits < 8; ++bits) {
    const Step step{bits & 1, bits >> 1 & 1, bits >> 2};
    steps[count++] = step;
    steps[count++] = {-step.x, -step.y, -step.z};
  }
  return Mesh(extent, NumberPoints(extent, holes, seed), steps,
              [](int64_t, const Step&) { return true; });
}

Pattern WithUnknowns(const Pattern& nodes, int64_t unknowns) {
  Pattern pattern{nodes.rows * unknowns, nodes.cols * unknowns, {0}, {}};
  pattern.row_offsets.reserve(pattern.rows + 1);
  pattern.column_indices.reserve(nodes.nnz() * unknowns * unknowns);
  for (int64_t row = 0; row < pattern.rows; ++row) {
    const int64_t node = row / unknowns;
    for (int64_t p = nodes.row_offsets[node]; p < nodes.row_offsets[node + 1]; ++p) {
      for (int64_t i = 0; i < unknowns; ++i) {
        pattern.column_indices.push_back(
            static_cast<int32_t>(nodes.column_indices[p] * unknowns + i));
      }
    }
    pattern.row_offsets.push_back(pattern.nnz());
  }
  return pattern;
}

}  // namespace sparsed::corpus
