// Parts of a CSR matrix with about equal work, cut between rows and, where a row is long, inside
// it.
#pragma once

#include <cstdint>
#include <span>

namespace sparsed::cpu {

/// Where a part begins: the rows before `row` and the nonzeros of `row` before `nonzero` belong to
/// earlier parts. `nonzero` is in [row_offsets[row], row_offsets[row + 1]).
struct Cut {
  int64_t row = 0;
  int64_t nonzero = 0;
};

/// In how many parts to cut. Depends on the problem alone, never on the number of threads, so that
/// sums over parts have the same bits for any team. A part is some hundred microseconds of work:
/// short enough to balance threads and to look at a stop flag between parts.
int64_t PartCount(int64_t rows, int64_t nnz, int64_t k);

/// The beginning of `part` in [0, parts]; that of `parts` is {rows, nnz}. A row counts as much as a
/// nonzero, so that empty rows cost something; only rows of more than half a part are cut inside.
Cut PartBegin(std::span<const int64_t> row_offsets, int64_t part, int64_t parts);

}  // namespace sparsed::cpu
