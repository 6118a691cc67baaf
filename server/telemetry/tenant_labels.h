// Label values for tenants: bounded, however many there are.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "base/mutex.h"

namespace sparsed::server {

/// Thread-safe.
class TenantLabels {
 public:
  /// Tenants that metrics name; the rest are "other".
  static constexpr size_t kMost = 50;

  /// The tenant's name if he is among the first that were asked for, so that a series is always
  /// about the same; else "other".
  std::string Of(std::string_view tenant) {
    const MutexLock lock(mutex_);
    if (named_.contains(tenant)) return std::string(tenant);
    if (named_.size() >= kMost) return "other";
    return *named_.emplace(tenant).first;
  }

 private:
  Mutex mutex_;
  std::set<std::string, std::less<>> named_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sparsed::server
