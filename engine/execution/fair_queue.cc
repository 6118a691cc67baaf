#include "engine/execution/fair_queue.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace sparsed::engine {
namespace {

double Sum(const std::array<double, FairEntry::kPriorities>& seconds) {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

size_t LevelOf(const FairEntry& entry) {
  return static_cast<size_t>(std::clamp(entry.priority, 0, FairEntry::kPriorities - 1));
}

}  // namespace

double FairQueue::Tenant::all_rest() const {
  return Sum(rest[kShort]) + Sum(rest[kLong]) + running_rest;
}

void FairQueue::SetWeights(TenantWeights weights) {
  weights_ = std::move(weights);
  // What they were charged stays as it was: from now on their time runs at the new rate.
  for (auto& [name, tenant] : tenants_) tenant.weight = weights_.Of(name);
}

FairQueue::Tenant& FairQueue::TenantOf(std::string_view name) {
  if (const auto found = tenants_.find(name); found != tenants_.end()) return found->second;
  if (tenants_.size() >= sweep_at_) Sweep();
  Tenant& tenant = tenants_[std::string(name)];
  tenant.name = name;
  tenant.weight = weights_.Of(name);
  tenant.start = now_;
  return tenant;
}

void FairQueue::Sweep() {
  std::erase_if(tenants_, [&](const auto& entry) {
    const Tenant& tenant = entry.second;
    return tenant.turns == 0 && !tenant.waits() && tenant.start <= now_;
  });
  sweep_at_ = std::max<size_t>(64, 2 * tenants_.size());
}

void FairQueue::Push(std::shared_ptr<FairEntry> entry) {
  Tenant& tenant = TenantOf(entry->tenant_name);
  if (entry->order_ == 0) entry->order_ = next_order_++;
  const Flow flow = FlowOf(entry->is_long);
  if (tenant.waits()) {
    Leave(tenant);
  } else {
    tenant.start = std::max(tenant.start, now_);
  }
  // As among tenants: what had nothing to do has saved up nothing.
  if (tenant.waiting[flow].empty()) {
    tenant.used[flow] = std::max(tenant.used[flow], tenant.used_now);
  }
  tenant.rest[flow][LevelOf(*entry)] += entry->rest_seconds;
  const auto key = KeyOf(*entry);
  tenant.waiting[flow].emplace(key, std::move(entry));
  Enter(tenant);
  ++sizes_[flow];
}

bool FairQueue::Remove(const FairEntry& entry) {
  const auto tenant = tenants_.find(entry.tenant_name);
  if (tenant == tenants_.end()) return false;
  const Flow flow = FlowOf(entry.is_long);
  const auto found = tenant->second.waiting[flow].find(KeyOf(entry));
  if (found == tenant->second.waiting[flow].end()) return false;
  Leave(tenant->second);
  Take(tenant->second, flow, found);
  if (tenant->second.waits()) Enter(tenant->second);
  return true;
}

std::shared_ptr<FairEntry> FairQueue::Take(Tenant& tenant, Flow flow, Waiting::iterator entry) {
  std::shared_ptr<FairEntry> taken = std::move(entry->second);
  tenant.waiting[flow].erase(entry);
  double& rest = tenant.rest[flow][LevelOf(*taken)];
  // Without what rounding left of those that are gone.
  rest = tenant.waiting[flow].empty() ? 0 : std::max(0.0, rest - taken->rest_seconds);
  --sizes_[flow];
  return taken;
}

FairQueue::Flow FairQueue::NextFlow(const Tenant& tenant) const {
  const Waiting& brief = tenant.waiting[kShort];
  const Waiting& lengthy = tenant.waiting[kLong];
  if (brief.empty()) return kLong;
  if (lengthy.empty()) return kShort;
  const int of_brief = PriorityOf(brief.begin()->first);
  const int of_lengthy = PriorityOf(lengthy.begin()->first);
  if (of_brief != of_lengthy) return of_brief > of_lengthy ? kShort : kLong;
  return tenant.used[kShort] <= tenant.used[kLong] ? kShort : kLong;
}

void FairQueue::Move(Tenant& tenant, Flow flow, double seconds) {
  const bool waits = tenant.waits();
  if (waits) Leave(tenant);
  tenant.start += seconds / tenant.weight;
  tenant.used[flow] += seconds;
  if (waits) Enter(tenant);
}

std::shared_ptr<FairEntry> FairQueue::Pop(Turn& turn) {
  Tenant& tenant = *order_.begin()->tenant;
  return Begin(tenant, NextFlow(tenant), turn);
}

bool FairQueue::MayGoBeside(const Tenant& tenant, std::span<const Turn* const> beside) const {
  if (beside.empty()) return true;
  const int priority = PriorityOf(tenant.waiting[kShort].begin()->first);
  return std::ranges::any_of(beside, [&](const Turn* turn) {
    if (turn->tenant != &tenant) return tenant.position() <= turn->tenant->position();
    if (priority != turn->priority) return priority > turn->priority;
    return tenant.used[kShort] <= tenant.used[kLong] - tenant.ahead[kLong];
  });
}

FairQueue::Tenant* FairQueue::FindShort(std::span<const Turn* const> beside, bool known) const {
  if (sizes_[kShort] == 0) return nullptr;
  const auto found = std::ranges::find_if(order_, [&](const Place& place) {
    const Waiting& waiting = place.tenant->waiting[kShort];
    if (waiting.empty() || (known && waiting.begin()->second->next_seconds <= 0)) return false;
    return MayGoBeside(*place.tenant, beside);
  });
  return found == order_.end() ? nullptr : found->tenant;
}

const FairEntry* FairQueue::NextShort(std::span<const Turn* const> beside, bool known) const {
  const Tenant* const tenant = FindShort(beside, known);
  return tenant == nullptr ? nullptr : tenant->waiting[kShort].begin()->second.get();
}

std::shared_ptr<FairEntry> FairQueue::PopShort(Turn& turn, std::span<const Turn* const> beside,
                                               bool known) {
  Tenant* const tenant = FindShort(beside, known);
  return tenant == nullptr ? nullptr : Begin(*tenant, kShort, turn);
}

FairQueue::Tenant* FairQueue::FindLong() const {
  if (sizes_[kLong] == 0) return nullptr;
  const double least = order_.begin()->start;
  const auto found = std::ranges::find_if(order_, [&](const Place& place) {
    return (place.start - least) * place.tenant->weight <= kMostAheadSeconds &&
           NextFlow(*place.tenant) == kLong;
  });
  return found == order_.end() ? nullptr : found->tenant;
}

std::shared_ptr<FairEntry> FairQueue::PopLong(Turn& turn) {
  return Begin(*FindLong(), kLong, turn);
}

void FairQueue::MoveNow() {
  double now = std::numeric_limits<double>::infinity();
  for (const Tenant* const tenant : running_) now = std::min(now, tenant->position());
  if (!order_.empty()) now = std::min(now, order_.begin()->start);
  now_ = std::max(now_, now);
}

std::shared_ptr<FairEntry> FairQueue::Begin(Tenant& tenant, Flow flow, Turn& turn) {
  Leave(tenant);
  tenant.last_turn = ++turns_;
  std::shared_ptr<FairEntry> entry = Take(tenant, flow, tenant.waiting[flow].begin());
  if (tenant.waits()) Enter(tenant);
  if (tenant.turns++ == 0) running_.push_back(&tenant);
  MoveNow();
  tenant.used_now = std::max(tenant.used_now, tenant.used[flow] - tenant.ahead[flow]);
  turn = Turn();
  turn.tenant = &tenant;
  turn.priority = entry->priority;
  turn.is_long = entry->is_long;
  turn.charged = entry->next_seconds;
  turn.rest = entry->rest_seconds;
  tenant.running_rest += turn.rest;
  tenant.ahead[flow] += turn.charged;
  Move(tenant, flow, turn.charged);
  return entry;
}

std::vector<std::shared_ptr<FairEntry>> FairQueue::PopWith(
    Turn& turn, size_t most, const std::function<bool(const FairEntry&)>& joins) {
  std::vector<std::shared_ptr<FairEntry>> taken;
  Tenant& tenant = *turn.tenant;
  const Flow flow = FlowOf(turn.is_long);
  Waiting& waiting = tenant.waiting[flow];
  if (waiting.empty()) return taken;
  Leave(tenant);
  double seconds = 0;
  auto next = waiting.lower_bound({-turn.priority, 0, nullptr});
  for (size_t asked = 0; next != waiting.end() && asked < most; ++asked) {
    const auto entry = next++;
    if (PriorityOf(entry->first) != turn.priority) break;
    if (!joins(*entry->second)) continue;
    taken.push_back(Take(tenant, flow, entry));
    seconds += taken.back()->next_seconds;
    turn.rest += taken.back()->rest_seconds;
    tenant.running_rest += taken.back()->rest_seconds;
  }
  if (tenant.waits()) Enter(tenant);
  turn.charged += seconds;
  tenant.ahead[flow] += seconds;
  Move(tenant, flow, seconds);
  return taken;
}

void FairQueue::Ran(Turn& turn, double seconds) {
  Tenant& tenant = *turn.tenant;
  const Flow flow = FlowOf(turn.is_long), other = FlowOf(!turn.is_long);
  const double ahead = turn.ahead();
  turn.ran += seconds;
  tenant.had += seconds;
  had_ += seconds;
  const double done = std::min(turn.rest, seconds);
  turn.rest -= done;
  tenant.running_rest -= done;
  if (turn.ran > turn.charged) {
    Move(tenant, flow, turn.ran - turn.charged);
    turn.charged = turn.ran;
  }
  tenant.ahead[flow] += turn.ahead() - ahead;
  MoveNow();
  double used = tenant.used[flow] - tenant.ahead[flow];
  if (!tenant.waiting[other].empty()) used = std::min(used, tenant.used[other]);
  tenant.used_now = std::max(tenant.used_now, used);
}

double FairQueue::HadBy(const FairEntry& entry) const {
  const auto tenant = tenants_.find(entry.tenant_name);
  return tenant == tenants_.end() ? 0 : tenant->second.had;
}

bool FairQueue::Passes(const Turn& turn) const {
  if (order_.empty()) return false;
  const Tenant& own = *turn.tenant;
  const double start = own.start - turn.ahead() / own.weight;
  const bool goes_on = turn.is_long && turn.ran < kLongTurnSeconds;
  for (const Place& place : order_) {
    if (place.start >= start) break;
    if (place.tenant != &own && !(goes_on && NextFlow(*place.tenant) == kLong)) return true;
  }
  if (!own.waits()) return false;
  const Flow flow = NextFlow(own);
  const int priority = PriorityOf(own.waiting[flow].begin()->first);
  if (priority != turn.priority) return priority > turn.priority;
  // Of one flow, what runs came before.
  return flow != FlowOf(turn.is_long) && own.used[flow] <= own.used[FlowOf(turn.is_long)];
}

void FairQueue::End(Turn& turn) {
  Tenant& tenant = *turn.tenant;
  const Flow flow = FlowOf(turn.is_long);
  tenant.ahead[flow] -= turn.ahead();
  Move(tenant, flow, turn.ran - turn.charged);
  if (--tenant.turns == 0) {
    std::erase(running_, &tenant);
    tenant.ahead = {};  // without what rounding left
  }
  tenant.running_rest = tenant.turns == 0 ? 0 : tenant.running_rest - turn.rest;
  turn = Turn();
}

void FairQueue::Charge(std::string_view tenant, double seconds) {
  Tenant& charged = TenantOf(tenant);
  if (!charged.waits()) charged.start = std::max(charged.start, now_);
  Move(charged, kShort, seconds);
}

double FairQueue::SecondsUntilEnd(const FairEntry& entry, int slots) const {
  const auto found = tenants_.find(entry.tenant_name);
  const Flow flow = FlowOf(entry.is_long);
  const double weight = weights_.Of(entry.tenant_name);
  double own = entry.rest_seconds;
  if (found != tenants_.end()) {
    const Tenant& tenant = found->second;
    const auto& rest = tenant.rest[flow];
    own += std::accumulate(rest.begin() + static_cast<std::ptrdiff_t>(LevelOf(entry)), rest.end(),
                           0.0);
    // On another worker slot it does not wait for it.
    if (entry.is_long && slots == 1) own += tenant.running_rest;
  }
  // Until its tenant has been given that, others have what their weights give them, or all they
  // wait for.
  double all = own;
  for (const auto& [name, other] : tenants_) {
    if (name == entry.tenant_name || (other.turns == 0 && !other.waits())) continue;
    all += std::min(other.all_rest(), own * other.weight / weight);
  }
  return std::max(entry.rest_seconds, all / std::max(slots, 1));
}

}  // namespace sparsed::engine
