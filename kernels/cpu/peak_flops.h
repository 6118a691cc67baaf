// What the CPU's arithmetic can do at best: the roof of its roofline.
#pragma once

#include "kernels/array.h"

namespace sparsed::cpu {

/// Operations a second of `threads` threads that multiply and add in registers, in the widest
/// instructions there are; 16-bit types are computed in f32. Measured, in about 20 ms.
double MeasurePeakFlops(ElementType type, int threads);

}  // namespace sparsed::cpu
