// Whose preparation is next: start-time fair queuing of tenants (see FairQueue) by the time that
// workers had for them.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <string_view>

#include "engine/execution/fair_queue.h"

namespace sparsed::engine {

/// Each tenant has a virtual time: the seconds that it was given, divided by its weight. Whoever
/// has the least goes next; who was idle has saved nothing up. Not thread-safe.
class FairTime {
 public:
  /// From now on.
  void SetWeights(TenantWeights weights) { weights_ = std::move(weights); }

  /// Virtual time at which its next job would begin.
  double StartOf(std::string_view tenant) const {
    const auto found = times_.find(tenant);
    return found == times_.end() ? now_ : std::max(found->second, now_);
  }
  /// It is given so many seconds, which it has not used yet. `now`: the least StartOf of those that
  /// wait or begin.
  void Begin(std::string_view tenant, double seconds, double now) {
    const double start = StartOf(tenant);
    now_ = std::max(now_, std::min(now, start));
    // Who is behind is as if he had just come.
    std::erase_if(times_, [this](const auto& entry) { return entry.second <= now_; });
    times_.insert_or_assign(std::string(tenant), start + seconds / weights_.Of(tenant));
  }
  /// It used `more` than that; less, if it is below 0.
  void Correct(std::string_view tenant, double more) {
    times_.insert_or_assign(std::string(tenant), StartOf(tenant) + more / weights_.Of(tenant));
  }
  /// That are remembered, for tests of bounds.
  size_t tenants() const { return times_.size(); }

 private:
  TenantWeights weights_;
  std::map<std::string, double, std::less<>> times_;
  double now_ = 0;
};

}  // namespace sparsed::engine
