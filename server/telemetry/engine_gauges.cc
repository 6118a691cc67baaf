#include "server/telemetry/engine_gauges.h"

#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <system_error>

#include "engine/execution/derived_patterns.h"
#include "kernels/cuda/driver.h"
#include "server/telemetry/sample.h"
#include "server/thread_starts.h"

namespace sparsed::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

constexpr const char* kCpu = "cpu";

class Families {
 public:
  void Begin(MetricType type, const char* name, const char* help) {
    families_.push_back({name, help, type, {}});
  }
  void Add(std::vector<ClientMetric::Label> labels, double value) {
    families_.back().metric.push_back(Sample(value, std::move(labels)));
  }
  /// A family of one.
  void Single(MetricType type, const char* name, const char* help, double value,
              std::vector<ClientMetric::Label> labels = {}) {
    Begin(type, name, help);
    Add(std::move(labels), value);
  }
  std::vector<MetricFamily> Take() { return std::move(families_); }

 private:
  std::vector<MetricFamily> families_;
};

void AddModels(Families& families, engine::Engine& engine) {
  const engine::Selector& selector = engine.preparation().selector();
  families.Begin(MetricType::Gauge, "sparsed_model_info",
                 "1, labelled with what chooses for a kind of device, and which model is watched");
  for (const DeviceKind kind : {DeviceKind::kCpu, DeviceKind::kCuda}) {
    if (kind == DeviceKind::kCuda && engine.gpus().empty()) continue;
    const std::string device(Name(kind));
    const std::shared_ptr<const engine::Model> used = selector.used(kind);
    families.Add({{"device", device},
                  {"model", used == nullptr ? std::string(engine::kRules) : used->name()},
                  {"role", "used"}},
                 1);
    if (const std::shared_ptr<const engine::Model> watched = selector.watched(kind)) {
      families.Add({{"device", device}, {"model", watched->name()}, {"role", "watched"}}, 1);
    }
  }
}

