// Entries of a matrix in one NumPy array.
#pragma once

#include "absl/status/statusor.h"
#include "client/cli/byte_source.h"
#include "client/cli/matrix_file.h"

namespace sparsed::cli {

/// An array of n x 3 (row, column, value) or n x 2 (row, column; values are 1) as numpy.loadtxt
/// gives it, or of 2 x n integers, rows above columns; both may be in C's or in Fortran's order.
absl::StatusOr<MatrixFile> ReadNpyTriples(ByteSource source, const ReadOptions& options);

}  // namespace sparsed::cli
