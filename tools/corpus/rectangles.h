// Matrices whose rows and columns are different things: ratings, weights of networks, rows at
// random. The same for the same arguments on every machine; shares are in thousandths.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/corpus/graphs.h"
#include "tools/corpus/pattern.h"

namespace sparsed::corpus {

struct RatingShape {
  int64_t users = 1, items = 1, ratings = 1;
  Falloff by_user = Falloff::kHalf, by_item = Falloff::kOne;
};
/// Users x items: `ratings` draws by popularity of both, duplicates merged, ids at random.
Pattern Ratings(const RatingShape& shape, uint64_t seed);

/// Weights that were pruned one by one: the share `kept` of rows x cols. `uneven`: of some rows up
/// to seven times as many as of others, as pruning by magnitude leaves them.
Pattern RandomWeights(int64_t rows, int64_t cols, int kept, bool uneven, uint64_t seed);
/// Pruned in blocks of `block_rows` x `block_cols`.
Pattern BlockWeights(int64_t rows, int64_t cols, int64_t block_rows, int64_t block_cols, int kept,
                     uint64_t seed);
/// `kept` of every `group` neighbours in a row.
Pattern GroupWeights(int64_t rows, int64_t cols, int64_t group, int64_t kept, uint64_t seed);

/// `row_nnz` distinct columns in every row, uniformly drawn; row_nnz <= cols.
Pattern UniformRows(int64_t rows, int64_t cols, int64_t row_nnz, uint64_t seed);
/// Every `step`-th row has `row_nnz` random columns, the others none.
Pattern FewRows(int64_t rows, int64_t step, int64_t row_nnz, uint64_t seed);
/// Groups of 16 rows that share `shared` random columns, each entry with probability 0.1 replaced
/// by a random column. Row r is row order[r] of rows that follow their group; square.
Pattern Groups(const std::vector<int32_t>& order, int64_t shared, uint64_t seed);

}  // namespace sparsed::corpus
