#include "tools/corpus/graphs.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "tools/corpus/assemble.h"
#include "tools/corpus/integers.h"
#include "tools/corpus/random.h"

namespace sparsed::corpus {
namespace {

/// Each of the edges in both directions.
Pattern Undirected(int64_t vertices, const std::vector<Edge>& edges) {
  const auto count = static_cast<int64_t>(edges.size());
  return FromEdges(vertices, vertices, 2 * count, [&](int64_t i) {
    return i < count ? edges[i] : Edge{edges[i - count].second, edges[i - count].first};
  });
}

}  // namespace

Pattern Rmat(int scale, int64_t edges, const RmatOptions& options, uint64_t seed) {
  const int64_t rows = int64_t{1} << scale;
  Random random(seed);
  std::vector<int32_t> id;
  if (options.shuffled) id = Shuffled(rows, random);
  const Dice dice(seed + 1);
  const auto [a, b, c] = options.quadrants;
  const auto draw = [&](int64_t i) {
    int64_t row = 0, column = 0;
    for (int bit = 0; bit < scale; ++bit) {
      const int u = dice.Below(1000, i * scale + bit);
      row = 2 * row + (u >= a + b ? 1 : 0);
      column = 2 * column + ((u >= a && u < a + b) || u >= a + b + c ? 1 : 0);
    }
    return options.shuffled ? Edge{id[row], id[column]}
                            : Edge{static_cast<int32_t>(row), static_cast<int32_t>(column)};
  };
  if (!options.symmetric) return FromEdges(rows, rows, edges, draw);
  return FromEdges(rows, rows, 2 * edges, [&](int64_t i) {
    const Edge edge = draw(i < edges ? i : i - edges);
    return i < edges ? edge : Edge{edge.second, edge.first};
  });
}

Pattern BarabasiAlbert(int64_t vertices, int64_t attached, uint64_t seed) {
  Random random(seed);
  std::vector<Edge> edges;
  edges.reserve(vertices * attached);
  for (int64_t vertex = 1; vertex < vertices; ++vertex) {
    // Of the ends of all edges each vertex has as many as its degree.
    const auto ends = static_cast<int64_t>(2 * edges.size());
    for (int64_t i = 0; i < std::min(attached, vertex); ++i) {
      const int64_t end = ends == 0 ? 0 : random.Below(ends);
      const Edge from = ends == 0 ? Edge{0, 0} : edges[end / 2];
      edges.emplace_back(static_cast<int32_t>(vertex), end % 2 == 0 ? from.first : from.second);
    }
  }
  return Undirected(vertices, edges);
}

Pattern StochasticBlocks(int64_t vertices, int64_t degree, const BlockOptions& options,
                         uint64_t seed) {
  const int64_t blocks = std::min(options.blocks, vertices);
  std::vector<int64_t> begin(blocks + 1);
  for (int64_t i = 0; i <= blocks; ++i) {
    begin[i] = options.uneven ? vertices * (i * (i + 1) / 2) / (blocks * (blocks + 1) / 2)
                              : vertices * i / blocks;
  }
  Random random(seed);
  std::vector<int32_t> id(vertices);
  std::iota(id.begin(), id.end(), 0);
  if (options.shuffled) id = Shuffled(vertices, random);
  const Dice inside(seed + 1), column(seed + 2);
  const int64_t count = vertices * degree / 2;
  return FromEdges(vertices, vertices, 2 * count, [&](int64_t i) {
    const int64_t edge = i % count;
    const int64_t from = edge % vertices;
    const auto block = std::upper_bound(begin.begin(), begin.end(), from);
    const int64_t first = *(block - 1), size = *block - first;
    const int64_t to = inside.Chance(options.inside, edge) ? first + column.Below(size, edge)
                                                           : column.Below(vertices, edge);
    return i < count ? Edge{id[from], id[to]} : Edge{id[to], id[from]};
  });
}

Pattern SmallWorld(int64_t vertices, int64_t neighbours, int rewired, uint64_t seed) {
  const int64_t half = neighbours / 2, count = vertices * half;
  const Dice rewires(seed), anywhere(seed + 1);
  return FromEdges(vertices, vertices, 2 * count, [&](int64_t i) {
    const int64_t edge = i % count;
    const auto from = static_cast<int32_t>(edge / half);
    const auto to = rewires.Chance(rewired, edge)
                        ? anywhere.Below(vertices, edge)
                        : static_cast<int32_t>((from + 1 + edge % half) % vertices);
    return i < count ? Edge{from, to} : Edge{to, from};
  });
}

Popularity::Popularity(int64_t count, Falloff falloff) : sums_(count) {
  // The most popular would meet all others if its weight was not bounded.
  constexpr uint64_t kShift = 8;
  uint64_t sum = 0;
  for (int64_t rank = 0; rank < count; ++rank) {
    const uint64_t place = static_cast<uint64_t>(rank) + kShift;
    uint64_t weight = (uint64_t{1} << 32) / place;
    if (falloff == Falloff::kHalf) weight = SquareRoot((uint64_t{1} << 62) / place);
    if (falloff == Falloff::kThreeQuarters) {
      const uint64_t scaled = (uint64_t{1} << 42) / place;
      weight = SquareRoot(scaled * SquareRoot(scaled));
    }
    sums_[rank] = sum += weight;
  }
}

int32_t Popularity::Draw(uint64_t random) const {
  const auto found = std::upper_bound(sums_.begin(), sums_.end(), random % sums_.back());
  return static_cast<int32_t>(found - sums_.begin());
}

Pattern ChungLu(int64_t vertices, int64_t edges, Falloff falloff, uint64_t seed) {
  const Popularity popularity(vertices, falloff);
  Random random(seed);
  const std::vector<int32_t> id = Shuffled(vertices, random);
  const Dice dice(seed + 1);
  return FromEdges(vertices, vertices, edges, [&](int64_t i) {
    return Edge{id[popularity.Draw(dice.Bits(2 * i))], id[popularity.Draw(dice.Bits(2 * i + 1))]};
  });
}

Pattern RoadGrid(int64_t width, int64_t height, int kept, int diagonals, uint64_t seed) {
  const Dice streets(seed), shortcuts(seed + 1);
  // A street belongs to its first crossing; the four kinds are to the right, down, and diagonal.
  const auto is_there = [&](int64_t crossing, int kind) {
    return kind < 2 ? streets.Chance(kept, 2 * crossing + kind)
                    : shortcuts.Chance(diagonals, 2 * crossing + kind - 2);
  };
  constexpr int kRight[] = {1, 0, 1, -1}, kDown[] = {0, 1, 1, 1};
  return FillRows(width * height, width * height, 8, [&](int64_t row, int32_t* columns) {
    const int64_t x = row % width, y = row / width;
    int64_t count = 0;
    for (int kind = 0; kind < 4; ++kind) {
      for (const int sign : {1, -1}) {
        const int64_t to_x = x + sign * kRight[kind], to_y = y + sign * kDown[kind];
        if (to_x < 0 || to_x >= width || to_y < 0 || to_y >= height) continue;
        const int64_t to = to_y * width + to_x;
        if (is_there(std::min(row, to), kind)) columns[count++] = static_cast<int32_t>(to);
      }
    }
    return count;
  });
}

Pattern RandomGeometric(int64_t points, int64_t degree, uint64_t seed) {
  // A circle as wide as a cell is long has pi times a cell's points.
  constexpr int64_t kSide = 1 << 16;
  const auto cells = std::max<int64_t>(
      1, static_cast<int64_t>(SquareRoot(static_cast<uint64_t>(22 * points / (7 * degree)))));
  struct Point {
    int64_t cell, x, y;
  };
  const Dice dice(seed);
  std::vector<Point> all(points);
  for (int64_t i = 0; i < points; ++i) {
    const int64_t x = dice.Below(cells * kSide, 2 * i), y = dice.Below(cells * kSide, 2 * i + 1);
    all[i] = {y / kSide * cells + x / kSide, x, y};
  }
  std::ranges::sort(all, {}, [](const Point& p) { return std::tuple(p.cell, p.y, p.x); });
  std::vector<int64_t> begin(cells * cells + 1, 0);
  for (const Point& point : all) ++begin[point.cell + 1];
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<Edge> edges;
  for (int64_t i = 0; i < points; ++i) {
    const int64_t cell_x = all[i].cell % cells, cell_y = all[i].cell / cells;
    for (int64_t y = std::max<int64_t>(cell_y - 1, 0); y <= std::min(cell_y + 1, cells - 1); ++y) {
      const int64_t first = y * cells + std::max<int64_t>(cell_x - 1, 0);
      const int64_t last = y * cells + std::min(cell_x + 1, cells - 1);
      for (int64_t j = std::max(begin[first], i + 1); j < begin[last + 1]; ++j) {
        const int64_t x = all[i].x - all[j].x, v = all[i].y - all[j].y;
        if (x * x + v * v > kSide * kSide) continue;
        edges.emplace_back(static_cast<int32_t>(i), static_cast<int32_t>(j));
      }
    }
  }
  return Undirected(points, edges);
}

}  // namespace sparsed::corpus
