// Any file must be read into canonical CSR or refused in a sentence: as FUZZED_FORMAT, or as its
// content says ("any").
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "client/cli/matrix_file.h"

namespace {

/// A row costs memory whatever the file holds, so larger matrices would only end the fuzzer.
constexpr int64_t kMaxDimension = 1 << 20;

void Check(bool holds) {
  if (!holds) std::abort();
}

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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int file = memfd_create("fuzz", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  Check(ftruncate(file, 0) == 0 && pwrite(file, data, size, 0) == static_cast<ssize_t>(size));
  sparsed::cli::ReadOptions options;
  options.max_dimension = kMaxDimension;
  const std::string format = FUZZED_FORMAT;
  if (format != "any") options.format = *sparsed::cli::ParseFileFormat(format);
  const bool list = format == "edges" || format == "npy";
  options.undirected = list && size % 3 == 0;
  options.one_based = list && size % 5 == 0;
  const auto read = sparsed::cli::ReadMatrixFile(path, options);
  if (read.ok()) {
    CheckCanonical(read->matrix);
    Check(read->duplicates >= 0 && read->nan >= 0 && read->infinite >= 0);
  } else {
    Check(!read.status().message().empty());
  }
  return 0;
}
