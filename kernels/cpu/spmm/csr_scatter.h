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

// Sums are formed in `sums`: C itself for f32 and f64, memory aside for the types that are only
// stored.

/// Begins the tile's sums: beta times C, or zero where C is elsewhere.
void BeginTile(const CsrProduct<float>& product, const Tile& tile);
void BeginTile(const CsrProduct<double>& product, const Tile& tile);
void BeginTile(const CsrProduct<Float16>& product, const Tile& tile);
void BeginTile(const CsrProduct<BFloat16>& product, const Tile& tile);

/// Adds alpha * S^T * B, of rows `rows` of S, to the tile's sums.
void ScatterRows(const CsrProduct<float>& product, RowRange rows, const Tile& tile);
void ScatterRows(const CsrProduct<double>& product, RowRange rows, const Tile& tile);
void ScatterRows(const CsrProduct<Float16>& product, RowRange rows, const Tile& tile);
void ScatterRows(const CsrProduct<BFloat16>& product, RowRange rows, const Tile& tile);

/// C = sums + beta * C, rounded, of the tile.
void EndTile(const CsrProduct<Float16>& product, const Tile& tile);
void EndTile(const CsrProduct<BFloat16>& product, const Tile& tile);

}  // namespace sparsed::cpu
