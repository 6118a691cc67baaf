// Matrices of engineering and optimisation: bands, networks of wires, linear and quadratic
// programs, Jacobians of time steps. The same for the same arguments on every machine; shares are
// in thousandths.
#pragma once

#include <cstdint>

#include "tools/corpus/pattern.h"

namespace sparsed::corpus {

/// rows x rows, columns [r - half_bandwidth, r + half_bandwidth] where they exist.
Pattern Band(int64_t rows, int64_t half_bandwidth);
/// Of them the share `kept`, and the diagonal.
Pattern ThinBand(int64_t rows, int64_t half_bandwidth, int kept, uint64_t seed);
/// The main diagonal and `count` - 1 others, at most `reach` away from it.
Pattern Diagonals(int64_t rows, int64_t count, int64_t reach, uint64_t seed);

/// Admittances of a power grid: each bus is wired to an earlier one, mostly a near one; `chords`
/// buses in a thousand have a second wire. Symmetric, with the diagonal.
Pattern PowerGrid(int64_t buses, int chords, uint64_t seed);
/// A circuit's nodes: `degree` entries a row, most of them near; `rails` nodes are wired to the
/// share `on_rails` of all others, in both directions. Not symmetric but for these.
Pattern Circuit(int64_t nodes, int64_t degree, int64_t rails, int on_rails, uint64_t seed);

struct ProgramShape {
  int64_t blocks = 1;
  int64_t block_rows = 1, block_cols = 1;
  int64_t column_nnz = 1;  ///< draws for each column in its block
};
/// A linear program's constraints, block-angular: beside its block each column is, with the chance
/// `linked`, in one of the `linking` rows at the end.
Pattern BlockAngular(const ProgramShape& shape, int64_t linking, int linked, uint64_t seed);
/// A staircase: each column is in its block's rows, and with `column_nnz` draws in those of the
/// next.
Pattern Staircase(const ProgramShape& shape, uint64_t seed);
/// [H A^T; A D] of a quadratic program: H a thin band of `unknowns`, A with `row_nnz` draws a row
/// near the place of the constraint, D the diagonal if `regular`, else nothing.
Pattern Kkt(int64_t unknowns, int64_t constraints, int64_t row_nnz, bool regular, uint64_t seed);

struct StepShape {
  int64_t steps = 1, block = 1;
  int filled = 1000;      ///< share of each block that there is, beside the diagonal
  bool periodic = false;  ///< the last step meets the first
};
/// Jacobians of all time steps at once: block tridiagonal.
Pattern BlockTridiagonal(const StepShape& shape, uint64_t seed);
/// Blocks along the diagonal, and `border` full rows and columns at the end.
Pattern Arrow(const StepShape& shape, int64_t border, uint64_t seed);

}  // namespace sparsed::corpus
