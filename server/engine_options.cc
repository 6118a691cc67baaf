#include "server/engine_options.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <vector>

#include "kernels/device_id.h"

namespace sparsed::server {

int64_t ConnectionMemory(const Config& config) {
  return config.connection_memory_bytes > 0 ? config.connection_memory_bytes
                                            : config.host_memory_bytes / 2;
}

engine::EngineOptions ToEngineOptions(const Config& config) {
  engine::EngineOptions options;
  options.data_dir = config.data_dir;
  options.host_memory_bytes = config.engine_memory_bytes();
  options.preparation_memory_bytes =
      std::min(config.preparation_memory_bytes, config.engine_memory_bytes());
  std::vector<int> gpus;
  for (const std::string& name : config.devices) {
    const std::optional<DeviceId> device = ParseDeviceId(name);
    if (!device || device->kind != DeviceKind::kCuda) continue;
    if (std::ranges::find(gpus, device->ordinal) == gpus.end()) gpus.push_back(device->ordinal);
  }
  options.gpu_required = !gpus.empty();
  if (options.gpu_required) options.gpu_ordinals = gpus;
  const bool automatic = std::ranges::find(config.devices, "auto") != config.devices.end();
  if (options.gpu_required || automatic) {
    options.gpu = engine::DeviceOptions{.memory_bytes = config.device_memory_bytes,
                                        .staging_bytes = config.staging_memory_bytes};
  }
  options.dense.time_to_live = std::chrono::duration_cast<engine::DenseClock::duration>(
      std::chrono::duration<double>(config.buffer_time_to_live_seconds));
  options.dense.tenant_bytes = config.buffer_memory_bytes;
  // Of a server that asks nobody who he is, all is one tenant's.
  options.catalog.share_patterns = config.share_patterns || config.access_file.empty();
  options.scrub_interval_seconds = config.scrub_interval_seconds;
  options.past_measurement_bytes = config.past_measurement_bytes;
  options.execution.slots = config.worker_slots;
  options.execution.threads_per_slot = std::max(1, config.threads / config.worker_slots);
  options.execution.max_queued = config.max_queued;
  options.execution.batch_wait = std::chrono::microseconds(config.batch_wait_microseconds);
  // A client that reads slowly makes its SpGEMM pause before its connection's share is used up.
  options.execution.block_credit_bytes =
      std::min(options.execution.block_credit_bytes, ConnectionMemory(config) / 4);
  options.preparation.enabled = config.preparation_workers > 0;
  options.preparation.workers = std::max(1, config.preparation_workers);
  options.preparation.threads_per_worker = config.preparation_threads;
  options.preparation.seconds = config.preparation_seconds;
  options.preparation.expected_requests = static_cast<double>(config.expected_requests);
  options.models = config.models != "off";
  return options;
}

}  // namespace sparsed::server