/// The CPU, and the GPUs if there are any.
void AddDevices(Families& families, engine::Engine& engine) {
  const engine::Executor& executor = engine.executor();
  std::vector<DeviceId> devices = {DeviceId{}};
  for (const auto& gpu : engine.gpus()) devices.push_back(gpu->id());
  families.Begin(MetricType::Counter, "sparsed_device_busy_seconds_total",
                 "Time that worker slots spent in kernels, trials included");
  for (const DeviceId device : devices) {
    families.Add({{"device", Name(device)}}, executor.busy_seconds(device));
  }
  families.Begin(
      MetricType::Counter, "sparsed_tenant_device_seconds_total",
      "Time of worker slots that a tenant's requests had; of those who use less, together");
  for (const DeviceId device : devices) {
    const engine::TenantSeconds seconds = executor.tenant_seconds(device);
    for (const auto& [tenant, use] : seconds.named()) {
      families.Add({{"device", Name(device)}, {"tenant", tenant}}, use.seconds);
    }
    if (seconds.others() > 0) {
      families.Add({{"device", Name(device)}, {"tenant", "other"}}, seconds.others());
    }
  }
  constexpr const char* kLengths[] = {"short", "long"};
  families.Begin(
      MetricType::Counter, "sparsed_slot_turns_total",
      "Turns that requests had on worker slots: a short one has one, a long one one for each "
      "part of it");
  for (const DeviceId device : devices) {
    const engine::SlotWaits waits = executor.slot_waits(device);
    for (size_t i = 0; i < waits.turns.size(); ++i) {
      families.Add({{"device", Name(device)}, {"length", kLengths[i]}},
                   static_cast<double>(waits.turns[i]));
    }
  }
  families.Begin(MetricType::Counter, "sparsed_slot_wait_seconds_total",
                 "Time that requests waited for those turns");
  for (const DeviceId device : devices) {
    const engine::SlotWaits waits = executor.slot_waits(device);
    for (size_t i = 0; i < waits.seconds.size(); ++i) {
      families.Add({{"device", Name(device)}, {"length", kLengths[i]}}, waits.seconds[i]);
    }
  }
  families.Begin(MetricType::Counter, "sparsed_slot_wait_behind_seconds_total",
                 "Of that time, what worker slots gave meanwhile to trials of autotuning and to "
                 "other tenants' requests; the rest they gave to the waiting tenant's own, or it "
                 "was a wait for processors");
  for (const DeviceId device : devices) {
    const engine::SlotWaits waits = executor.slot_waits(device);
    families.Add({{"device", Name(device)}, {"behind", "trials"}}, waits.for_trials);
    families.Add({{"device", Name(device)}, {"behind", "others"}}, waits.for_others);
  }
  families.Begin(MetricType::Counter, "sparsed_turns_beside_long_total",
                 "Turns of short requests that began while a long one had another slot");
  for (const DeviceId device : devices) {
    families.Add({{"device", Name(device)}},
                 static_cast<double>(executor.slot_waits(device).beside));
  }
  families.Begin(MetricType::Gauge, "sparsed_queue_depth", "Requests waiting for a worker slot");
  for (const DeviceId device : devices) {
    families.Add({{"device", Name(device)}}, static_cast<double>(executor.queue_depth(device)));
  }
  families.Begin(MetricType::Gauge, "sparsed_device_constant",
                 "What decisions take for the device's rates and times, in bytes, operations and "
                 "seconds, by name; those that are known");
  const std::vector<engine::DeviceFacts> facts = engine.devices();
  for (const engine::DeviceFacts& device : facts) {
    for (const engine::ConstantField& field : engine::ConstantFields()) {
      const double value = device.constants.*field.value;
      if (value <= 0) continue;
      families.Add({{"device", device.name}, {"constant", std::string(field.name)}}, value);
    }
  }
  families.Begin(MetricType::Gauge, "sparsed_device_calibrated_timestamp_seconds",
                 "Unix time at which the device's constants were measured; 0: they are built in");
  for (const engine::DeviceFacts& device : facts) {
    if (!device.found || !device.unavailable.empty()) continue;
    families.Add(
        {{"device", device.name}},
        device.calibration ? static_cast<double>(device.calibration->measured_unix_ns) * 1e-9 : 0);
  }
  families.Begin(MetricType::Gauge, "sparsed_device_up",
                 "1 while the device serves, 0 if it is here and cannot, or is lost");
  for (const engine::DeviceFacts& device : facts) {
    if (device.found) families.Add({{"device", device.name}}, device.unavailable.empty() ? 1 : 0);
  }
  families.Begin(
      MetricType::Counter, "sparsed_evictions_total",
      "Arrays that left the device's memory to make room; host memory lets those go that "
      "can be read or computed again");
  const engine::EvictionQueue& evictions = *engine.budget().evictions();
  families.Add({{"device", kCpu}}, static_cast<double>(evictions.evictions()));
  for (const auto& gpu : engine.gpus()) {
    families.Add({{"device", gpu->name()}}, static_cast<double>(gpu->residency().evictions()));
  }
  families.Begin(MetricType::Counter, "sparsed_disk_read_bytes_total",
                 "Bytes of arrays that were read from the data directory: for the first time since "
                 "the start, or again after they had left host memory");
  families.Add({{"read", "first"}}, static_cast<double>(evictions.read_first_bytes()));
  families.Add({{"read", "again"}}, static_cast<double>(evictions.read_again_bytes()));
  families.Begin(
      MetricType::Counter, "sparsed_spgemm_row_sizes_total",
      "SpGEMM products by where the sizes of their rows came from: computed, or kept from "
      "an earlier request of the same patterns");
  families.Add({{"from", "computed"}}, static_cast<double>(executor.derived().sizes_computed()));
  families.Add({{"from", "kept"}}, static_cast<double>(executor.derived().sizes_found()));
  families.Begin(MetricType::Counter, "sparsed_device_copied_bytes_total",
                 "Bytes copied between the host and the device, and from other GPUs");
  for (const auto& gpu : engine.gpus()) {
    families.Add({{"device", gpu->name()}, {"direction", "in"}},
                 static_cast<double>(gpu->bytes_in()));
    families.Add({{"device", gpu->name()}, {"direction", "out"}},
                 static_cast<double>(gpu->bytes_out()));
    families.Add({{"device", gpu->name()}, {"direction", "from_peers"}},
                 static_cast<double>(gpu->bytes_from_peers()));
  }
}

/// `budget` is the host's or a device's.
template <typename Budget>
void AddUses(Families& families, const Budget& budget, const std::string& device) {
  for (int use = 0; use < engine::kMemoryUses; ++use) {
    const auto memory_use = static_cast<engine::MemoryUse>(use);
    families.Add({{"device", device}, {"use", std::string(engine::Name(memory_use))}},
                 static_cast<double>(budget.used(memory_use)));
  }
}

