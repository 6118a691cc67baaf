#include "engine/execution/costs.h"

#include <algorithm>

namespace sparsed::engine {
namespace {

/// What the latest counts.
constexpr double kLatest = 0.25;

void Average(double& rate, double latest) {
  rate = rate == 0 ? latest : rate + kLatest * (latest - rate);
}

}  // namespace

Forecast Costs::Of(uint64_t kind, Operation operation, double work) const {
  const MutexLock lock(mutex_);
  if (const auto found = rates_.find(kind); found != rates_.end()) {
    return {found->second * work, /*measured=*/true};
  }
  return {of_operations_[static_cast<size_t>(operation)] * work, /*measured=*/false};
}

void Costs::Took(uint64_t kind, Operation operation, double work, double seconds) {
  const double rate = seconds / std::max(work, 1.0);
  const MutexLock lock(mutex_);
  if (rates_.size() >= kMostKinds && !rates_.contains(kind)) rates_.clear();
  Average(rates_[kind], rate);
  Average(of_operations_[static_cast<size_t>(operation)], rate);
}

}  // namespace sparsed::engine
