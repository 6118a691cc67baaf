// Patterns made from others: other orders, parts. The same for the same arguments on every machine.
#pragma once

#include <cstdint>

#include "tools/corpus/pattern.h"

namespace sparsed::corpus {

Pattern ShuffledRows(const Pattern& pattern, uint64_t seed);
Pattern ShuffledColumns(const Pattern& pattern, uint64_t seed);
/// Rows and columns; those of a square matrix alike.
Pattern ShuffledBoth(const Pattern& pattern, uint64_t seed);

/// Rows [row, row + rows), columns [col, col + cols).
Pattern Window(const Pattern& pattern, int64_t row, int64_t rows, int64_t col, int64_t cols);

/// The subgraph that `permille` of the vertices induce; of a matrix that is not square, so many of
/// the rows and of the columns.
Pattern Sampled(const Pattern& pattern, int permille, uint64_t seed);

/// The subgraph that `vertices` of them induce which are nearest to a random one, numbered as they
/// are met, breadth first; where all that can be reached are fewer, it goes on from the next one.
/// Of a square matrix.
Pattern Ball(const Pattern& pattern, int64_t vertices, uint64_t seed);

}  // namespace sparsed::corpus
