// The vectorised part of transposed SpMM from CSR, on a block of columns and a single thread.
#pragma once

#include <cstdint>

#include "kernels/cpu/spmm/csr_rows.h"

namespace sparsed::cpu {

/// The part of C = alpha * S^T * B + beta * C that one thread owns: rows [first_column,
/// last_column) of C, which are columns of S.
struct Tile {
  int32_t first_column = 0;
  int32_t last_column = 0;
};

/// Scales the tile of C by beta (beta == 0: sets it to zero).
void ScaleTile(const CsrProduct<float>& product, const Tile& tile);
void ScaleTile(const CsrProduct<double>& product, const Tile& tile);

/// Adds alpha * S^T * B, of rows `rows` of S, to the tile.
void ScatterRows(const CsrProduct<float>& product, RowRange rows, const Tile& tile);
void ScatterRows(const CsrProduct<double>& product, RowRange rows, const Tile& tile);

}  // namespace sparsed::cpu
