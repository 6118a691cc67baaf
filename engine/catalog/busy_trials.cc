#include "engine/catalog/busy_trials.h"

#include <algorithm>

namespace sparsed::engine {

std::optional<BusyTrials> FindBusyTrials(const Plan& plan,
                                         const std::vector<Measurement>& measurements) {
  // A quiet machine's trials of different minutes differ by less.
  constexpr double kMoved = 1.5;
  if (plan.signature.operation == Operation::kSpgemm || plan.plan_ms <= 0) return std::nullopt;
  const auto is_of_signature = [&plan](const Measurement& m) {
    return m.signature == plan.signature && m.baseline_ms > 0;
  };
  const auto own = std::ranges::find_if(measurements, [&](const Measurement& m) {
    return is_of_signature(m) && m.pipeline == plan.pipeline && m.kernel == plan.kernel;
  });
  if (own == measurements.end()) return std::nullopt;
  BusyTrials found = {own->baseline_ms, own->baseline_ms};
  for (const Measurement& m : measurements) {
    if (!is_of_signature(m) || m.k != own->k || m.model != own->model) continue;
    found.least_baseline_ms = std::min(found.least_baseline_ms, m.baseline_ms);
    found.most_baseline_ms = std::max(found.most_baseline_ms, m.baseline_ms);
  }
  const double gain = own->baseline_ms / plan.plan_ms;
  if (found.most_baseline_ms <= std::max(kMoved, gain) * found.least_baseline_ms) {
    return std::nullopt;
  }
  return found;
}

}  // namespace sparsed::engine
