#include "tests/bench/gpu/generated.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

namespace sparsed::test {
namespace {

using Edge = std::pair<int32_t, int32_t>;

/// Random numbers by position, so that threads need not share a state: splitmix64.
class Dice {
 public:
  explicit Dice(uint64_t seed) : seed_(Mix(seed)) {}
  /// Uniform in [0, 1).
  double Unit(uint64_t position) const {
    return static_cast<double>(Mix(seed_ + position * 0x9e3779b97f4a7c15) >> 11) * 0x1p-53;
  }
  int32_t Below(int64_t n, uint64_t position) const {
    return static_cast<int32_t>(Unit(position) * static_cast<double>(n));
  }

 private:
  static uint64_t Mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }
  uint64_t seed_;
};

/// Sorts the rows, drops duplicates and closes the gaps. `row_begin` has where each row's columns
/// begin and, at its end, where the last one's end.
Pattern Compact(int64_t rows, int64_t cols, const std::vector<int64_t>& row_begin,
                std::vector<int32_t>& columns, std::vector<int64_t> row_lengths) {
#pragma omp parallel for schedule(dynamic, 1024)
  for (int64_t row = 0; row < rows; ++row) {
    const auto begin = columns.begin() + row_begin[row];
    const auto end = begin + row_lengths[row];
    std::sort(begin, end);
    row_lengths[row] = std::unique(begin, end) - begin;
  }
  Pattern pattern{rows, cols, std::vector<int64_t>(rows + 1, 0), {}};
  std::partial_sum(row_lengths.begin(), row_lengths.end(), pattern.row_offsets.begin() + 1);
  pattern.column_indices.resize(pattern.row_offsets.back());
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    std::copy_n(columns.begin() + row_begin[row], row_lengths[row],
                pattern.column_indices.begin() + pattern.row_offsets[row]);
  }
  return pattern;
}

/// Rows of at most `most` columns; `fill(row, columns)` writes them, in any order, and returns how
/// many.
template <typename Fill>
Pattern FromRows(int64_t rows, int64_t cols, int64_t most, Fill fill) {
  std::vector<int64_t> row_begin(rows + 1), row_lengths(rows);
  std::vector<int32_t> columns(rows * most);
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    row_begin[row + 1] = (row + 1) * most;
    row_lengths[row] = fill(row, columns.data() + row * most);
  }
  return Compact(rows, cols, row_begin, columns, std::move(row_lengths));
}

/// `count` entries, each `edge(i)`; duplicates merged.
template <typename Draw>
Pattern FromEdges(int64_t rows, int64_t cols, int64_t count, Draw edge) {
  std::vector<Edge> edges(count);
  std::vector<int64_t> row_lengths(rows, 0);
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < count; ++i) {
    edges[i] = edge(i);
#pragma omp atomic
    ++row_lengths[edges[i].first];
  }
  std::vector<int64_t> row_begin(rows + 1, 0);
  std::partial_sum(row_lengths.begin(), row_lengths.end(), row_begin.begin() + 1);
  std::vector<int64_t> next(row_begin.begin(), row_begin.end() - 1);
  std::vector<int32_t> columns(count);
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < count; ++i) {
    int64_t slot;
#pragma omp atomic capture
    slot = next[edges[i].first]++;
    columns[slot] = edges[i].second;
  }
  return Compact(rows, cols, row_begin, columns, std::move(row_lengths));
}

Pattern WideBand(int64_t rows, int64_t half_bandwidth) {
  return FromRows(rows, rows, 2 * half_bandwidth + 1, [=](int64_t row, int32_t* columns) {
    const int64_t begin = std::max<int64_t>(row - half_bandwidth, 0);
    const int64_t end = std::min(row + half_bandwidth + 1, rows);
    std::iota(columns, columns + (end - begin), static_cast<int32_t>(begin));
    return end - begin;
  });
}

