// Real matrices for tests and benchmarks. Trusts its files; the client has the reader that doesn't.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/generate.h"

namespace sparsed::test {

/// A canonical CSR matrix that owns its arrays.
struct Matrix {
  Pattern pattern;
  std::vector<double> values;
};

/// With values uniform in [-1, 1).
Matrix WithRandomValues(Pattern pattern, uint64_t seed);

/// A coordinate file, plain or .gz: real, integer or pattern (values 1), general, symmetric or
/// skew-symmetric (expanded), without duplicates. Nothing if it cannot be opened or is of another
/// kind.
std::optional<Matrix> ReadMatrixMarket(const std::string& path);

}  // namespace sparsed::test
