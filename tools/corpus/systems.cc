#include "tools/corpus/systems.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "tools/corpus/assemble.h"
#include "tools/corpus/random.h"

namespace sparsed::corpus {

Pattern Band(int64_t rows, int64_t half_bandwidth) {
  return FillRows(rows, rows, 2 * half_bandwidth + 1, [=](int64_t row, int32_t* columns) {
    const int64_t begin = std::max<int64_t>(row - half_bandwidth, 0);
    const int64_t end = std::min(row + half_bandwidth + 1, rows);
    std::iota(columns, columns + (end - begin), static_cast<int32_t>(begin));
    return end - begin;
  });
}

Pattern ThinBand(int64_t rows, int64_t half_bandwidth, int kept, uint64_t seed) {
  const Dice dice(seed);
  const int64_t width = 2 * half_bandwidth + 1;
  return FillRows(rows, rows, width, [&](int64_t row, int32_t* columns) {
    int64_t count = 0;
    for (int64_t i = 0; i < width; ++i) {
      const int64_t column = row - half_bandwidth + i;
      if (column < 0 || column >= rows) continue;
      if (column != row && !dice.Chance(kept, row * width + i)) continue;
      columns[count++] = static_cast<int32_t>(column);
    }
    return count;
  });
}

Pattern Diagonals(int64_t rows, int64_t count, int64_t reach, uint64_t seed) {
  Random random(seed);
  std::vector<int64_t> offsets = {0};
  while (static_cast<int64_t>(offsets.size()) < std::min(count, 2 * reach + 1)) {
    const int64_t offset = random.Below(2 * reach + 1) - reach;
    if (std::ranges::count(offsets, offset) == 0) offsets.push_back(offset);
  }
  const auto most = static_cast<int64_t>(offsets.size());
  return FillRows(rows, rows, most, [&](int64_t row, int32_t* columns) {
    int64_t stored = 0;
    for (const int64_t offset : offsets) {
      if (row + offset < 0 || row + offset >= rows) continue;
      columns[stored++] = static_cast<int32_t>(row + offset);
    }
    return stored;
  });
}

Pattern PowerGrid(int64_t buses, int chords, uint64_t seed) {
  constexpr int64_t kNear = 32, kFar = 4096;
  constexpr int kLong = 30;  // of a thousand wires
  const Dice dice(seed);
  const auto wire = [&](int64_t bus, uint64_t position) {
    const int64_t reach = dice.Chance(kLong, 4 * bus + position) ? kFar : kNear;
    return bus - 1 - dice.Below(std::min(bus, reach), 4 * bus + position + 1);
  };
  std::vector<Edge> edges;
  for (int64_t bus = 0; bus < buses; ++bus) {
    edges.emplace_back(bus, bus);
    if (bus == 0) continue;
    const auto join = [&](int64_t other) {
      edges.emplace_back(bus, other);
      edges.emplace_back(other, bus);
    };
    join(wire(bus, 0));
    if (dice.Chance(chords, ~static_cast<uint64_t>(bus))) join(wire(bus, 2));
  }
  return FromEdges(buses, buses, static_cast<int64_t>(edges.size()),
                   [&](int64_t i) { return edges[i]; });
}

Pattern Circuit(int64_t nodes, int64_t degree, int64_t rails, int on_rails, uint64_t seed) {
  constexpr int64_t kNear = 40;
  constexpr int kLocal = 850;  // of a thousand entries
  const Dice dice(seed), anywhere(seed + 1), on(seed + 2);
  std::vector<Edge> edges;
  for (int64_t node = 0; node < nodes; ++node) {
    edges.emplace_back(node, node);
    for (int64_t i = 0; i < degree - 1; ++i) {
      const int64_t position = node * degree + i;
      const int64_t near = node - kNear + anywhere.Below(2 * kNear + 1, position);
      edges.emplace_back(node, dice.Chance(kLocal, position)
                                   ? std::clamp<int64_t>(near, 0, nodes - 1)
                                   : anywhere.Below(nodes, position));
    }
    for (int64_t rail = 0; rail < rails; ++rail) {
      if (!on.Chance(on_rails, node * rails + rail)) continue;
      const int64_t place = rail * nodes / rails;
      edges.emplace_back(node, place);
      edges.emplace_back(place, node);
    }
  }
  return FromEdges(nodes, nodes, static_cast<int64_t>(edges.size()),
                   [&](int64_t i) { return edges[i]; });
}

Pattern BlockAngular(const ProgramShape& shape, int64_t linking, int linked, uint64_t seed) {
  const Dice dice(seed), links(seed + 1), which(seed + 2);
  const int64_t rows = shape.blocks * shape.block_rows + linking;
  const int64_t cols = shape.blocks * shape.block_cols;
  std::vector<Edge> edges;
  for (int64_t column = 0; column < cols; ++column) {
    const int64_t first = column / shape.block_cols * shape.block_rows;
    for (int64_t i = 0; i < shape.column_nnz; ++i) {
      edges.emplace_back(first + dice.Below(shape.block_rows, column * shape.column_nnz + i),
                         column);
    }
    if (!links.Chance(linked, column)) continue;
    edges.emplace_back(rows - linking + which.Below(linking, column), column);
  }
  return FromEdges(rows, cols, static_cast<int64_t>(edges.size()),
                   [&](int64_t i) { return edges[i]; });
}

Pattern Staircase(const ProgramShape& shape, uint64_t seed) {
  const Dice dice(seed);
  const int64_t rows = (shape.blocks + 1) * shape.block_rows;
  const int64_t cols = shape.blocks * shape.block_cols;
  const int64_t draws = 2 * shape.column_nnz;  // half of them in the next block
  return FromEdges(rows, cols, cols * draws, [&](int64_t i) {
    const int64_t column = i / draws;
    const int64_t block = column / shape.block_cols + i % 2;
    const int64_t row = block * shape.block_rows + dice.Below(shape.block_rows, i);
    return Edge{static_cast<int32_t>(row), static_cast<int32_t>(column)};
  });
}

Pattern Kkt(int64_t unknowns, int64_t constraints, int64_t row_nnz, bool regular, uint64_t seed) {
  constexpr int64_t kHalfBandwidth = 8, kReach = 512;
  constexpr int kKept = 300;
  const Pattern hessian = ThinBand(unknowns, kHalfBandwidth, kKept, seed);
  const Dice dice(seed + 1);
  const int64_t size = unknowns + constraints;
  std::vector<Edge> edges;
  edges.reserve(hessian.nnz() + constraints * (2 * row_nnz + 1));
  for (int64_t row = 0; row < unknowns; ++row) {
    for (int64_t p = hessian.row_offsets[row]; p < hessian.row_offsets[row + 1]; ++p) {
      edges.emplace_back(row, hessian.column_indices[p]);
    }
  }
  for (int64_t i = 0; i < constraints; ++i) {
    const int64_t row = unknowns + i, place = i * unknowns / constraints;
    if (regular) edges.emplace_back(row, row);
    for (int64_t j = 0; j < row_nnz; ++j) {
      const int64_t to = place - kReach / 2 + dice.Below(kReach, i * row_nnz + j);
      const int64_t column = std::clamp<int64_t>(to, 0, unknowns - 1);
      edges.emplace_back(row, column);
      edges.emplace_back(column, row);
    }
  }
  return FromEdges(size, size, static_cast<int64_t>(edges.size()),
                   [&](int64_t i) { return edges[i]; });
}

Pattern BlockTridiagonal(const StepShape& shape, uint64_t seed) {
  const Dice dice(seed);
  const int64_t rows = shape.steps * shape.block, most = 3 * shape.block;
  return FillRows(rows, rows, most, [&](int64_t row, int32_t* columns) {
    const int64_t step = row / shape.block;
    int64_t count = 0;
    for (int64_t i = 0; i < most; ++i) {
      int64_t to = step - 1 + i / shape.block;
      if (shape.periodic) to = (to + shape.steps) % shape.steps;
      if (to < 0 || to >= shape.steps) continue;
      const int64_t column = to * shape.block + i % shape.block;
      if (column != row && !dice.Chance(shape.filled, row * most + i)) continue;
      columns[count++] = static_cast<int32_t>(column);
    }
    return count;
  });
}

Pattern Arrow(const StepShape& shape, int64_t border, uint64_t seed) {
  const Dice dice(seed);
  const int64_t inner = shape.steps * shape.block, size = inner + border;
  Pattern pattern{size, size, {0}, {}};
  for (int64_t row = 0; row < size; ++row) {
    const int64_t begin = row < inner ? row / shape.block * shape.block : 0;
    const int64_t end = row < inner ? begin + shape.block : inner;
    for (int64_t column = begin; column < end; ++column) {
      if (row < inner && column != row && !dice.Chance(shape.filled, row * shape.block + column)) {
        continue;
      }
      pattern.column_indices.push_back(static_cast<int32_t>(column));
    }
    for (int64_t column = inner; column < size; ++column) {
      pattern.column_indices.push_back(static_cast<int32_t>(column));
    }
    pattern.row_offsets.push_back(pattern.nnz());
  }
  return pattern;
}

}  // namespace sparsed::corpus
