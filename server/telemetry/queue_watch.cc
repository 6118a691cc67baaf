#include "server/telemetry/queue_watch.h"

#include <fmt/format.h>

#include <utility>

#include "base/sleep.h"
#include "engine/engine.h"
#include "server/log/log.h"
#include "server/telemetry/sample.h"

namespace sparsed::server {

std::vector<QueueState> QueuesOf(engine::Engine& engine) {
  std::vector<QueueState> queues;
  const auto add = [&](DeviceId device) {
    queues.push_back({Name(device), engine.executor().queue_depth(device),
                      engine.executor().busy_seconds(device)});
  };
  add(DeviceId{});
  for (const auto& gpu : engine.gpus()) add(gpu->id());
  return queues;
}

std::vector<std::string> QueueStalls::Look(const std::vector<QueueState>& queues,
                                           Clock::time_point now) {
  std::vector<std::string> stalled;
  for (const QueueState& queue : queues) {
    Seen& seen = seen_.try_emplace(queue.device, Seen{queue.busy_seconds, now}).first->second;
    if (queue.waiting == 0 || queue.busy_seconds != seen.busy_seconds) {
      seen = {queue.busy_seconds, now};
    }
    if (queue.waiting > 0 && now - seen.moved >= patience_) stalled.push_back(queue.device);
  }
  return stalled;
}

QueueWatch::QueueWatch(Options options)
    : options_(std::move(options)), thread_([this](const std::stop_token& stop) { Run(stop); }) {}

void QueueWatch::Run(const std::stop_token& stop) {
  QueueStalls stalls(std::chrono::duration_cast<QueueStalls::Clock::duration>(options_.patience));
  while (SleepFor(options_.interval, stop)) {
    const std::vector<QueueState> queues = options_.look();
    std::map<std::string, bool> stalled;
    for (const QueueState& queue : queues) stalled[queue.device] = false;
    for (const std::string& device : stalls.Look(queues, QueueStalls::Clock::now())) {
      stalled[device] = true;
    }
    const std::string before = Reason();
    {
      const MutexLock lock(mutex_);
      stalled_ = std::move(stalled);
    }
    const std::string reason = Reason();
    if (reason == before) continue;
    if (reason.empty()) {
      Log(LogLevel::kInfo, "the queues move again");
    } else {
      Log(LogLevel::kError, "stalled", {{"message", reason}});
    }
    options_.changed();
  }
}

std::string QueueWatch::Reason() const {
  const MutexLock lock(mutex_);
  std::string devices;
  for (const auto& [device, stalled] : stalled_) {
    if (stalled) devices += (devices.empty() ? "" : " and ") + device;
  }
  if (devices.empty()) return devices;
  return fmt::format("requests wait for {}, where nothing has run for {} seconds", devices,
                     options_.patience.count());
}

prometheus::MetricFamily QueueWatch::Metric() const {
  prometheus::MetricFamily family = {"sparsed_queue_stalled",
                                     "1 while requests wait and nothing has run for long",
                                     prometheus::MetricType::Gauge,
                                     {}};
  const MutexLock lock(mutex_);
  for (const auto& [device, stalled] : stalled_) {
    family.metric.push_back(Sample(stalled ? 1 : 0, {{"device", device}}));
  }
  return family;
}

}  // namespace sparsed::server
