#include "server/rpc/live_streams.h"

#include <algorithm>

#include "server/security/access.h"
#include "server/telemetry/call_origin.h"

namespace sparsed::server {
namespace {

using Seconds = std::chrono::duration<double>;

/// What clients get once the server shuts down: a word from time to time.
constexpr Seconds kDrainPatience(1);
constexpr Seconds kShortestTick(0.01);
constexpr Seconds kLongestTick(1);
/// Ticks in a patience, so that it is exceeded by no more than that part.
constexpr double kTicks = 10;

absl::Status Over(bool draining, std::string_view what, Seconds limit, std::string_view flag) {
  if (draining) return absl::UnavailableError("the server is shutting down");
  return absl::DeadlineExceededError(fmt::format("{} for {:g} s ({})", what, limit.count(), flag));
}

}  // namespace

absl::Status Patience::NothingReceived(std::string_view what) const {
  return Over(draining, what, receive, "--receive-idle");
}

absl::Status Patience::NothingTaken(std::string_view what) const {
  return Over(draining, what, send, "--send-idle");
}

LiveStreams::LiveStreams(const Config& config, Access& access)
    : receive_(config.receive_idle_seconds),
      send_(config.send_idle_seconds),
      access_(access),
      thread_([this] { Run(); }) {}

LiveStreams::~LiveStreams() {
  {
    const MutexLock lock(mutex_);
    closing_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

bool LiveStreams::Add(LiveStream* stream) {
  const MutexLock lock(mutex_);
  if (!draining_) streams_.insert(stream);
  return !draining_;
}

void LiveStreams::Remove(LiveStream* stream) {
  const MutexLock lock(mutex_);
  streams_.erase(stream);
}

void LiveStreams::Drain() {
  {
    const MutexLock lock(mutex_);
    draining_ = true;
    for (LiveStream* stream : streams_) stream->OnDrain();
    TickLocked();
  }
  changed_.NotifyAll();
}

void LiveStreams::MatrixChanged(const std::string& tenant, const std::string& name) {
  const MutexLock lock(mutex_);
  for (LiveStream* stream : streams_) stream->OnMatrixChanged(tenant, name);
}

InFlightTable LiveStreams::InFlight() const {
  InFlightTable table;
  const MutexLock lock(mutex_);
  for (LiveStream* stream : streams_) stream->Count(table);
  return table;
}

void LiveStreams::TickLocked() {
  const Patience patience = {.now = Patience::Clock::now(),
                             .receive = draining_ ? std::min(receive_, kDrainPatience) : receive_,
                             .send = draining_ ? std::min(send_, kDrainPatience) : send_,
                             .draining = draining_};
  for (LiveStream* stream : streams_) {
    stream->OnTick(patience);
    if (!stream->caller().has_value()) continue;
    const std::shared_ptr<const CallOrigin>& origin = stream->caller()->origin;
    // Once refused it stays so: it is counted and logged once.
    if (stream->refused_.ok()) {
      stream->refused_ = access_.CheckAt("a stream", *stream->caller(),
                                         origin == nullptr ? "" : origin->request_id);
    }
    if (!stream->refused_.ok()) stream->OnRefused(stream->refused_);
  }
}

void LiveStreams::Run() {
  const MutexLock lock(mutex_);
  while (!closing_) {
    const Seconds shorter =
        std::min(draining_ ? kDrainPatience : kLongestTick * kTicks, std::min(receive_, send_));
    changed_.WaitFor(mutex_, std::clamp(shorter / kTicks, kShortestTick, kLongestTick));
    if (!closing_) TickLocked();
  }
}

}  // namespace sparsed::server
