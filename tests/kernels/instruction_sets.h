// Kernels that are built for several instruction sets, tried with each.
#pragma once

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <cstdint>

namespace sparsed::test {

/// Calls `check` with each instruction set that this machine has, and with none.
template <typename Check>
void WithEveryInstructionSet(const Check& check) {
  const int64_t best = hwy::SupportedTargets();
  for (const int64_t target : {HWY_AVX3, HWY_AVX2, HWY_SCALAR}) {
    if ((best & target) == 0 && target != HWY_SCALAR) continue;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
    check();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
}

}  // namespace sparsed::test
