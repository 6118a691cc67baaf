// The engine: what the service knows, without a wire. The modules below are wired together here and
// nowhere else.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/descriptor.h"
#include "engine/catalog/catalog.h"
#include "engine/catalog/dense_catalog.h"
#include "engine/execution/executor.h"
#include "engine/memory/budget.h"
#include "engine/memory/caller_memory.h"
#include "engine/memory/device.h"
#include "engine/observer.h"
#include "engine/planning/calibration.h"
#include "engine/planning/model_store.h"
#include "engine/preparation/preparation.h"
#include "engine/store/snapshot.h"
#include "engine/store/store.h"
#include "engine/store/store_watcher.h"

namespace sparsed::engine {

class DeviceQueue;

struct EngineOptions {
  std::string data_dir;  ///< empty: in memory
  int64_t host_memory_bytes = 0;
  int64_t preparation_memory_bytes = 0;
  std::optional<DeviceOptions> gpu;     ///< of each; none: the CPU alone
  std::vector<int> gpu_ordinals = {0};  ///< which
  bool gpu_required = false;            ///< it does not open without all of them
  CatalogOptions catalog;
  DenseOptions dense;                     ///< buffers
  double scrub_interval_seconds = 86400;  ///< between two verifications of all blobs; 0: never
  /// Of patterns that no matrix has any more, on disk; 0: forget them with the pattern.
  int64_t past_measurement_bytes = kPastMeasurementBytes;
  ExecutorOptions execution;
  PreparationOptions preparation;
  /// Between two looks for a moment without requests, in which what is not known of devices is
  /// measured.
  std::chrono::milliseconds quiet_time = std::chrono::minutes(1);
  bool models = true;  ///< false: rules choose what is tried, whatever there is
  /// A folder of installed models (ModelStore), besides those in data_dir; empty: none.
  std::string installed_models;
};

/// One device that serves, or was asked for and does not.
struct DeviceFacts {
  std::string name;         ///< "cpu", "cuda:0"
  std::string description;  ///< model, cores, instruction sets
  int threads = 0;
  std::string unavailable;  ///< why not; empty: it serves
  bool found = true;        ///< false: there is no trace of one, and nobody expects it to serve
  /// What decisions take for its rates and times, of one that serves; measured by `calibration`, if
  /// there is one.
  DeviceConstants constants = {};
  std::optional<Calibration> calibration = std::nullopt;
};

class Engine {
 public:
  /// Opens the store, restores the catalog, starts worker slots and workers. `observer` outlives
  /// the engine.
  static absl::StatusOr<std::unique_ptr<Engine>> Open(const EngineOptions& options,
                                                      Observer& observer);
  ~Engine();

  Catalog& catalog() { return *catalog_; }
  DenseCatalog& dense() { return *dense_; }
  Executor& executor() { return *executor_; }
  Preparation& preparation() { return *preparation_; }
  ModelStore& models() { return *models_; }
  Budget& budget() { return *budget_; }
  Tenants& tenants() { return budget_->tenants(); }
  /// What the tenant uses of it; of kDeviceBytes on the GPU where that is most.
  int64_t UseOf(const Tenant& tenant, Quota quota) const;
  const std::vector<std::unique_ptr<Device>>& gpus() const { return gpus_; }  ///< that were opened
  std::vector<DeviceFacts> devices() const;
  /// Measures the constants of a kind of devices that serves (of several GPUs, which are alike, the
  /// first), has decisions take them from now on, and keeps them in the data directory. Blocks, for
  /// some seconds. FAILED_PRECONDITION while a calibration or preparations are under way, or where
  /// no such device serves; the errors of engine::Calibrate; what the disk says.
  absl::StatusOr<Calibration> Calibrate(DeviceKind kind, const std::atomic<bool>* stop,
                                        std::chrono::steady_clock::time_point until);
  /// False while the data directory is gone; none if nothing is kept on disk.
  std::optional<bool> store_up() const;
  const EngineOptions& options() const { return options_; }
  /// What the data directory holds at one moment (Store::Snapshot); gone before the engine. Blocks.
  absl::StatusOr<std::unique_ptr<StoreSnapshot>> Snapshot(Store::Stop stop = nullptr) {
    return store_->Snapshot(stop);
  }
  /// Of the past pattern that Store::ReadNextPast gives. Blocks.
  absl::StatusOr<std::optional<PatternMeasurements>> ReadNextPast(const std::string& hash);
  /// What those of all past patterns take on disk.
  int64_t past_measurement_bytes() const { return store_->past_measurement_bytes(); }
  /// A memory file (see MapShared) that requests of the tenant may name parts of, as
  /// OperandSpec::shared; pinned for the GPUs, unless the operating system does not let us. Blocks.
  absl::StatusOr<Buffer> Share(int file, int64_t most_bytes, std::string_view tenant);

