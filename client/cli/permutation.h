// Orders of rows and columns, as sparsed_reorder writes them, and partitions of rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sparsed/types.h"

namespace sparsed::cli {

/// A text file, plain or .gz, that NumPy reads and writes as well: line r holds the number of the
/// row that becomes row r, both from 0. INVALID_ARGUMENT with file and line if it is not each of
/// [0, rows) once.
absl::StatusOr<std::vector<int32_t>> ReadPermutation(const std::string& path, int64_t rows);

/// Which of [0, parts) each row belongs to: a text file, plain or .gz, with a line for each row, as
/// METIS's gpmetis writes it. INVALID_ARGUMENT with file and line if it is none.
absl::StatusOr<std::vector<int32_t>> ReadPartition(const std::string& path, int64_t rows,
                                                   int parts);

/// P * S * P^T: row and column r are row and column order[r] of `matrix`. INVALID_ARGUMENT if it is
/// not square.
absl::StatusOr<CsrMatrix> PermuteSymmetrically(const CsrMatrix& matrix,
                                               const std::vector<int32_t>& order);

}  // namespace sparsed::cli
