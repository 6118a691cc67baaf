#include "tests/bench/gpu/generated.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "tools/corpus/assemble.h"
#include "tools/corpus/meshes.h"
#include "tools/corpus/random.h"
#include "tools/corpus/rectangles.h"

namespace sparsed::test {
namespace {

using corpus::Dice;
using corpus::Edge;
using corpus::FewRows;
using corpus::FillRows;
using corpus::FromEdges;
using corpus::UniformRows;

/// A band with its rows and columns in another order, the same for both.
Pattern ShuffledBand(int64_t rows, int64_t half_bandwidth, uint64_t seed) {
  const std::vector<int32_t> place = RandomOrder(rows, seed);
  std::vector<int32_t> from(rows);
  for (int64_t i = 0; i < rows; ++i) from[place[i]] = static_cast<int32_t>(i);
  return FillRows(rows, rows, 2 * half_bandwidth + 1, [&](int64_t row, int32_t* columns) {
    const int64_t begin = std::max<int64_t>(from[row] - half_bandwidth, 0);
    const int64_t end = std::min(from[row] + half_bandwidth + 1, rows);
    for (int64_t column = begin; column < end; ++column) columns[column - begin] = place[column];
    return end - begin;
  });
}

/// Of the bands bw15, bw15r, bw31, ...: the half bandwidth, if it is one of them.
std::optional<int64_t> HalfBandwidth(const std::string& name) {
  for (int64_t half = 15; half <= 111; half += 16) {
    if (name == "bw" + std::to_string(half) || name == "bw" + std::to_string(half) + "r") {
      return half;
    }
  }
  return std::nullopt;
}

/// A square or a cube.
Pattern Grid(int64_t size, int dimensions, corpus::Neighbours neighbours) {
  return corpus::Stencil({size, size, dimensions == 3 ? size : 1}, neighbours);
}

Pattern ShuffledGroups(int64_t rows, uint64_t seed) {
  return corpus::Groups(RandomOrder(rows, seed), 32, seed);
}

/// `runs` runs of `length` neighbouring columns in every row, at random multiples of `length`;
/// where two of them meet, one.
Pattern RandomRuns(int64_t rows, int64_t cols, int64_t runs, int64_t length, uint64_t seed) {
  const Dice dice(seed);
  return FillRows(rows, cols, runs * length, [&](int64_t row, int32_t* columns) {
    for (int64_t i = 0; i < runs; ++i) {
      const int64_t begin = dice.Below(cols / length, row * runs + i) * length;
      std::iota(columns + i * length, columns + (i + 1) * length, static_cast<int32_t>(begin));
    }
    return runs * length;
  });
}

/// `count` distinct columns of every 256 in every row.
Pattern ThinPanels(int64_t size, int64_t count, uint64_t seed) {
  constexpr int64_t kPanel = 256;
  const Pattern panels = UniformRows(size * size / kPanel, kPanel, count, seed);
  return FillRows(size, size, size / kPanel * count, [&](int64_t row, int32_t* columns) {
    const int64_t row_nnz = size / kPanel * count;
    for (int64_t i = 0; i < row_nnz; ++i) {
      columns[i] =
          panels.column_indices[row * row_nnz + i] + static_cast<int32_t>(i / count * kPanel);
    }
    return row_nnz;
  });
}

Pattern Graph500(int scale, int64_t edge_factor, uint64_t seed) {
  constexpr double kA = 0.57, kB = 0.19, kC = 0.19;
  const int64_t rows = int64_t{1} << scale;
  const std::vector<int32_t> id = RandomOrder(rows, seed);
  const Dice dice(seed + 1);
  return FromEdges(rows, rows, edge_factor * rows, [&](int64_t i) {
    int64_t row = 0, column = 0;
    for (int bit = 0; bit < scale; ++bit) {
      const double u = dice.Unit(i * scale + bit);
      row = 2 * row + (u >= kA + kB);
      column = 2 * column + ((u >= kA && u < kA + kB) || u >= kA + kB + kC);
    }
    return Edge{id[row], id[column]};
  });
}

/// Row and column are drawn alike, with probability proportional to the expected degree, which is
/// (i + 10)^(-1 / (exponent - 1)) for vertex i: without the 10, one vertex would meet most others.
/// The distribution function inverts in closed form.
Pattern ChungLu(int64_t rows, int64_t edges, double exponent, uint64_t seed) {
  constexpr double kShift = 10;
  const double power = (exponent - 2) / (exponent - 1);
  const double begin = std::pow(kShift, power);
  const double end = std::pow(static_cast<double>(rows) + kShift, power);
  const std::vector<int32_t> id = RandomOrder(rows, seed);
  const Dice dice(seed + 1);
  const auto draw = [&](uint64_t position) {
    const double u = begin + dice.Unit(position) * (end - begin);
    const auto vertex = static_cast<int64_t>(std::pow(u, 1 / power) - kShift);
    return id[std::clamp<int64_t>(vertex, 0, rows - 1)];
  };
  return FromEdges(rows, rows, edges, [&](int64_t i) {
    return Edge{draw(2 * i), draw(2 * i + 1)};
  });
}

}  // namespace

std::vector<std::string> GeneratedNames() {
  return {"band16",  "band200k", "bperm",  "bperm64k", "bperm1m", "bw15",   "bw15r",
          "bw31",    "bw31r",    "bw47",   "bw47r",    "bw63",    "bw63r",  "bw79",
          "bw79r",   "bw95",     "bw95r",  "bw111",    "bw111r",  "cl16",   "dense400",
          "dense4k", "hyper16",  "p2d5",   "p2d9",     "p3d7",    "rmat16", "rmat18",
          "rmat20",  "runs32",   "thin4k", "uni100k",  "uni16"};
}

std::optional<Pattern> Generated(const std::string& name) {
  if (name == "band16") return Band(500'000, 16);
  if (name == "band200k") return Band(200'000, 15);
  if (name == "bperm") return ShuffledGroups(262'144, 21);
  if (name == "bperm64k") return ShuffledGroups(65'536, 27);
  if (name == "bperm1m") return ShuffledGroups(1'000'000, 28);
  if (name == "cl16") return ChungLu(500'000, 8'000'000, 2.1, 22);
  if (name == "dense400") return UniformRows(16'384, 16'384, 400, 23);
  if (name == "dense4k") return Band(4096, 4096);
  if (name == "hyper16") return FewRows(1 << 21, 16, 40, 28);
  if (name == "p2d5") return Grid(1024, 2, corpus::Neighbours::kStar);
  if (name == "p2d9") return Grid(1024, 2, corpus::Neighbours::kBox);
  if (name == "p3d7") return Grid(101, 3, corpus::Neighbours::kStar);
  if (name == "rmat16") return Graph500(16, 8, 29);
  if (name == "rmat18") return Graph500(18, 16, 24);
  if (name == "rmat20") return Graph500(20, 16, 25);
  if (name == "runs32") return RandomRuns(200'000, 200'000, 2, 32, 29);
  if (name == "thin4k") return ThinPanels(4096, 8, 30);
  if (name == "uni100k") return UniformRows(100'000, 100'000, 16, 30);
  if (name == "uni16") return UniformRows(500'000, 500'000, 16, 26);
  if (const std::optional<int64_t> half = HalfBandwidth(name)) {
    return name.back() == 'r' ? ShuffledBand(20'000, *half, 31) : Band(20'000, *half);
  }
  return std::nullopt;
}

}  // namespace sparsed::test
