// Measures iterations of both products with a matrix: C = S * B, then D = S^T * C.
#pragma once

#include "tests/bench/gpu/measure.h"

namespace sparsed::test {

/// A line of JSON on standard output for each type, width and way to have both products: "csr", by
/// the best kernels over plain CSR; "row_segments", from the same arrays (Hong et al., HPDC'18,
/// section 6); "two_layouts", by the best pair of a plain and a transposed layout of those that the
/// settings' pipelines make, besides CSR and its transpose. With what the layouts cost to build and
/// take in memory. Returns how many ways gave another D than the first one.
absl::StatusOr<int> MeasureIterations(Device& device, const Settings& settings, Schedule& schedule,
                                      const NamedPattern& matrix);

}  // namespace sparsed::test