  /// Memory of a GPU's that another process can map, too.
  struct GpuMemory {
    Buffer memory;
    DeviceId device;
    Descriptor file;  ///< what stands for it; see cuda::Export
  };
  /// Zeros, on the GPU with that uuid (cuda::DeviceUuid), which the tenant pays for.
  /// FAILED_PRECONDITION if it is none of these; RESOURCE_EXHAUSTED; UNIMPLEMENTED where a GPU has
  /// no such memory. Blocks.
  absl::StatusOr<GpuMemory> AllocateShared(std::string_view gpu, size_t bytes,
                                           std::string_view tenant);
  /// Memory that another process allocated on that GPU, where it is: `handle` is of
  /// cuda::HandleOf, the rest as CallerMemory::Open has it. It counts as nobody's here, and `file`
  /// is none. Errors as AllocateShared's; INVALID_ARGUMENT. Blocks.
  absl::StatusOr<GpuMemory> OpenCallerMemory(std::string_view gpu, std::string_view handle,
                                             uint64_t allocation, size_t bytes);
  /// A queue on that GPU, whose words are in `page`, a sealed memory file of
  /// DeviceQueues::kPageBytes that stays the caller's. INVALID_ARGUMENT for another file. Blocks.
  absl::StatusOr<std::shared_ptr<DeviceQueue>> OpenQueue(std::string_view gpu, int page,
                                                         std::string_view tenant);

 private:
  Engine(EngineOptions options, Observer& observer);
  absl::Status OpenGpus(Observer& observer);
  void OpenModels(Observer& observer);
  /// Has devices use what was measured of them before.
  void ReadCalibrations();
  /// Of the kind that serves; none: none does.
  std::optional<DeviceId> FirstOf(DeviceKind kind) const;
  /// Measures what was never measured, in the first quiet moments. What goes wrong is told once of
  /// each kind, and tried again after twice as long each time.
  void CalibrateWhenQuiet(const std::stop_token& stop);
  absl::StatusOr<GpuBackend*> GpuOf(std::string_view uuid);

  const EngineOptions options_;
  Observer& observer_;
  std::atomic<bool> calibrating_ = false;
  /// The housekeeper's, of a kind that it could not calibrate.
  struct Uncalibrated {
    bool told = false;
    std::chrono::milliseconds wait{};
    std::chrono::steady_clock::time_point next{};
  };
  std::map<DeviceKind, Uncalibrated> uncalibrated_;
  // In the order of construction; destroyed in reverse.
  std::unique_ptr<Store> store_;
  std::unique_ptr<Budget> budget_;
  std::vector<std::unique_ptr<Device>> gpus_;
  CallerMemory caller_memory_;
  /// Those that were asked for and are not used, and why; NOT_FOUND: there is no trace of one.
  std::vector<std::pair<DeviceId, absl::Status>> not_opened_;
  std::unique_ptr<Catalog> catalog_;
  std::unique_ptr<DenseCatalog> dense_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Preparation> preparation_;
  std::unique_ptr<ModelStore> models_;
  std::unique_ptr<StoreWatcher> store_watcher_;
  class Scrubber;
  std::unique_ptr<Scrubber> scrubber_;
  std::jthread housekeeper_;  ///< gives up kept blocks and buffers that nobody uses
};

}  // namespace sparsed::engine
