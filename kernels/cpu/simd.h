// The instruction sets that kernels are built for, one of which is chosen at run time: AVX-512,
// AVX2 and what the compiler's baseline has. Include before hwy/foreach_target.h.
#pragma once

// Fewer targets keep the build short; vectors without a constant size (SVE, RISC-V) cannot be kept
// in the arrays of sums that the kernels use.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
