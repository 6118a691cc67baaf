// Arithmetic that waits for nothing: whoever times it knows the roof of the CPU's roofline.
#pragma once

#include <cstdint>

#include "kernels/array.h"

namespace sparsed::cpu {

/// So many steps of multiplications and additions in registers, in the widest instructions there
/// are, on each of `threads` threads. 16-bit types are computed in f32. Returns the operations.
double MultiplyAdd(ElementType type, int64_t steps, int threads);

}  // namespace sparsed::cpu
