// As workers.cc, of the semirings besides sums of products.
#include "kernels/cpu/simd.h"
#include "kernels/cpu/spgemm/jobs.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/spgemm/semiring_workers.cc"
#include "hwy/foreach_target.h"
// foreach_target comes first.
#include "hwy/highway.h"
#include "kernels/cpu/spgemm/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sparsed::cpu::HWY_NAMESPACE {

template <typename T>
void Numeric(const NumericJob<T>& job, std::byte* workspace, PieceQueue& pieces) {
  switch (job.semiring) {
    case Semiring::kBoolean:
      return NumericRows<T, Boolean<T>>(job, workspace).Run(pieces);
    case Semiring::kMinPlus:
      return NumericRows<T, MinPlus<T>>(job, workspace).Run(pieces);
    case Semiring::kPlusPair:
      return NumericRows<T, PlusPair<T>>(job, workspace).Run(pieces);
    case Semiring::kSumProduct:
      return;  // RunRows's own
  }
}

void SemiringF32(const NumericJob<float>& job, std::byte* workspace, PieceQueue& pieces) {
  Numeric(job, workspace, pieces);
}

void SemiringF64(const NumericJob<double>& job, std::byte* workspace, PieceQueue& pieces) {
  Numeric(job, workspace, pieces);
}

}  // namespace sparsed::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparsed::cpu {
namespace {

HWY_EXPORT(SemiringF32);
HWY_EXPORT(SemiringF64);

}  // namespace

void RunSemiringRows(const NumericJob<float>& job, std::byte* workspace, PieceQueue& pieces) {
  HWY_DYNAMIC_DISPATCH(SemiringF32)(job, workspace, pieces);
}

void RunSemiringRows(const NumericJob<double>& job, std::byte* workspace, PieceQueue& pieces) {
  HWY_DYNAMIC_DISPATCH(SemiringF64)(job, workspace, pieces);
}

}  // namespace sparsed::cpu
#endif
