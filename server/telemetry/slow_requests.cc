#include "server/telemetry/slow_requests.h"

#include <algorithm>
#include <utility>

#include "server/telemetry/fair_share.h"

namespace sparsed::server {

bool SlowRequests::Counts(Op op) {
  switch (op) {
    case Op::kWatch:
    case Op::kWatchRequests:
    case Op::kSaveSnapshot:
    case Op::kCalibrate:
      return false;
    default:
      return true;
  }
}

void SlowRequests::Add(const StageRecord& record, Clock::time_point now) {
  if (!Counts(record.op)) return;
  const MutexLock lock(mutex_);
  auto found = tenants_.find(record.tenant);
  if (found == tenants_.end()) {
    if (tenants_.size() >= kMostTenants) ForgetOneLocked();
    found = tenants_.emplace(record.tenant, OfTenant()).first;
  }
  OfTenant& tenant = found->second;
  tenant.last = now;
  std::vector<Kept>& kept = IsStatusCall(record.op) ? tenant.status_calls : tenant.work;
  const auto total = [](const Kept& one) { return one.request.record.total_ns; };
  if (kept.size() >= kMostOfTenant) {
    std::erase_if(kept, [now](const Kept& one) { return now - one.at > kKept; });
  }
  if (kept.size() >= kMostOfTenant) {
    const auto fastest = std::ranges::min_element(kept, {}, total);
    if (total(*fastest) >= record.total_ns) return;
    kept.erase(fastest);
  }
  kept.push_back({now, {std::chrono::system_clock::now(), record}});
}

void SlowRequests::ForgetOneLocked() {
  tenants_.erase(
      std::ranges::min_element(tenants_, {}, [](const auto& entry) { return entry.second.last; }));
}

std::vector<EndedRequest> SlowRequests::List(const std::string* tenant, std::optional<Op> op,
                                             Clock::time_point now) const {
  const auto slower = [](const EndedRequest& a, const EndedRequest& b) {
    return a.record.total_ns > b.record.total_ns;
  };
  std::vector<std::vector<EndedRequest>> of_each;
  {
    const MutexLock lock(mutex_);
    for (const auto& [name, of] : tenants_) {
      if (tenant != nullptr && name != *tenant) continue;
      of_each.emplace_back();
      for (const Kept& kept : op&& IsStatusCall(*op) ? of.status_calls : of.work) {
        if (now - kept.at > kKept || (op && kept.request.record.op != *op)) continue;
        of_each.back().push_back(kept.request);
      }
    }
  }
  for (auto& requests : of_each) std::ranges::sort(requests, slower);
  return FairShare(std::move(of_each), kMostListed, slower);
}

}  // namespace sparsed::server
