// Graphs as the fields generate them. All are the same for the same arguments on every machine:
// integer arithmetic, and random numbers of our own. Shares are in thousandths.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/corpus/pattern.h"

namespace sparsed::corpus {

/// R-MAT's quadrants; the fourth is what is left of a thousand.
struct Quadrants {
  int a = 570, b = 190, c = 190;
};
struct RmatOptions {
  Quadrants quadrants = {};
  bool shuffled = true;    ///< vertices are numbered at random
  bool symmetric = false;  ///< each edge in both directions
};
/// 2^scale vertices, `edges` edges drawn, duplicates merged.
Pattern Rmat(int scale, int64_t edges, const RmatOptions& options, uint64_t seed);

/// Barabasi and Albert: each vertex brings edges to `attached` earlier ones, chosen in proportion
/// to their degrees. Symmetric, numbered by age.
Pattern BarabasiAlbert(int64_t vertices, int64_t attached, uint64_t seed);

struct BlockOptions {
  int64_t blocks = 16;
  int inside = 900;       ///< share of a vertex's edges that stay in its block
  bool uneven = false;    ///< block i is i + 1 times as large as the first
  bool shuffled = false;  ///< vertices are numbered at random, so that blocks do not show
};
/// Stochastic blocks: `degree` edges a vertex are drawn, each in both directions.
Pattern StochasticBlocks(int64_t vertices, int64_t degree, const BlockOptions& options,
                         uint64_t seed);

/// Watts and Strogatz: a ring where each vertex knows the `neighbours` / 2 next ones on each side;
/// the share `rewired` of the edges goes anywhere instead. Symmetric.
Pattern SmallWorld(int64_t vertices, int64_t neighbours, int rewired, uint64_t seed);

/// How fast popularity falls with rank: rank^(-1/2), rank^(-3/4), rank^-1.
enum class Falloff : uint8_t { kHalf, kThreeQuarters, kOne };

/// Draws ranks in [0, count) by popularity.
class Popularity {
 public:
  Popularity(int64_t count, Falloff falloff);
  /// `random`: 64 uniform bits.
  int32_t Draw(uint64_t random) const;

 private:
  std::vector<uint64_t> sums_;  ///< of the weights up to each rank
};

/// Chung and Lu: `edges` draws of row and column, each by popularity; ids at random.
Pattern ChungLu(int64_t vertices, int64_t edges, Falloff falloff, uint64_t seed);

/// Streets: a grid of crossings of whose streets the share `kept` is there, and of `diagonals` in
/// its cells. Symmetric, without a diagonal of the matrix.
Pattern RoadGrid(int64_t width, int64_t height, int kept, int diagonals, uint64_t seed);

/// Points in a square, numbered cell by cell, that are joined if they are near: about `degree`
/// neighbours each. Symmetric.
Pattern RandomGeometric(int64_t points, int64_t degree, uint64_t seed);

}  // namespace sparsed::corpus
