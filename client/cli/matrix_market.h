// Matrix Market files (https://math.nist.gov/MatrixMarket/formats.html). docs/matrix-market.md says
// what is made of everything that the format leaves open.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/csr_builder.h"
#include "client/cli/output_file.h"
#include "sparsed/types.h"

namespace sparsed::cli {

/// Reads a file, plain or .gz, into canonical CSR: symmetric halves expanded, rows sorted,
/// duplicates summed, explicit zeros kept. INVALID_ARGUMENT with file and line if it is not what it
/// should be. Memory grows with what the file holds, and with its number of rows.
absl::StatusOr<CsrMatrix> ReadMatrixMarket(const std::string& path, ValueType type,
                                           int64_t max_dimension = kMaxDimension);

/// Writes a matrix row block by row block; its size is filled in at the end.
class MatrixMarketWriter {
 public:
  static absl::StatusOr<MatrixMarketWriter> Open(const std::string& path);

  absl::Status Add(const RowBlock& block);
  /// Fills in the size and gives the file its name. Without it nothing is left.
  absl::Status Finish(int64_t rows, int64_t cols, int64_t nnz);

 private:
  explicit MatrixMarketWriter(OutputFile file) : file_(std::move(file)) {}

  OutputFile file_;
};

absl::Status WriteMatrixMarket(const std::string& path, const CsrMatrix& matrix);

}  // namespace sparsed::cli
