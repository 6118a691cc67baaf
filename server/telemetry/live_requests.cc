#include "server/telemetry/live_requests.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <ranges>
#include <utility>

#include "engine/catalog/shares.h"
#include "server/telemetry/fair_share.h"

namespace sparsed::server {
namespace {

/// Of what has no requests any more.
constexpr double kRateHalfLife = 30, kLatencyHalfLife = 60;  // seconds
/// A matrix that was not used for so long has no use.
constexpr auto kForgotten = std::chrono::minutes(5);
/// Requests a second that are shown as none.
constexpr double kResting = 0.005;

int LiveOpOf(Op op) { return std::min(static_cast<int>(op), kLiveOps - 1); }
static_assert(static_cast<int>(Op::kSpmm) == 0 && static_cast<int>(Op::kChain) == kLiveOps - 2);
bool Computes(Op op) { return LiveOpOf(op) < kLiveOps - 1; }

bool IsServersFault(absl::StatusCode code) {
  return code == absl::StatusCode::kInternal || code == absl::StatusCode::kUnknown ||
         code == absl::StatusCode::kDataLoss || code == absl::StatusCode::kUnavailable;
}

double Seconds(uint64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

/// What is there under its subject's name afterwards is another matrix, or none.
bool Replaces(Op op) {
  return op == Op::kDelete || op == Op::kRename || op == Op::kUpload || op == Op::kMakeSharded;
}

/// Whose matrix a request is about: the caller's, or of "owner~name" another's.
std::pair<std::string_view, std::string_view> OwnerAndName(const StageRecord& record) {
  const std::string_view subject = record.subject;
  const size_t mark = subject.find(engine::kOwnerMark);
  if (mark == std::string_view::npos) return {record.tenant, subject};
  return {subject.substr(0, mark), subject.substr(mark + 1)};
}

/// `products`: the oldest first.
std::vector<MatrixUse::OfTransport> ByTransport(const std::vector<MatrixUse::Product>& products) {
  std::vector<std::pair<std::string_view, std::vector<TimeSpent>>> times;  // the latest first
  for (const MatrixUse::Product& product : products | std::views::reverse) {
    const std::string_view transport = TransportOf(product.time);
    auto found = std::ranges::find(times, transport, &decltype(times)::value_type::first);
    if (found == times.end()) found = times.insert(times.end(), {transport, {}});
    found->second.push_back(product.time);
  }
  std::vector<MatrixUse::OfTransport> transports;
  for (auto& [transport, of] : times) {
    const size_t count = of.size();
    transports.push_back({.products = count, .time = MiddleOf(std::move(of))});
  }
  std::ranges::stable_sort(transports, std::greater<>(), &MatrixUse::OfTransport::products);
  return transports;
}

}  // namespace

std::string_view LiveOpName(int live_op) {
  return live_op == kLiveOps - 1 ? "other" : Name(static_cast<Op>(live_op));
}

double MatrixUse::SpmmKernelSeconds(int64_t columns, std::string_view plan) const {
  std::vector<double> seconds;
  for (const Product& product : products) {
    if (product.op == Op::kSpmm && !product.transposed && !product.joined && product.k == columns &&
        product.plan == plan) {
      seconds.push_back(product.time[Phase::kKernel]);
    }
  }
  if (seconds.empty()) return 0;
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::ranges::nth_element(seconds, middle);
  return *middle;
}

void LiveRequests::Use::Pass(Clock::time_point now) {
  const std::chrono::duration<double> idle = now - used;
  if (idle.count() > 0) {
    per_second *= std::exp2(-idle.count() / kRateHalfLife);
    used = now;
  }
  const std::chrono::duration<double> since = now - halved;
  const double times = std::floor(since.count() / kLatencyHalfLife);
  if (times < 1) return;
  latencies.Scale(static_cast<float>(std::exp2(-times)));
  halved = now;
}

void LiveRequests::Use::Add(const StageRecord& record, Clock::time_point now) {
  Pass(now);
  // So that a steady rate comes out as what it is.
  per_second += std::log(2) / kRateHalfLife;
  latencies.Add(Seconds(record.total_ns));
  if (last.size() == kLast) last.erase(last.begin());
  last.push_back({.op = record.op,
                  .transposed = record.transposed,
                  .k = record.k,
                  .joined = record.batch > 1,
                  .plan = record.plan,
                  .time = {}});
  last.back().time.Add(record);
}

void LiveRequests::Count(Slots& slots, const StageRecord& record, Clock::time_point now) const {
  const int64_t step = StepOf(now);
  Slot& slot = slots[static_cast<size_t>(step % kPoints)];
  if (slot.step != step) slot = Slot{.step = step, .point = {}, .latencies = {}};
  ++slot.point.requests[static_cast<size_t>(LiveOpOf(record.op))];
  if (!record.status.ok()) {
    ++(IsServersFault(record.status.code()) ? slot.point.failed : slot.point.wrong);
  }
  if (Computes(record.op)) slot.latencies.Add(Seconds(record.total_ns));
}

void LiveRequests::CountMatrix(const StageRecord& record, Clock::time_point now) {
  // Names that nothing has are not kept, so that nobody fills the table with them.
  if (!record.status.ok()) return;
  const auto [owner, name] = OwnerAndName(record);
  if (Replaces(record.op)) ForgetLocked(owner, name);
  // What became a matrix may have replaced another one.
  const bool makes_matrix =
      record.op == Op::kSpgemm || record.op == Op::kCopy || record.op == Op::kRename;
  if (makes_matrix && !record.keeps.empty()) ForgetLocked(record.tenant, record.keeps);
  if (!Computes(record.op)) return;
  auto of_owner = owners_.find(owner);
  if (of_owner == owners_.end()) of_owner = owners_.emplace(owner, OfOwner()).first;
  auto& [by_use, by_name] = of_owner->second;
  const auto found = by_name.find(name);
  if (found != by_name.end()) {
    by_use.splice(by_use.begin(), by_use, found->second);
  } else {
    by_use.emplace_front(name, OfMatrix());
    by_name.emplace(by_use.front().first, by_use.begin());
  }
  UseLocked(by_use.front().second, owner, record.tenant, now).Add(record, now);
  while (uses_ > kUses) ForgetMatrixLocked();
}

LiveRequests::Use& LiveRequests::UseLocked(OfMatrix& matrix, std::string_view owner,
                                           const std::string& by, Clock::time_point now) {
  const auto found = std::ranges::find(matrix, by, &Use::by);
  if (found != matrix.end()) return *found;
  if (by != owner) {
    const auto of_others = [&](const Use& use) { return use.by != owner; };
    auto others = matrix | std::views::filter(of_others);
    if (static_cast<size_t>(std::ranges::distance(others)) == kSharers) {
      matrix.erase(std::ranges::min_element(others, {}, &Use::used).base());
      --uses_;
    }
  }
  ++uses_;
  matrix.push_back({.by = by, .latencies = {}, .last = {}, .used = now, .halved = now});
  return matrix.back();
}

void LiveRequests::ForgetLocked(std::string_view owner, std::string_view name) {
  const auto of_owner = owners_.find(owner);
  if (of_owner == owners_.end()) return;
  auto& [by_use, by_name] = of_owner->second;
  const auto found = by_name.find(name);
  if (found == by_name.end()) return;
  // Its key is the name in the list.
  const auto entry = found->second;
  uses_ -= entry->second.size();
  by_name.erase(found);
  by_use.erase(entry);
  if (by_use.empty()) owners_.erase(of_owner);
}

void LiveRequests::ForgetMatrixLocked() {
  const auto most = std::ranges::max_element(
      owners_, {}, [](const auto& owner) { return owner.second.by_use.size(); });
  auto& [by_use, by_name] = most->second;
  uses_ -= by_use.back().second.size();
  by_name.erase(by_use.back().first);
  by_use.pop_back();
  if (by_use.empty()) owners_.erase(most);
}

LiveRequests::OfTenant& LiveRequests::TenantLocked(const std::string& tenant) {
  const auto found = tenants_.find(tenant);
  if (found != tenants_.end()) return *found->second;
  if (tenants_.size() >= kTenants) {
    tenants_.erase(std::ranges::min_element(tenants_, {},
                                            [](const auto& entry) { return entry.second->last; }));
  }
  return *tenants_.emplace(tenant, std::make_unique<OfTenant>()).first->second;
}

void LiveRequests::End(StageRecord record, Clock::time_point now) {
  if (IsStatusCall(record.op) && record.status.ok()) return;
  EndedRequest request = {std::chrono::system_clock::now(), std::move(record)};
  const StageRecord& ended = request.record;
  const MutexLock lock(mutex_);
  Count(all_, ended, now);
  OfTenant& of_tenant = TenantLocked(ended.tenant);
  of_tenant.last = now;
  Count(of_tenant.slots, ended, now);
  CountMatrix(ended, now);
  of_tenant.recent.push_front(std::move(request));
  if (of_tenant.recent.size() > kRecent) of_tenant.recent.pop_back();
}

std::vector<LivePoint> LiveRequests::Points(std::string_view tenant, Clock::time_point now) const {
  auto slots = std::make_unique<Slots>();
  {
    const MutexLock lock(mutex_);
    const auto found = tenants_.find(tenant);
    if (tenant.empty()) {
      *slots = all_;
    } else if (found != tenants_.end()) {
      *slots = found->second->slots;
    }
  }
  std::vector<LivePoint> points;
  points.reserve(kPoints);
  const int64_t last = StepOf(now);
  for (int64_t step = last - kPoints + 1; step <= last; ++step) {
    const Slot* slot = step < 0 ? nullptr : &(*slots)[static_cast<size_t>(step % kPoints)];
    if (slot == nullptr || slot->step != step) {
      points.emplace_back();
      continue;
    }
    points.push_back(slot->point);
    points.back().p50 = slot->latencies.Quantile(0.5);
    points.back().p99 = slot->latencies.Quantile(0.99);
  }
  return points;
}

MatrixUse LiveRequests::UseOf(std::string_view owner, std::string_view matrix, std::string_view by,
                              Clock::time_point now) const {
  std::vector<Use> uses;
  {
    const MutexLock lock(mutex_);
    const auto of_owner = owners_.find(owner);
    if (of_owner == owners_.end()) return {};
    const auto found = of_owner->second.by_name.find(matrix);
    if (found == of_owner->second.by_name.end()) return {};
    for (const Use& use : found->second->second) {
      if (by.empty() || use.by == by) uses.push_back(use);
    }
  }
  MatrixUse of;
  if (!by.empty() && !uses.empty()) {
    of.products = uses.front().last;
    of.transports = ByTransport(of.products);
  }
  std::map<int64_t, int> widths;
  for (const MatrixUse::Product& product : of.products) {
    // Of as many the wider one, which takes the time.
    if (product.k > 0 && ++widths[product.k] >= widths[of.k]) of.k = product.k;
  }
  Latencies<float> latencies;
  for (Use& use : uses) {
    if (now - use.used > kForgotten) continue;
    use.Pass(now);
    of.per_second += use.per_second;
    latencies.Add(use.latencies);
  }
  // What was long ago is no latency of today's.
  if (of.per_second < kResting) return of;
  of.p50 = latencies.Quantile(0.5);
  of.p99 = latencies.Quantile(0.99);
  return of;
}

std::vector<EndedRequest> LiveRequests::Recent(std::string_view tenant) const {
  std::vector<std::vector<EndedRequest>> of_each;
  {
    const MutexLock lock(mutex_);
    for (const auto& [name, of] : tenants_) {
      if (tenant.empty() || name == tenant)
        of_each.emplace_back(of->recent.begin(), of->recent.end());
    }
  }
  return FairShare(std::move(of_each), kRecent,
                   [](const EndedRequest& a, const EndedRequest& b) { return a.ended > b.ended; });
}

}  // namespace sparsed::server
