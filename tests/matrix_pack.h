// Many patterns in one small file, to take real matrices to a machine where they are to be
// measured. Values are not kept: benchmarks draw their own.
//
// The file is in xz format, whose CRC64 tells damage. Inside it, numbers are varints (7 bits a
// byte, low ones first):
//   "sparsed patterns 1\n", then for each: length of its name, name, rows, cols, nnz;
//   the length of each row; for each row that has nonzeros its first column, as the difference
//   (zigzag) to that of the row before, and then for each nonzero how many columns it leaves out.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/generate.h"

namespace sparsed::test {

absl::Status WriteMatrixPack(const std::string& path, std::span<const NamedPattern> patterns);

/// INVALID_ARGUMENT, with what is wrong, unless every pattern in it is canonical CSR.
absl::StatusOr<std::vector<NamedPattern>> ReadMatrixPack(const std::string& path);

}  // namespace sparsed::test
