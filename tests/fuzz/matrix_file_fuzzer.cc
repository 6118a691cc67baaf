// Any file must be read into canonical CSR or refused in a sentence. The first byte says as what it
// is read, the others are the file.
#include <array>
#include <string>
#include <string_view>

#include "client/cli/matrix_file.h"
#include "tests/fuzz/check.h"

namespace {

using sparsed::fuzz::Check;

/// A row costs memory whatever the file holds, so larger matrices would only end the fuzzer.
constexpr int64_t kMaxDimension = 1 << 12;

void CheckCanonical(const sparsed::CsrMatrix& matrix) {
  Check(matrix.rows >= 0 && matrix.rows <= kMaxDimension && matrix.cols <= kMaxDimension);
  Check(matrix.row_offsets.size() == static_cast<size_t>(matrix.rows) + 1);
  Check(matrix.row_offsets.front() == 0 && matrix.row_offsets.back() == matrix.nnz());
  for (int64_t row = 0; row < matrix.rows; ++row) {
    for (int64_t i = matrix.row_offsets[row]; i < matrix.row_offsets[row + 1]; ++i) {
      const int64_t before = i > matrix.row_offsets[row] ? matrix.column_indices[i - 1] : -1;
      Check(matrix.column_indices[i] > before && matrix.column_indices[i] < matrix.cols);
    }
  }
}

sparsed::cli::ReadOptions OptionsOf(uint8_t how) {
  constexpr std::array<std::string_view, 5> kFormats = {"mtx", "npz", "npy", "edges", "metis"};
  sparsed::cli::ReadOptions options;
  options.max_dimension = kMaxDimension;
  const size_t format = how % 8;  // others: as its content says
  if (format >= kFormats.size()) return options;
  options.format = *sparsed::cli::ParseFileFormat(kFormats[format]);
  if (kFormats[format] == "npy" || kFormats[format] == "edges") {
    options.undirected = (how & 8) != 0;
    options.one_based = (how & 16) != 0;
  }
  return options;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto read =
      sparsed::cli::ReadMatrixFile(sparsed::fuzz::FileOf(data + 1, size - 1), OptionsOf(data[0]));
  if (read.ok()) {
    CheckCanonical(read->matrix);
    Check(read->duplicates >= 0 && read->nan >= 0 && read->infinite >= 0);
  } else {
    Check(!read.status().message().empty());
  }
  return 0;
}
