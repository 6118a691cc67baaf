#include "server/telemetry/request_feed.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "server/telemetry/live_requests.h"

namespace sparsed::server {

size_t BytesOf(const EndedRequest& request) {
  const StageRecord& record = request.record;
  return sizeof(request) + record.tenant.size() + record.caller.size() + record.id.size() +
         record.trace.trace_id.size() + record.trace.parent_id.size() + record.trace.state.size() +
         record.keeps.size() + record.subject.size() + record.plan.size() +
         record.parameters.size() + record.status.message().size();
}

void WaitingRequests::Add(std::shared_ptr<const EndedRequest> request) {
  const size_t bytes = BytesOf(*request);
  if (bytes_ + bytes > kMostBytes) {
    ++left_out_;
    return;
  }
  bytes_ += bytes;
  requests_.push_back(std::move(request));
}

std::pair<std::vector<std::shared_ptr<const EndedRequest>>, int64_t> WaitingRequests::Take(
    size_t most) {
  std::vector<std::shared_ptr<const EndedRequest>> taken;
  while (!requests_.empty() && taken.size() < most) {
    bytes_ -= BytesOf(*requests_.front());
    taken.push_back(std::move(requests_.front()));
    requests_.pop_front();
  }
  return {std::move(taken), std::exchange(left_out_, 0)};
}

absl::Status RequestFeed::Add(std::shared_ptr<Listener> listener, const std::string& tenant,
                              bool all) {
  const MutexLock lock(mutex_);
  const auto of_tenant =
      static_cast<size_t>(std::ranges::count(listening_, tenant, &Listening::tenant));
  if (of_tenant >= kMostOfTenant) {
    return absl::ResourceExhaustedError(fmt::format(
        "the tenant has {} calls that watch requests, the most that there may be at once",
        of_tenant));
  }
  listening_.push_back({std::move(listener), tenant, all});
  count_ = listening_.size();
  return absl::OkStatus();
}

void RequestFeed::Remove(const Listener* listener) {
  const MutexLock lock(mutex_);
  std::erase_if(listening_, [&](const Listening& one) { return one.listener.get() == listener; });
  count_ = listening_.size();
}

void RequestFeed::Tell(const StageRecord& record) {
  if (count_.load(std::memory_order_relaxed) == 0 || IsStatusCall(record.op)) return;
  const auto request =
      std::make_shared<const EndedRequest>(EndedRequest{std::chrono::system_clock::now(), record});
  std::vector<std::shared_ptr<Listener>> idle;
  {
    const MutexLock lock(mutex_);
    for (const Listening& one : listening_) {
      if (!one.all && one.tenant != record.tenant) continue;
      if (one.listener->Take(request)) idle.push_back(one.listener);
    }
  }
  for (const std::shared_ptr<Listener>& listener : idle) listener->Proceed();
}

}  // namespace sparsed::server
