#include "kernels/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/multiply_add.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After foreach_target.h:
#include "kernels/cpu/multiply_add.h"

HWY_BEFORE_NAMESPACE();
namespace sparsed::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

/// Chains of dependent operations that are under way at once: enough for two units of latency five.
constexpr int kChains = 10;

/// `steps` times a multiplication and an addition in each lane of kChains vectors. Returns the
/// operations; *sum keeps them from being left out.
template <typename T>
double Run(int64_t steps, double* sum) {
  const hn::ScalableTag<T> d;
  hn::Vec<decltype(d)> chains[kChains];
  for (auto& chain : chains) chain = hn::Set(d, static_cast<T>(*sum));
  const auto factor = hn::Set(d, static_cast<T>(0.5)), added = hn::Set(d, static_cast<T>(1));
  for (int64_t step = 0; step < steps; ++step) {
    HWY_UNROLL(kChains)
    for (int i = 0; i < kChains; ++i) chains[i] = hn::MulAdd(chains[i], factor, added);
  }
  for (const auto& chain : chains) *sum += static_cast<double>(hn::GetLane(chain));
  return 2.0 * kChains * static_cast<double>(steps) * static_cast<double>(hn::Lanes(d));
}

}  // namespace

double RunF32(int64_t steps, double* sum) { return Run<float>(steps, sum); }
double RunF64(int64_t steps, double* sum) { return Run<double>(steps, sum); }

}  // namespace sparsed::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparsed::cpu {
namespace {

HWY_EXPORT(RunF32);
HWY_EXPORT(RunF64);

}  // namespace

double MultiplyAdd(ElementType type, int64_t steps, int threads) {
  double operations = 0, sum = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : operations, sum) schedule(static)
  for (int thread = 0; thread < threads; ++thread) {
    double mine = thread;
    operations += type == ElementType::kF64 ? HWY_DYNAMIC_DISPATCH(RunF64)(steps, &mine)
                                            : HWY_DYNAMIC_DISPATCH(RunF32)(steps, &mine);
    sum += mine;
  }
  // It is finite: this only keeps it in use.
  return sum == sum ? operations : 0;
}

}  // namespace sparsed::cpu
#endif  // HWY_ONCE
