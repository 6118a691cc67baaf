#include "server/telemetry/slow_requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "server/telemetry/fair_share.h"

namespace sparsed::server {

bool WasRefusedAtOnce(const StageRecord& record) {
  switch (record.status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kUnauthenticated:
      return std::chrono::nanoseconds(record.total_ns) < std::chrono::milliseconds(1);
    default:
      return false;
  }
}

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

bool SlowRequests::Apart(Op op) { return IsStatusCall(op) || op == Op::kExplain; }

bool SlowRequests::MakeRoom(const StageRecord& record, Clock::time_point now,
                            std::vector<Kept>& kept) {
  if (kept.size() < kMostOfTenant) return true;
  if (std::erase_if(kept, [now](const Kept& one) { return now - one.at > kKept; }) > 0) return true;
  std::array<size_t, kOps> of_op = {};
  ++of_op[static_cast<size_t>(record.op)];
  for (const Kept& one : kept) ++of_op[static_cast<size_t>(one.request.record.op)];
  // Of very many operations one that has most goes.
  const size_t part = std::min(kOfOperation, std::ranges::max(of_op) - 1);
  const auto may_go = [&](const StageRecord& one) {
    return std::chrono::nanoseconds(one.total_ns) < kWorthAPlace ||
           of_op[static_cast<size_t>(one.op)] > part;
  };
  auto fastest = kept.end();
  for (auto one = kept.begin(); one != kept.end(); ++one) {
    const StageRecord& other = one->request.record;
    if (may_go(other) &&
        (fastest == kept.end() || other.total_ns < fastest->request.record.total_ns)) {
      fastest = one;
    }
  }
  if (fastest == kept.end()) return false;
  if (may_go(record) && fastest->request.record.total_ns >= record.total_ns) return false;
  kept.erase(fastest);
  return true;
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
  std::vector<Kept>& kept = Apart(record.op) ? tenant.apart : tenant.listed;
  if (!MakeRoom(record, now, kept)) return;
  kept.push_back({now, {std::chrono::system_clock::now(), record}});
}

void SlowRequests::ForgetOneLocked() {
  tenants_.erase(
      std::ranges::min_element(tenants_, {}, [](const auto& entry) { return entry.second.last; }));
}

std::vector<const EndedRequest*> SlowRequests::Wanted(const OfTenant& of, const SlowFilter& filter,
                                                      Clock::time_point now) {
  const auto is_of = [&](const StageRecord& record) {
    return filter.subject.empty() || record.subject == filter.subject ||
           fmt::format("{}~{}", record.tenant, record.subject) == filter.subject;
  };
  std::vector<const EndedRequest*> wanted;
  for (const Kept& kept : filter.op&& Apart(*filter.op) ? of.apart : of.listed) {
    const StageRecord& record = kept.request.record;
    if (now - kept.at > kKept || (filter.op && record.op != *filter.op) || !is_of(record)) continue;
    wanted.push_back(&kept.request);
  }
  return wanted;
}

std::vector<EndedRequest> SlowRequests::List(const SlowFilter& filter,
                                             Clock::time_point now) const {
  const auto slower = [](const EndedRequest& a, const EndedRequest& b) {
    return a.record.total_ns > b.record.total_ns;
  };
  std::vector<std::vector<EndedRequest>> of_each;
  {
    const MutexLock lock(mutex_);
    for (const auto& [name, of] : tenants_) {
      if (filter.tenant != nullptr && name != *filter.tenant) continue;
      of_each.emplace_back();
      for (const EndedRequest* wanted : Wanted(of, filter, now)) of_each.back().push_back(*wanted);
    }
  }
  for (auto& requests : of_each) std::ranges::sort(requests, slower);
  return FairShare(std::move(of_each), kMostListed, slower);
}

size_t SlowRequests::CountOfOthers(const SlowFilter& filter, Clock::time_point now) const {
  const MutexLock lock(mutex_);
  size_t count = 0;
  for (const auto& [name, of] : tenants_) {
    if (name != *filter.tenant) count += Wanted(of, filter, now).size();
  }
  return count;
}

}  // namespace sparsed::server
