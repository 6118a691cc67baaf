// The tensor cores' instruction, one function a type: c += a * b for one tile by a whole warp, and
// f32 on it. With g = lane / 4 and t = lane % 4, a lane has of a 16 x 8 tile (8 x 8 for f64)
//   a   row g (and row g + 8: every second register) of the columns that have number t, t + 4, ...
//   b   the same of b's rows, in column g
//   c   rows g (c0, c1) and g + 8 (c2, c3), columns 2 * t and 2 * t + 1
// Which column of `a` has which number does not matter, as long as b's rows have the same.
#pragma once

#include <cstdint>

#include "kernels/cuda/lanes.cuh"
#include "kernels/kernel_table.h"

namespace sparsed::cuda {

/// The accuracy of kernels that multiply and sum with these instructions. Except for f64, they cut
/// off what they add below the sum's last place. Floats are split (Tf32Parts), or each is rounded
/// to TF32, by at most 2^-11 of it, where SpMM is allowed to.
inline Accuracy TensorCoreAccuracy(const Problem& problem) {
  if (problem.type == ElementType::kF64) return {};
  if (problem.type != ElementType::kF32) return {.addition = 2};
  const bool rounded = problem.allow_tf32 && problem.operation == Operation::kSpmm;
  return {.product = rounded ? 0x1.01p-10 : 0x1p-20, .addition = 2};
}

/// a: 16 x 8.
__device__ inline void MultiplyTile(float& c0, float& c1, float& c2, float& c3, const float (&a)[4],
                                    const float (&b)[2]) {
  const auto bits = [](float x) { return __float_as_uint(x); };
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
      : "r"(bits(a[0])), "r"(bits(a[1])), "r"(bits(a[2])), "r"(bits(a[3])), "r"(bits(b[0])),
        "r"(bits(b[1])));
}

/// a: 8 x 4.
__device__ inline void MultiplyTile(double& c0, double& c1, double a, double b) {
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
      : "+d"(c0), "+d"(c1)
      : "d"(a), "d"(b));
}

/// Two elements in a register, as tiles of them are.
template <typename T>
__device__ inline uint32_t Pair(T first, T second) {
  return uint32_t{first.bits} | uint32_t{second.bits} << 16;
}

/// a: 16 x 16; a register has two columns of a, or rows of b, with the same number.
template <typename T>
__device__ inline void MultiplyTile(float& c0, float& c1, float& c2, float& c3,
                                    const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<T, Float16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    static_assert(std::is_same_v<T, BFloat16>);
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

/// x rounded to TF32 where the instruction cuts it off. What is infinite becomes NaN, as does what
/// rounding would make infinite: sums that are NaN have to be computed once more without rounding.
/// (cvt.rna.tf32.f32 takes longer than splitting.)
__device__ inline float RoundToTf32(float x) {
  return fmaf(x, 0.0F, __uint_as_float(__float_as_uint(x) + 0x1000u));
}

/// f32 as two TF32 parts each: three products of parts are added up (3xTF32: Ootomo and Yokota,
/// IJHPCA 2022, without their scaling). What is lost of a product is at most 2^-20 of it. Where a
/// number is infinite, NaN, or near the largest float, sums come out infinite or NaN that may be
/// neither: those have to be computed once more without splitting.
template <int kCount>
struct Tf32Parts {
  float upper[kCount], rest[kCount];

  __device__ explicit Tf32Parts(const float (&x)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      upper[i] = __uint_as_float((__float_as_uint(x[i]) + 0x1000u) & 0xffffe000u);  // rounded
      rest[i] = x[i] - upper[i];
    }
  }
};

__device__ inline void MultiplyTile(float& c0, float& c1, float& c2, float& c3,
                                    const Tf32Parts<4>& a, const Tf32Parts<2>& b) {
  MultiplyTile(c0, c1, c2, c3, a.rest, b.upper);
  MultiplyTile(c0, c1, c2, c3, a.upper, b.rest);
  MultiplyTile(c0, c1, c2, c3, a.upper, b.upper);
}

}  // namespace sparsed::cuda
