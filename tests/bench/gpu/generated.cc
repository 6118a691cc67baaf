#include "tests/bench/gpu/generated.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace sparsed::test {
namespace {

/// Each point's neighbours one step away along an axis; `box`: along several axes at once too.
Pattern Grid(int64_t size, int dimensions, bool box) {
  const int64_t depth = dimensions == 3 ? size : 1;
  Pattern pattern{size * size * depth, size * size * depth, {0}, {}};
  for (int64_t z = 0; z < depth; ++z) {
    for (int64_t y = 0; y < size; ++y) {
      for (int64_t x = 0; x < size; ++x) {
        for (int64_t dz = -1; dz <= 1; ++dz) {
          for (int64_t dy = -1; dy <= 1; ++dy) {
            for (int64_t dx = -1; dx <= 1; ++dx) {
              if (!box && std::abs(dx) + std::abs(dy) + std::abs(dz) > 1) continue;
              if (x + dx < 0 || x + dx >= size || y + dy < 0 || y + dy >= size || z + dz < 0 ||
                  z + dz >= depth) {
                continue;
              }
              pattern.column_indices.push_back(
                  static_cast<int32_t>(((z + dz) * size + y + dy) * size + x + dx));
            }
          }
        }
        pattern.row_offsets.push_back(pattern.nnz());
      }
    }
  }
  return pattern;
}

/// 16,384 groups of 16 rows that share 32 random columns, each entry with probability 0.1 replaced
/// by a random column; rows shuffled.
Pattern ShuffledGroups(uint64_t seed) {
  constexpr int64_t kRows = 262'144, kShared = 32;
  std::mt19937_64 random(seed);
  const auto any = [&] { return static_cast<int32_t>(random() % kRows); };
  const std::vector<int32_t> order = RandomOrder(kRows, seed);
  std::vector<std::vector<int32_t>> shared(kRows / 16);
  for (std::vector<int32_t>& columns : shared) {
    for (int64_t i = 0; i < kShared; ++i) columns.push_back(any());
  }
  Pattern pattern{kRows, kRows, {0}, {}};
  for (int64_t row = 0; row < kRows; ++row) {
    std::vector<int32_t> columns = shared[order[row] / 16];
    for (int32_t& column : columns) column = random() % 10 == 0 ? any() : column;
    std::sort(columns.begin(), columns.end());
    columns.erase(std::unique(columns.begin(), columns.end()), columns.end());
    pattern.column_indices.insert(pattern.column_indices.end(), columns.begin(), columns.end());
    pattern.row_offsets.push_back(pattern.nnz());
  }
  return pattern;
}

}  // namespace

std::vector<std::string> GeneratedNames() {
  return {"band16", "bperm", "cl16",   "dense400", "p2d5",
          "p2d9",   "p3d7",  "rmat18", "rmat20",   "uni16"};
}

Pattern Generated(const std::string& name) {
  if (name == "band16") return Band(500'000, 16);
  if (name == "bperm") return ShuffledGroups(21);
  if (name == "cl16") return PowerLaw(500'000, 8'000'000, 2.1, 22);
  if (name == "dense400") return Uniform(16'384, 16'384, 400, 23);
  if (name == "p2d5") return Grid(1024, 2, false);
  if (name == "p2d9") return Grid(1024, 2, true);
  if (name == "p3d7") return Grid(101, 3, false);
  if (name == "rmat18") return Rmat(18, 16, 24);
  if (name == "rmat20") return Rmat(20, 16, 25);
  if (name == "uni16") return Uniform(500'000, 500'000, 16, 26);
  std::fprintf(stderr, "there is no generated matrix %s\n", name.c_str());
  std::exit(1);
}

}  // namespace sparsed::test
