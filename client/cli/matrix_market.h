// Matrix Market files (https://math.nist.gov/MatrixMarket/formats.html). docs/matrix-market.md says
// what is made of everything that the format leaves open.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/csr_builder.h"
#include "client/cli/line_reader.h"
#include "client/cli/matrix_file.h"
#include "client/cli/matrix_writer.h"
#include "client/cli/packed_file.h"
#include "sparsed/types.h"

namespace sparsed::cli {

/// Reads a file, plain or compressed, into canonical CSR: symmetric halves expanded, rows sorted,
/// duplicates summed, explicit zeros kept. INVALID_ARGUMENT with file and line if it is not what it
/// should be, or with row and column if a value is beyond the type's range. Memory grows with what
/// the file holds, and with its number of rows.
absl::StatusOr<CsrMatrix> ReadMatrixMarket(const std::string& path, ValueType type,
                                           int64_t max_dimension = kMaxDimension);
absl::StatusOr<MatrixFile> ReadMatrixMarket(LineReader lines, const ReadOptions& options);

/// Writes a matrix row block by row block; its size is filled in at the end. A file whose name says
/// so is compressed then.
class MatrixMarketWriter : public MatrixWriter {
 public:
  static absl::StatusOr<MatrixMarketWriter> Open(const std::string& path);

  absl::Status Add(const RowBlock& block) override;
  absl::Status Finish(int64_t rows, int64_t cols, int64_t nnz) override;

 private:
  explicit MatrixMarketWriter(PackedFile file) : file_(std::move(file)) {}

  PackedFile file_;
};

absl::Status WriteMatrixMarket(const std::string& path, const CsrMatrix& matrix);

}  // namespace sparsed::cli
