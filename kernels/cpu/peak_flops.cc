#include "kernels/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/peak_flops.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After foreach_target.h:
#include "kernels/cpu/peak_flops.h"

HWY_BEFORE_NAMESPACE();
namespace sparsed::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

/// Chains of dependent operations that are under way at once: enough for two units of latency five.
constexpr int kChains = 10;

/// `steps` times a multiplication and an addition in each lane of kChains vectors. Returns the
/// operations; *sum keeps them from being left out.
template <typename T>
double MultiplyAdd(int64_t steps, double* sum) {
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

double MultiplyAddF32(int64_t steps, double* sum) { return MultiplyAdd<float>(steps, sum); }
double MultiplyAddF64(int64_t steps, double* sum) { return MultiplyAdd<double>(steps, sum); }

}  // namespace sparsed::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <chrono>

namespace sparsed::cpu {
namespace {

HWY_EXPORT(MultiplyAddF32);
HWY_EXPORT(MultiplyAddF64);

}  // namespace

double MeasurePeakFlops(ElementType type, int threads) {
  constexpr int64_t kSteps = 1 << 20;
  double best = 0;
  for (int run = 0; run < 4; ++run) {
    double operations = 0, sum = 0;
    const auto begin = std::chrono::steady_clock::now();
#pragma omp parallel for num_threads(threads) reduction(+ : operations, sum) schedule(static)
    for (int thread = 0; thread < threads; ++thread) {
      double mine = thread;
      operations += type == ElementType::kF64 ? HWY_DYNAMIC_DISPATCH(MultiplyAddF64)(kSteps, &mine)
                                              : HWY_DYNAMIC_DISPATCH(MultiplyAddF32)(kSteps, &mine);
      sum += mine;
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    // `sum` is finite: this only keeps it in use.
    if (sum == sum) best = std::max(best, operations / seconds.count());
  }
  return best;
}

}  // namespace sparsed::cpu
#endif  // HWY_ONCE
