#include "engine/execution/tenant_seconds.h"

#include <algorithm>

namespace sparsed::engine {

void TenantSeconds::Add(std::string_view tenant, double seconds) {
  if (const auto named = named_.find(tenant); named != named_.end()) {
    named->second.seconds += seconds;
    named->second.all += seconds;
    return;
  }
  if (named_.size() < kMostNames) {
    named_.emplace(tenant, Named{seconds, seconds});
    return;
  }
  others_ += seconds;
  if (unnamed_.size() >= kMostUnnamed && !unnamed_.contains(tenant)) unnamed_.clear();
  double& used = unnamed_.try_emplace(std::string(tenant), 0).first->second;
  used += seconds;
  const auto least = std::ranges::min_element(
      named_, [](const auto& one, const auto& other) { return one.second.all < other.second.all; });
  // Clearly more, so that names do not change for ever.
  if (used <= 2 * least->second.all) return;
  others_ += least->second.seconds;
  named_.erase(least);
  named_.emplace(tenant, Named{0, used});
  unnamed_.erase(unnamed_.find(tenant));
}

}  // namespace sparsed::engine
