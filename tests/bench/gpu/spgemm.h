// Measures SpGEMM on the GPU: C = S * S, or S * S^T if S is not square, or S * T.
#pragma once

#include "tests/bench/gpu/measure.h"

namespace sparsed::test {

/// A line of JSON on standard output for each kernel and type, from CSR on the device to CSR there,
/// memory for C and whatever else included, rows sorted. `settings` as for Measure: types, kernels,
/// rounds, copy_rate. cuSPARSE's default algorithm runs before them where it
/// is installed. Some rows are compared with sums in float64; returns how many results were
/// wrong. With `other`, that is the right factor.
absl::StatusOr<int> MeasureSpgemm(Device& device, const Settings& settings, Schedule& schedule,
                                  const NamedPattern& matrix, const NamedPattern* other = nullptr);

}  // namespace sparsed::test