/// `reserved_bytes`: of --host-memory, but not the engine's.
void AddMemory(Families& families, engine::Engine& engine, TenantLabels& labels,
               int64_t reserved_bytes) {
  // What was deleted is gone, not free soon.
  for (const auto& gpu : engine.gpus()) gpu->residency().Sweep();
  families.Begin(MetricType::Gauge, "sparsed_memory_bytes",
                 "Memory in use, by what for; kept: for the next request");
  AddUses(families, engine.budget(), kCpu);
  families.Add({{"device", kCpu}, {"use", "kept"}}, static_cast<double>(engine.budget().kept()));
  for (const auto& gpu : engine.gpus()) AddUses(families, gpu->budget(), gpu->name());
  families.Single(MetricType::Gauge, "sparsed_memory_evictable_bytes",
                  "Memory in use by what can be read or computed again: it goes, while no request "
                  "uses it, when the room is needed",
                  static_cast<double>(engine.budget().evictions()->bytes()), {{"device", kCpu}});
  families.Begin(MetricType::Gauge, "sparsed_memory_owned_bytes",
                 "Memory in use that a tenant pays for; the rest is everybody's");
  const auto add_owned = [&](const auto& budget, const std::string& device) {
    std::map<std::string, int64_t> by_label;
    for (const auto& [tenant, bytes] : budget.owned()) by_label[labels.Of(tenant)] += bytes;
    for (const auto& [label, bytes] : by_label) {
      families.Add({{"device", device}, {"tenant", label}}, static_cast<double>(bytes));
    }
  };
  add_owned(engine.budget(), kCpu);
  for (const auto& gpu : engine.gpus()) add_owned(gpu->budget(), gpu->name());
  families.Begin(MetricType::Gauge, "sparsed_memory_limit_bytes", "Memory that may be used");
  families.Add({{"device", kCpu}}, static_cast<double>(engine.budget().limit()));
  for (const auto& gpu : engine.gpus()) {
    families.Add({{"device", gpu->name()}}, static_cast<double>(gpu->budget().limit()));
  }
  families.Single(MetricType::Gauge, "sparsed_memory_reserved_bytes",
                  "Of --host-memory, set aside for messages on their way in, whether there are any "
                  "or not: neither in use nor in the limit",
                  static_cast<double>(reserved_bytes), {{"device", kCpu}});
  families.Begin(MetricType::Gauge, "sparsed_memory_peak_bytes",
                 "Most memory in use since the start");
  families.Add({{"device", kCpu}}, static_cast<double>(engine.budget().peak()));
  for (const auto& gpu : engine.gpus()) {
    families.Add({{"device", gpu->name()}}, static_cast<double>(gpu->budget().peak()));
  }
}

/// States and layouts, each pattern once however many matrices share it.
void AddMatrices(Families& families, engine::Engine& engine) {
  std::array<int64_t, 4> states = {};
  std::map<std::string, int64_t> layout_bytes = {{"csr", 0}};
  std::set<const engine::Pattern*> seen;
  const std::vector<engine::MatrixLease> matrices = engine.catalog().All();
  for (const engine::MatrixLease& matrix : matrices) {
    engine::Pattern& pattern = *matrix->pattern();
    const bool first = seen.insert(&pattern).second;
    if (first) {
      ++states[static_cast<size_t>(pattern.progress().status().state)];
    }
    layout_bytes["csr"] += matrix->resident_bytes() + (first ? pattern.resident_bytes() : 0);
    for (const auto& entry : pattern.Layouts()) {
      const Layout& layout = *entry.description;
      const bool counts = first && entry.layout->resident();
      layout_bytes[layout.kind] +=
          matrix->LayoutValueBytes(layout.pipeline) + (counts ? layout.bytes() : 0);
    }
  }
  families.Begin(MetricType::Gauge, "sparsed_preparations",
                 "Patterns by the state of their preparation");
  const std::array<const char*, 4> names = {"queued", "preparing", "ready", "failed"};
  for (size_t state = 0; state < states.size(); ++state) {
    families.Add({{"state", names[state]}}, static_cast<double>(states[state]));
  }
  families.Begin(MetricType::Gauge, "sparsed_layout_bytes", "Layouts and values in memory");
  for (const auto& [kind, bytes] : layout_bytes) {
    families.Add({{"kind", kind}, {"tier", "host"}}, static_cast<double>(bytes));
  }
  std::map<std::string, int64_t> bytes_on_gpus;
  for (const auto& gpu : engine.gpus()) {
    for (const auto& [kind, bytes] : gpu->residency().layout_bytes()) bytes_on_gpus[kind] += bytes;
  }
  for (const auto& [kind, bytes] : bytes_on_gpus) {
    families.Add({{"kind", kind}, {"tier", "device"}}, static_cast<double>(bytes));
  }
  families.Single(MetricType::Gauge, "sparsed_matrices", "Matrices on the server",
                  static_cast<double>(matrices.size()));
}

