#include "tools/corpus/rectangles.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tools/corpus/assemble.h"
#include "tools/corpus/random.h"

namespace sparsed::corpus {

Pattern Ratings(const RatingShape& shape, uint64_t seed) {
  const Popularity users(shape.users, shape.by_user), items(shape.items, shape.by_item);
  Random random(seed);
  const std::vector<int32_t> user = Shuffled(shape.users, random);
  const std::vector<int32_t> item = Shuffled(shape.items, random);
  const Dice dice(seed + 1);
  return FromEdges(shape.users, shape.items, shape.ratings, [&](int64_t i) {
    return Edge{user[users.Draw(dice.Bits(2 * i))], item[items.Draw(dice.Bits(2 * i + 1))]};
  });
}

Pattern RandomWeights(int64_t rows, int64_t cols, int kept, bool uneven, uint64_t seed) {
  const Dice dice(seed), of_row(seed + 1);
  return FillRows(rows, cols, cols, [&](int64_t row, int32_t* columns) {
    // From a quarter to seven quarters.
    const int share = uneven ? kept * (250 + of_row.Below(1501, row)) / 1000 : kept;
    int64_t count = 0;
    for (int64_t column = 0; column < cols; ++column) {
      if (dice.Chance(share, row * cols + column)) columns[count++] = static_cast<int32_t>(column);
    }
    return count;
  });
}

Pattern BlockWeights(int64_t rows, int64_t cols, int64_t block_rows, int64_t block_cols, int kept,
                     uint64_t seed) {
  const Dice dice(seed);
  const int64_t across = (cols + block_cols - 1) / block_cols;
  return FillRows(rows, cols, cols, [&](int64_t row, int32_t* columns) {
    int64_t count = 0;
    for (int64_t block = 0; block < across; ++block) {
      if (!dice.Chance(kept, row / block_rows * across + block)) continue;
      const int64_t end = std::min((block + 1) * block_cols, cols);
      for (int64_t column = block * block_cols; column < end; ++column) {
        columns[count++] = static_cast<int32_t>(column);
      }
    }
    return count;
  });
}

Pattern GroupWeights(int64_t rows, int64_t cols, int64_t group, int64_t kept, uint64_t seed) {
  const Dice dice(seed);
  return FillRows(rows, cols, cols, [&](int64_t row, int32_t* columns) {
    int64_t count = 0;
    for (int64_t begin = 0; begin < cols; begin += group) {
      const int64_t end = std::min(begin + group, cols);
      int64_t wanted = kept;
      for (int64_t column = begin; column < end && wanted > 0; ++column) {
        // Selection sampling (Knuth, algorithm S): each subset is as likely.
        if (dice.Below(end - column, row * cols + column) >= wanted) continue;
        columns[count++] = static_cast<int32_t>(column);
        --wanted;
      }
    }
    return count;
  });
}

Pattern UniformRows(int64_t rows, int64_t cols, int64_t row_nnz, uint64_t seed) {
  const Dice dice(seed);
  return FillRows(rows, cols, row_nnz, [&](int64_t row, int32_t* columns) {
    uint64_t position = static_cast<uint64_t>(row) << 20;
    for (int64_t have = 0; have < row_nnz;) {
      while (have < row_nnz) columns[have++] = dice.Below(cols, position++);
      std::sort(columns, columns + have);
      have = std::unique(columns, columns + have) - columns;
    }
    return row_nnz;
  });
}

Pattern FewRows(int64_t rows, int64_t step, int64_t row_nnz, uint64_t seed) {
  const Pattern stored = UniformRows(rows / step, rows, row_nnz, seed);
  Pattern pattern{rows, rows, std::vector<int64_t>(rows + 1), stored.column_indices};
  for (int64_t row = 0; row <= rows; ++row) {
    pattern.row_offsets[row] = stored.row_offsets[std::min(row / step, stored.rows)];
  }
  return pattern;
}

Pattern Groups(const std::vector<int32_t>& order, int64_t shared, uint64_t seed) {
  constexpr int64_t kGroup = 16;
  const auto rows = static_cast<int64_t>(order.size());
  const Dice of_group(seed + 1), replaced(seed + 2), other(seed + 3);
  return FillRows(rows, rows, shared, [&](int64_t row, int32_t* columns) {
    for (int64_t i = 0; i < shared; ++i) {
      const int64_t entry = row * shared + i;
      columns[i] = replaced.Unit(entry) < 0.1
                       ? other.Below(rows, entry)
                       : of_group.Below(rows, order[row] / kGroup * shared + i);
    }
    return shared;
  });
}

}  // namespace sparsed::corpus
