// cuSPARSE's SpGEMM, to compare with.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/kernel_table.h"
#include "tests/bench/gpu/device.h"

namespace sparsed::test {

/// C = S * T by its default algorithm, everything on the device, memory for C and whatever else
/// taken and given back; `s_offsets` and `t_offsets` are the row offsets in 32 bits. Returns the
/// nonzeros of C. UNAVAILABLE without the library.
absl::StatusOr<int64_t> CusparseSpgemm(Device& device, const Problem& problem,
                                       const SpgemmArguments& arguments, const int32_t* s_offsets,
                                       const int32_t* t_offsets);

}  // namespace sparsed::test
