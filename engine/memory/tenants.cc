#include "engine/memory/tenants.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/retry.h"

namespace sparsed::engine {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

struct Words {
  std::string_view name;
  std::string_view things;  ///< what is counted
  std::string_view help;    ///< what to do; empty: wait, which helps
};

const Words& WordsOf(Quota quota) {
  static constexpr std::array<Words, kQuotas> kWords = {{
      {"disk_bytes", "bytes on disk", "delete matrices or durable buffers"},
      {"host_bytes", "bytes of host memory", "delete matrices or buffers"},
      {"device_bytes", "bytes of a GPU's memory", "delete buffers, or let shared memory go"},
      {"matrices", "matrices", "delete some"},
      {"buffers", "buffers", "delete some"},
      {"regions", "regions of shared memory", "let some go"},
      {"connections", "connections", "close some"},
      {"streams", "streams", "end some"},
      {"requests", "requests in flight", ""},
      {"queued", "requests that wait or are computed", ""},
      {"preparations", "preparations that wait or are under way", ""},
      {"requests_per_second", "requests a second", ""},
  }};
  return kWords[static_cast<size_t>(quota)];
}

/// Begins one that takes `interval`, if all that began is over a second after `now`; else the time
/// until it may. `begun`: see Tenant.
int64_t Begin(std::atomic<int64_t>& begun, int64_t now, int64_t interval) {
  int64_t before = begun;
  while (true) {
    const int64_t after = std::max(before, now) + interval;
    if (after > now + std::max(kSecond, interval)) return after - now - std::max(kSecond, interval);
    if (begun.compare_exchange_weak(before, after)) return 0;
  }
}

int64_t Nanoseconds(Tenant::Clock::time_point now) {
  return std::chrono::nanoseconds(now.time_since_epoch()).count();
}

}  // namespace

std::string_view Name(Quota quota) { return WordsOf(quota).name; }

absl::Status Tenant::Beyond(Quota quota, int64_t used, int64_t amount) const {
  const Words& words = WordsOf(quota);
  absl::Status refused = absl::ResourceExhaustedError(fmt::format(
      "tenant '{}' has {} of the {} {} that it may have, and this takes {} more (quota {}); {}",
      name_, used, count(quota).hard.load(), words.things, amount, words.name,
      words.help.empty() ? "wait for some to end" : words.help));
  return words.help.empty() ? RetryLater(std::move(refused)) : refused;
}

absl::Status Tenant::Refused(Quota quota, int64_t used, int64_t amount) {
  CountRefusal(quota);
  return Beyond(quota, used, amount);
}

absl::Status Tenant::CountBelowHard(Quota quota, int64_t amount, int64_t more, int64_t& used) {
  Count& count = this->count(quota);
  used = count.used;
  do {
    if (more > 0 && used + more > count.hard) return Beyond(quota, used, more);
  } while (!count.used.compare_exchange_weak(used, used + amount));
  return absl::OkStatus();
}

absl::Status Tenant::TryToTake(Quota quota, int64_t amount, int64_t instead_of) {
  Count& count = this->count(quota);
  const int64_t more = amount - instead_of;
  int64_t used = 0;
  if (absl::Status s = CountBelowHard(quota, amount, more, used); !s.ok()) return s;
  if (quota == Quota::kRequests) used -= status_calls_;  // as used() has it
  if (used <= count.soft && used + more > count.soft) ++count.warned;
  return absl::OkStatus();
}

absl::Status Tenant::Take(Quota quota, int64_t amount, int64_t instead_of) {
  absl::Status taken = TryToTake(quota, amount, instead_of);
  if (!taken.ok()) CountRefusal(quota);
  return taken;
}

absl::StatusOr<TenantHold> Tenant::Hold(Quota quota, int64_t amount, int64_t instead_of) {
  if (absl::Status status = Take(quota, amount, instead_of); !status.ok()) return status;
  return TenantHold(this, [tenant = shared_from_this(), quota, amount](const void*) {
    tenant->Give(quota, amount);
  });
}

absl::StatusOr<TenantHold> Tenant::HoldStatusCall() {
  int64_t used = 0;
  if (absl::Status status = CountBelowHard(Quota::kRequests, 1, 1, used); !status.ok()) {
    CountRefusal(Quota::kRequests);
    return status;
  }
  ++status_calls_;
  return TenantHold(this, [tenant = shared_from_this()](const void*) {
    --tenant->status_calls_;
    tenant->Give(Quota::kRequests);
  });
}

TenantHold Tenant::HoldAnyway(Quota quota, int64_t amount) {
  count(quota).used += amount;
  return TenantHold(this, [tenant = shared_from_this(), quota, amount](const void*) {
    tenant->Give(quota, amount);
  });
}

absl::Status Tenant::Check(Quota quota, int64_t amount, int64_t instead_of) {
  const int64_t used = count(quota).used;
  if (amount <= instead_of || used + amount - instead_of <= count(quota).hard) {
    return absl::OkStatus();
  }
  return Refused(quota, used, amount - instead_of);
}