/// A band with its rows and columns in another order, the same for both.
Pattern ShuffledBand(int64_t rows, int64_t half_bandwidth, uint64_t seed) {
  const std::vector<int32_t> place = RandomOrder(rows, seed);
  std::vector<int32_t> from(rows);
  for (int64_t i = 0; i < rows; ++i) from[place[i]] = static_cast<int32_t>(i);
  return FromRows(rows, rows, 2 * half_bandwidth + 1, [&](int64_t row, int32_t* columns) {
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

/// Each point's neighbours one step away along an axis; `box`: along several axes at once too.
Pattern Grid(int64_t size, int dimensions, bool box) {
  const int64_t depth = dimensions == 3 ? size : 1;
  const auto fill = [=](int64_t row, int32_t* columns) {
    const int64_t x = row % size, y = row / size % size, z = row / size / size;
    int64_t count = 0;
    for (int64_t dz = -1; dz <= 1; ++dz) {
      for (int64_t dy = -1; dy <= 1; ++dy) {
        for (int64_t dx = -1; dx <= 1; ++dx) {
          if (!box && std::abs(dx) + std::abs(dy) + std::abs(dz) > 1) continue;
          if (x + dx < 0 || x + dx >= size || y + dy < 0 || y + dy >= size || z + dz < 0 ||
              z + dz >= depth) {
            continue;
          }
          columns[count++] = static_cast<int32_t>(((z + dz) * size + y + dy) * size + x + dx);
        }
      }
    }
    return count;
  };
  return FromRows(size * size * depth, size * size * depth, 9, fill);
}

/// Groups of 16 rows that share 32 random columns, each entry with probability 0.1 replaced
/// by a random column; rows shuffled.
Pattern ShuffledGroups(int64_t rows, uint64_t seed) {
  constexpr int64_t kGroup = 16, kShared = 32;
  const std::vector<int32_t> order = RandomOrder(rows, seed);
  const Dice shared(seed + 1), replaced(seed + 2), other(seed + 3);
  return FromRows(rows, rows, kShared, [&](int64_t row, int32_t* columns) {
    for (int64_t i = 0; i < kShared; ++i) {
      const int64_t entry = row * kShared + i;
      columns[i] = replaced.Unit(entry) < 0.1
                       ? other.Below(rows, entry)
                       : shared.Below(rows, order[row] / kGroup * kShared + i);
    }
    return kShared;
  });
}

/// `row_nnz` distinct columns in every row.
Pattern UniformRows(int64_t rows, int64_t cols, int64_t row_nnz, uint64_t seed) {
  const Dice dice(seed);
  return FromRows(rows, cols, row_nnz, [&](int64_t row, int32_t* columns) {
    uint64_t position = static_cast<uint64_t>(row) << 20;
    for (int64_t have = 0; have < row_nnz;) {
      while (have < row_nnz) columns[have++] = dice.Below(cols, position++);
      std::sort(columns, columns + have);
      have = std::unique(columns, columns + have) - columns;
    }
    return row_nnz;
  });
}

/// `runs` runs of `length` neighbouring columns in every row, at random multiples of `length`;
/// where two of them meet, one.
Pattern RandomRuns(int64_t rows, int64_t cols, int64_t runs, int64_t length, uint64_t seed) {
  const Dice dice(seed);
  return FromRows(rows, cols, runs * length, [&](int64_t row, int32_t* columns) {
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
  return FromRows(size, size, size / kPanel * count, [&](int64_t row, int32_t* columns) {
    const int64_t row_nnz = size / kPanel * count;
    for (int64_t i = 0; i < row_nnz; ++i) {
      columns[i] =
          panels.column_indices[row * row_nnz + i] + static_cast<int32_t>(i / count * kPanel);
    }
    return row_nnz;
  });
}

/// Every `step`-th row has `row_nnz` random columns, the others none.
Pattern SparseRows(int64_t rows, int64_t step, int64_t row_nnz, uint64_t seed) {
  const Pattern stored = UniformRows(rows / step, rows, row_nnz, seed);
  Pattern pattern{rows, rows, std::vector<int64_t>(rows + 1), stored.column_indices};
  for (int64_t row = 0; row <= rows; ++row) {
    pattern.row_offsets[row] = stored.row_offsets[std::min(row / step, stored.rows)];
  }
  return pattern;
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
  if (name == "band16") return WideBand(500'000, 16);
  if (name == "band200k") return WideBand(200'000, 15);
  if (name == "bperm") return ShuffledGroups(262'144, 21);
  if (name == "bperm64k") return ShuffledGroups(65'536, 27);
  if (name == "bperm1m") return ShuffledGroups(1'000'000, 28);
  if (name == "cl16") return ChungLu(500'000, 8'000'000, 2.1, 22);
  if (name == "dense400") return UniformRows(16'384, 16'384, 400, 23);
  if (name == "dense4k") return WideBand(4096, 4096);
  if (name == "hyper16") return SparseRows(1 << 21, 16, 40, 28);
  if (name == "p2d5") return Grid(1024, 2, false);
  if (name == "p2d9") return Grid(1024, 2, true);
  if (name == "p3d7") return Grid(101, 3, false);
  if (name == "rmat16") return Graph500(16, 8, 29);
  if (name == "rmat18") return Graph500(18, 16, 24);
  if (name == "rmat20") return Graph500(20, 16, 25);
  if (name == "runs32") return RandomRuns(200'000, 200'000, 2, 32, 29);
  if (name == "thin4k") return ThinPanels(4096, 8, 30);
  if (name == "uni100k") return UniformRows(100'000, 100'000, 16, 30);
  if (name == "uni16") return UniformRows(500'000, 500'000, 16, 26);
  if (const std::optional<int64_t> half = HalfBandwidth(name)) {
    return name.back() == 'r' ? ShuffledBand(20'000, *half, 31) : WideBand(20'000, *half);
  }
  return std::nullopt;
}

}  // namespace sparsed::test
