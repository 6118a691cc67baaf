// Any file must be read into canonical CSR or refused in a sentence.
#include <string>

#include "client/cli/matrix_market.h"
#include "tests/fuzz/check.h"

namespace {

using sparsed::fuzz::Check;

/// A row costs memory whatever the file holds, so larger matrices would only end the fuzzer.
constexpr int64_t kMaxDimension = 1 << 12;

void CheckCanonical(const sparsed::CsrMatrix& matrix) {
  Check(matrix.row_offsets.size() == static_cast<size_t>(matrix.rows) + 1);
  Check(matrix.row_offsets.front() == 0 && matrix.row_offsets.back() == matrix.nnz());
  for (int64_t row = 0; row < matrix.rows; ++row) {
    for (int64_t i = matrix.row_offsets[row]; i < matrix.row_offsets[row + 1]; ++i) {
      const int64_t before = i > matrix.row_offsets[row] ? matrix.column_indices[i - 1] : -1;
      Check(matrix.column_indices[i] > before && matrix.column_indices[i] < matrix.cols);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string& path = sparsed::fuzz::FileOf(data, size);
  const auto matrix = sparsed::cli::ReadMatrixMarket(path, sparsed::ValueType::kF32, kMaxDimension);
  if (matrix.ok()) {
    CheckCanonical(*matrix);
  } else {
    Check(!matrix.status().message().empty());
  }
  return 0;
}
