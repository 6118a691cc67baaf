// The threads' side of every SpGEMM kernel but for the rarer semirings (semiring_workers.cc),
// compiled for each SIMD target and chosen at run time.
#include "kernels/cpu/simd.h"
#include "kernels/cpu/spgemm/jobs.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/spgemm/workers.cc"
#include "hwy/foreach_target.h"
// foreach_target comes first.
#include "hwy/highway.h"
#include "kernels/cpu/spgemm/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sparsed::cpu::HWY_NAMESPACE {

void NumericF32(const NumericJob<float>& job, std::byte* workspace, PieceQueue& pieces) {
  NumericRows<float>(job, workspace).Run(pieces);
}

void NumericF64(const NumericJob<double>& job, std::byte* workspace, PieceQueue& pieces) {
  NumericRows<double>(job, workspace).Run(pieces);
}

void Symbolic(const SymbolicJob& job, std::byte* workspace, PieceQueue& pieces) {
  SymbolicRows(job, workspace).Run(pieces);
}

}  // namespace sparsed::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparsed::cpu {
namespace {

HWY_EXPORT(NumericF32);
HWY_EXPORT(NumericF64);
HWY_EXPORT(Symbolic);

}  // namespace

void RunRows(const NumericJob<float>& job, std::byte* workspace, PieceQueue& pieces) {
  if (job.semiring != Semiring::kSumProduct) return RunSemiringRows(job, workspace, pieces);
  HWY_DYNAMIC_DISPATCH(NumericF32)(job, workspace, pieces);
}

void RunRows(const NumericJob<double>& job, std::byte* workspace, PieceQueue& pieces) {
  if (job.semiring != Semiring::kSumProduct) return RunSemiringRows(job, workspace, pieces);
  HWY_DYNAMIC_DISPATCH(NumericF64)(job, workspace, pieces);
}

void RunRows(const SymbolicJob& job, std::byte* workspace, PieceQueue& pieces) {
  HWY_DYNAMIC_DISPATCH(Symbolic)(job, workspace, pieces);
}

}  // namespace sparsed::cpu
#endif
