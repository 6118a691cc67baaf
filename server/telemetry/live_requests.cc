#include "server/telemetry/live_requests.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "engine/catalog/shares.h"

namespace sparsed::server {
namespace {

/// Of what has no requests any more.
constexpr double kRateHalfLife = 30, kLatencyHalfLife = 60;  // seconds
/// A matrix that was not used for so long gives its place to another.
constexpr auto kForgotten = std::chrono::minutes(5);

int LiveOpOf(Op op) { return std::min(static_cast<int>(op), kLiveOps - 1); }
static_assert(static_cast<int>(Op::kSpmm) == 0 && static_cast<int>(Op::kChain) == kLiveOps - 2);
bool Computes(Op op) { return LiveOpOf(op) < kLiveOps - 1; }

bool IsServersFault(absl::StatusCode code) {
  return code == absl::StatusCode::kInternal || code == absl::StatusCode::kUnknown ||
         code == absl::StatusCode::kDataLoss || code == absl::StatusCode::kUnavailable;
}

double Seconds(uint64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

std::string KeyOf(std::string_view tenant, std::string_view matrix) {
  std::string key(tenant);
  key += engine::kOwnerMark;
  key += matrix;
  return key;
}

}  // namespace

bool IsStatusCall(Op op) {
  switch (op) {
    case Op::kGet:
    case Op::kList:
    case Op::kWatch:
    case Op::kListMeasurements:
    case Op::kListBuffers:
    case Op::kGetServerInfo:
    case Op::kGetStats:
    case Op::kListTenants:
    case Op::kListSlow:
    case Op::kWatchRequests:
      return true;
    default:
      return false;
  }
}

std::string_view LiveOpName(int live_op) {
  return live_op == kLiveOps - 1 ? "other" : Name(static_cast<Op>(live_op));
}

void LiveRequests::OfMatrix::Pass(Clock::time_point now) {
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
  if (!Computes(record.op) || !record.status.ok()) return;
  const bool others = record.subject.find(engine::kOwnerMark) != std::string::npos;
  const std::string key = others ? record.subject : KeyOf(record.tenant, record.subject);
  auto found = of_matrices_.find(key);
  if (found == of_matrices_.end()) {
    if (of_matrices_.size() >= kMatrices) {
      // One of a few, so that a full table costs little.
      auto idle = of_matrices_.begin();
      for (int i = 0; i < 8 && idle != of_matrices_.end(); ++i, ++idle) {
        if (now - idle->second.used > kForgotten) break;
      }
      if (idle == of_matrices_.end() || now - idle->second.used <= kForgotten) return;
      of_matrices_.erase(idle);
    }
    found = of_matrices_.try_emplace(key).first;
    found->second.used = found->second.halved = now;
  }
  OfMatrix& use = found->second;
  use.Pass(now);
  // So that a steady rate comes out as what it is.
  use.per_second += std::log(2) / kRateHalfLife;
  use.latencies.Add(Seconds(record.total_ns));
}

LiveRequests::Slots* LiveRequests::SlotsLocked(const std::string& tenant) {
  const auto found = of_tenants_.find(tenant);
  if (found != of_tenants_.end()) return found->second.get();
  if (of_tenants_.size() >= kTenants) return nullptr;
  return of_tenants_.emplace(tenant, std::make_unique<Slots>()).first->second.get();
}

void LiveRequests::End(StageRecord record, Clock::time_point now) {
  if (IsStatusCall(record.op) && record.status.ok()) return;
  EndedRequest request = {std::chrono::system_clock::now(), std::move(record)};
  const StageRecord& ended = request.record;
  const MutexLock lock(mutex_);
  Count(all_, ended, now);
  if (Slots* const of_tenant = SlotsLocked(ended.tenant)) Count(*of_tenant, ended, now);
  CountMatrix(ended, now);
  recent_.push_front(std::move(request));
  if (recent_.size() > kRecent) recent_.pop_back();
}

std::vector<LivePoint> LiveRequests::Points(std::string_view tenant, Clock::time_point now) const {
  auto slots = std::make_unique<Slots>();
  {
    const MutexLock lock(mutex_);
    const auto found = of_tenants_.find(tenant);
    if (tenant.empty()) {
      *slots = all_;
    } else if (found != of_tenants_.end()) {
      *slots = *found->second;
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

MatrixUse LiveRequests::UseOf(std::string_view tenant, std::string_view matrix,
                              Clock::time_point now) const {
  const std::string key = KeyOf(tenant, matrix);
  std::optional<OfMatrix> use;
  {
    const MutexLock lock(mutex_);
    const auto found = of_matrices_.find(key);
    if (found != of_matrices_.end()) use = found->second;
  }
  if (!use.has_value() || now - use->used > kForgotten) return {};
  use->Pass(now);
  return {use->per_second, use->latencies.Quantile(0.5), use->latencies.Quantile(0.99)};
}

std::vector<EndedRequest> LiveRequests::Recent(std::string_view tenant) const {
  const MutexLock lock(mutex_);
  std::vector<EndedRequest> recent;
  for (const EndedRequest& request : recent_) {
    if (tenant.empty() || request.record.tenant == tenant) recent.push_back(request);
  }
  return recent;
}

}  // namespace sparsed::server