absl::Status Tenant::CheckUse(Quota quota, int64_t used, int64_t amount) {
  Count& count = this->count(quota);
  if (used + amount > count.hard) return Refused(quota, used, amount);
  if (used <= count.soft && used + amount > count.soft) ++count.warned;
  return absl::OkStatus();
}

absl::Status Tenant::TakeRequest(Clock::time_point now) {
  Count& count = this->count(Quota::kRequestsPerSecond);
  const int64_t hard = count.hard, soft = count.soft;
  if (hard == kNoLimit && soft == kNoLimit) return absl::OkStatus();
  const int64_t ns = Nanoseconds(now);
  if (soft != kNoLimit && soft > 0 && Begin(begun_soft_, ns, kSecond / soft) > 0) ++count.warned;
  if (hard == kNoLimit) return absl::OkStatus();
  const int64_t wait = hard > 0 ? Begin(begun_hard_, ns, kSecond / hard) : kSecond;
  if (wait == 0) return absl::OkStatus();
  ++count.refused;
  return RetryLater(
      absl::ResourceExhaustedError(fmt::format(
          "tenant '{}' has begun {} request{} within a second, and may begin {} (quota {}); wait",
          name_, hard, hard == 1 ? "" : "s", hard, Name(Quota::kRequestsPerSecond))),
      std::chrono::milliseconds(wait / 1'000'000 + 1));
}

absl::Status Tenant::TakeStatusCall(Clock::time_point now) {
  return TakeApart(begun_status_calls_, kStatusCalls,
                   fmt::format("begun {} status calls or streams", kStatusCalls), now);
}

absl::Status Tenant::TakeCarrier(Clock::time_point now) {
  return TakeApart(begun_carriers_, kCarriers, fmt::format("opened {} carriers", kCarriers), now);
}

absl::Status Tenant::TakeApart(std::atomic<int64_t>& begun, int64_t each, std::string_view did,
                               Clock::time_point now) {
  Count& count = this->count(Quota::kRequestsPerSecond);
  const int64_t hard = count.hard;
  if (hard == kNoLimit) return absl::OkStatus();
  if (hard <= 0) return TakeRequest(now);  // nor may it look
  const int64_t wait = Begin(begun, Nanoseconds(now), kSecond / hard / each);
  if (wait == 0) return absl::OkStatus();
  ++count.refused;
  return RetryLater(
      absl::ResourceExhaustedError(fmt::format(
          "tenant '{}' has {} within a second for each of the {} requests that it may begin (quota "
          "{}); wait",
          name_, did, hard, Name(Quota::kRequestsPerSecond))),
      std::chrono::milliseconds(wait / 1'000'000 + 1));
}

int64_t Tenant::used(Quota quota) const {
  if (quota == Quota::kRequests) {
    return std::max<int64_t>(0, count(quota).used - status_calls_);
  }
  if (quota != Quota::kRequestsPerSecond) return count(quota).used;
  const int64_t hard = count(quota).hard, soft = count(quota).soft;
  const bool by_hard = hard != kNoLimit && hard > 0;
  if (!by_hard && (soft == kNoLimit || soft <= 0)) return 0;  // nobody counts
  const int64_t interval = kSecond / (by_hard ? hard : soft);
  const int64_t begun = by_hard ? begun_hard_ : begun_soft_;
  return std::max<int64_t>(0, begun - Nanoseconds(Clock::now())) / std::max<int64_t>(interval, 1);
}

QuotaLimit Tenant::limit(Quota quota) const { return {count(quota).soft, count(quota).hard}; }

void Tenant::SetLimits(const TenantLimits& limits) {
  weight_ = limits.weight;
  for (int i = 0; i < kQuotas; ++i) {
    counts_[static_cast<size_t>(i)].soft = limits.limits[static_cast<size_t>(i)].soft;
    counts_[static_cast<size_t>(i)].hard = limits.limits[static_cast<size_t>(i)].hard;
  }
}

Tenant& Tenants::Of(std::string_view name) {
  const MutexLock lock(mutex_);
  const auto known = tenants_.find(name);
  if (known != tenants_.end()) return *known->second;
  auto made = std::make_shared<Tenant>(name);
  made->SetLimits(LimitsOf(name));
  return *tenants_.emplace(std::string(name), std::move(made)).first->second;
}

const TenantLimits& Tenants::LimitsOf(std::string_view name) const {
  const auto named = named_.find(name);
  return named == named_.end() ? others_ : named->second;
}

void Tenants::SetLimits(std::map<std::string, TenantLimits, std::less<>> named,
                        TenantLimits others) {
  const MutexLock lock(mutex_);
  named_ = std::move(named);
  others_ = others;
  for (const auto& [name, limits] : named_) {
    std::shared_ptr<Tenant>& tenant = tenants_[name];
    if (tenant == nullptr) tenant = std::make_shared<Tenant>(name);
  }
  for (const auto& [name, tenant] : tenants_) tenant->SetLimits(LimitsOf(name));
}

std::vector<std::shared_ptr<Tenant>> Tenants::All() const {
  const MutexLock lock(mutex_);
  std::vector<std::shared_ptr<Tenant>> all;
  for (const auto& [name, tenant] : tenants_) all.push_back(tenant);
  return all;
}

}  // namespace sparsed::engine