/// Buffers, by tenant.
void AddBuffers(Families& families, engine::Engine& engine, TenantLabels& labels) {
  const auto totals = engine.dense().totals();
  const auto add = [&](MetricType type, const char* name, const char* help,
                       int64_t engine::DenseTotals::*value) {
    families.Begin(type, name, help);
    std::map<std::string, int64_t> by_label;
    for (const auto& [tenant, of_tenant] : totals) by_label[labels.Of(tenant)] += of_tenant.*value;
    for (const auto& [label, sum] : by_label) {
      families.Add({{"tenant", label}}, static_cast<double>(sum));
    }
  };
  using engine::DenseTotals;
  add(MetricType::Gauge, "sparsed_buffers",
      "Buffers: dense matrices that the server keeps under a name", &DenseTotals::count);
  add(MetricType::Gauge, "sparsed_buffer_bytes",
      "Bytes of buffers, in memory or not, with 2 KiB each", &DenseTotals::bytes);
  add(MetricType::Counter, "sparsed_buffers_expired_total",
      "Buffers that were deleted because nothing used them for their time to live",
      &DenseTotals::expired);
  add(MetricType::Counter, "sparsed_buffers_refused_total",
      "Buffers that were refused for the tenant's quota", &DenseTotals::refused);
  if (const int64_t limit = engine.options().dense.tenant_bytes; limit > 0) {
    families.Single(MetricType::Gauge, "sparsed_buffer_limit_bytes",
                    "Bytes of buffers that each tenant may have", static_cast<double>(limit));
  }
}

/// Of the file system that the data directory is on; nothing while it cannot be asked.
void AddDisk(Families& families, engine::Engine& engine) {
  const std::string& folder = engine.options().data_dir;
  if (folder.empty()) return;
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(folder, error);
  if (error) return;
  families.Single(MetricType::Gauge, "sparsed_disk_free_bytes",
                  "Room on the data directory's file system for the server's user",
                  static_cast<double>(space.available));
  families.Single(MetricType::Gauge, "sparsed_disk_size_bytes",
                  "Size of the data directory's file system", static_cast<double>(space.capacity));
}

double ResidentSetBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

}  // namespace

std::vector<MetricFamily> EngineGauges::Collect() const {
  Families families;
  families.Single(MetricType::Gauge, "sparsed_build_info", "1, labelled with what was built", 1,
                  {{"version", SPARSED_VERSION},
                   {"compiler", __VERSION__},
                   {"cuda", std::string(cuda::ThisBuild().version)}});
  AddDevices(families, engine_);
  AddMemory(families, engine_, labels_, reserved_bytes_);
  AddMatrices(families, engine_);
  families.Single(MetricType::Gauge, "sparsed_patterns", "Patterns held",
                  static_cast<double>(engine_.catalog().patterns()));
  AddBuffers(families, engine_, labels_);
  if (const std::optional<bool> up = engine_.store_up()) {
    families.Single(MetricType::Gauge, "sparsed_store_up",
                    "1 while the data directory is where it was, 0 once it is gone", *up ? 1 : 0);
  }
  families.Single(MetricType::Gauge, "sparsed_past_measurements_bytes",
                  "What is kept on disk of measurements on patterns that no matrix has any more",
                  static_cast<double>(engine_.past_measurement_bytes()));
  AddDisk(families, engine_);
  families.Single(MetricType::Gauge, "sparsed_preparations_pending",
                  "Preparations waiting or under way",
                  static_cast<double>(engine_.preparation().pending()));
  AddModels(families, engine_);
  const ThreadStarts starts = CountThreadStarts();
  families.Single(MetricType::Gauge, "sparsed_thread_starts_waiting",
                  "Threads that the operating system does not start now",
                  static_cast<double>(starts.waiting));
  families.Single(MetricType::Counter, "sparsed_thread_starts_delayed_total",
                  "Threads that the operating system did not start at once",
                  static_cast<double>(starts.delayed));
  const auto started = std::chrono::duration<double>(started_.time_since_epoch());
  families.Single(MetricType::Gauge, "process_start_time_seconds", "Unix time of the start",
                  started.count());
  families.Single(MetricType::Gauge, "process_resident_memory_bytes",
                  "Memory of the whole process, as the operating system counts it",
                  ResidentSetBytes());
  return families.Take();
}

}  // namespace sparsed::server
