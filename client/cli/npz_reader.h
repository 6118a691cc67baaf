// Sparse matrices as scipy.sparse.save_npz writes them: a zip archive of .npy arrays.
#pragma once

#include "absl/status/statusor.h"
#include "client/cli/byte_source.h"
#include "client/cli/matrix_file.h"

namespace sparsed::cli {

/// csr, csc, coo, bsr and dia; the arrays are read side by side, stored or deflated. What cannot be
/// read from anywhere, such as standard input, goes to a temporary file first.
absl::StatusOr<MatrixFile> ReadNpz(ByteSource source, const ReadOptions& options);

}  // namespace sparsed::cli
