#include "kernels/cpu/spgemm/spgemm.h"

namespace sparsed::cpu {

std::span<const SpgemmKernel> GraphblasSpgemm() { return {}; }

}  // namespace sparsed::cpu
